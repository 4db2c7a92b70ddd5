#!/usr/bin/env bash
# All tests that need a GPU, in under ten minutes: bash ci/gpu.sh PLACE OUT
#
# PLACE is where `vllm-series env unpack` (or unpack.py) has unpacked; OUT gets results.json, table.txt and
# logs.tar.gz. SECONDS_LEFT limits the runs. Exit 1: something failed, 6: something was not run.
# Afterwards, in the checkout: vllm-series test --results OUT/results.json --record
set -uo pipefail

: "${1:?is PLACE: bash ci/gpu.sh PLACE OUT}" "${2:?is OUT: bash ci/gpu.sh PLACE OUT}"
place=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
export PYTHONPATH="$place/project/tests:$place/project/tools"

python3 -m engine.batch "$place" "$out/results.json" --seconds "${SECONDS_LEFT:-420}" ${ONLY:+--only $ONLY}
batch=$?
tar -czf "$out/logs.tar.gz" -C "$place/work" --ignore-failed-read runs
if [ $batch -ne 0 ]; then exit $batch; fi
python3 -m engine.table "$out/results.json" | tee "$out/table.txt"
exit "${PIPESTATUS[0]}"
