#!/usr/bin/env bash
# All gates, on a machine with nothing but Python, pip, git and gcc: bash ci/test.sh
#
# BASES="v0.33.0" limits the proofs of the patches to one base, as the hosted workflow does.
set -euo pipefail
cd "$(dirname "$0")/.."

BASES=${BASES:-"v0.33.0 v0.32.0"}
VENV=${VLLM_SERIES_CI_VENV:-build/ci-venv}

step() { printf '\n=== %s (%ss)\n' "$*" "$SECONDS"; }

step "environment"
python3 -m venv "$VENV"
# shellcheck disable=SC1091
. "$VENV/bin/activate"
python -m pip install --quiet --disable-pip-version-check -c ci/constraints.txt -e '.[test]'

step "ruff and types"
ruff check .
ruff format --check .
mypy

step "releases"
vllm-series fetch

step "the patch directory"
vllm-series check
vllm-series refresh --check
vllm-series status --strict

step "the tool's tests"
python -m pytest -q -n 2 --dist worksteal tests

step "environment for the patches' tests"
vllm-series env create

step "the patches' tests on $BASES, with and without each patch"
onto=()
for base in $BASES; do onto+=(--onto "$base"); done
vllm-series test "${onto[@]}" --tier static --tier cpu --tier interpret --tier compile

step "done"
