# SPDX-License-Identifier: Apache-2.0
"""The shell scripts that start the container with docker and with podman."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from vllm_series.container.spec import SHM_BESIDE, Container

#: Options by which each engine gets the GPUs. Podman takes them through CDI; SELinux would keep the
#: container from the devices and the mounts.
_DEVICES: dict[str, Callable[[Sequence[str]], list[str]]] = {
    "docker": lambda gpus: ["--gpus", f'"device={",".join(gpus)}"' if gpus else "all"],
    "podman": lambda gpus: [
        *(f"--device=nvidia.com/gpu={number}" for number in gpus or ("all",)),
        "--security-opt=label=disable",
    ],
}

_HEAD = """\
#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Written by vllm-series overlay. Start:   MODEL=/path/to/checkpoint ./{engine}-run.sh [vllm serve arguments]
# Check first:                             ./{engine}-run.sh --verify
# Show the command without running it:     DRY_RUN=1 MODEL=... ./{engine}-run.sh
set -euo pipefail
unset CDPATH
here=$(cd -- "$(dirname -- "$(readlink -f -- "${{BASH_SOURCE[0]}}")")" && pwd -P)
image={image}
site={site}
files=(
{files}
)
arguments=({arguments})

fail() {{ printf '%s: error: %s\\n' "{engine}-run.sh" "$2" >&2; exit "$1"; }}
run() {{
  if [ -n "${{DRY_RUN-}}" ]; then printf '%q ' "$@"; printf '\\n'; else "$@"; fi
}}

mountable() {{
  case $1 in *,*|*'"'*) fail 4 "$1 has a comma or a quote in its name, which --mount cannot carry" ;; esac
}}
mountable "$here"
mounts=()
for file in "${{files[@]}}"; do
  # For a missing source some engines would make a folder; a link would be mounted as what it points to.
  if [ ! -f "$here/files/$file" ] || [ -L "$here/files/$file" ]; then
    fail 4 "$here/files/$file is no regular file; write the folder anew with vllm-series overlay --image"
  fi
  mounts+=(--mount "type=bind,source=$here/files/$file,target=$site/$file,readonly")
done
devices=({devices})
"""

_VERIFY = """
if [ "${{1-}}" = --verify ]; then
  tool=(--rm --entrypoint python3 --mount "type=bind,source=$here,target=/overlay,readonly")
  run {engine} run "${{tool[@]}}"{label} "$image" /overlay/verify.py --beneath
  run {engine} run "${{tool[@]}}"{label} "${{mounts[@]}}" "$image" /overlay/verify.py
  exit
fi
"""

_CDI = """
if ! grep -qs nvidia.com/gpu ${VLLM_CDI_DIRS:-/etc/cdi /var/run/cdi} -r; then
  fail 5 "no CDI description of the GPUs; make it: sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
fi
"""

_SHM = """
# vLLM keeps offloaded KV cache in /dev/shm, which is the host's here.
all=("${{arguments[@]}}" "$@")
offload=0
for ((i = 0; i < ${{#all[@]}}; i++)); do
  case ${{all[i]}} in
    --kv-offloading-size) offload=${{all[i + 1]-0}} ;;
    --kv-offloading-size=*) offload=${{all[i]#*=}} ;;
  esac
done
case $offload in
  '' | *[!0-9.]* | .* | *.*.*) fail 2 "--kv-offloading-size $offload is no number of GiB" ;;
esac
needed=$(( 10#${{offload%%.*}} + {beside} ))
free=$(( $(df --output=avail -k /dev/shm | tail -n 1) / 1048576 ))
if [ "$offload" != 0 ] && [ "$free" -lt "$needed" ]; then
  fail 4 "/dev/shm has $free GiB free, and --kv-offloading-size $offload needs $needed;\
 make it larger: sudo mount -o remount,size=$((needed + 1))G /dev/shm"
fi
"""

_START = """
: "${{MODEL:?name the folder of the checkpoint: MODEL=/path/to/checkpoint}}"
[ -d "$MODEL" ] || fail 2 "$MODEL is no folder"
model=$(cd -- "$MODEL" && pwd -P)
mountable "$model"
run {engine} run --rm --name vllm-series {shm} -p "${{PORT:-8000}}:8000" "${{devices[@]}}" \\
{environment}  --mount "type=bind,source=$model,target=/model,readonly" "${{mounts[@]}}" \\
  {command}
"""

#: The image's own entry point is `vllm serve`.
_PLAIN = '"$image" /model "${arguments[@]}" "$@"'
REMOVE_TORCHCODEC = (
    "if python3 -c 'import importlib.util as u, sys; sys.exit(u.find_spec(\"torchcodec\") is None)'; then "
    "python3 -m pip uninstall -y torchcodec || uv pip uninstall --system torchcodec; fi"
)


def run_script(engine: str, container: Container, files: Sequence[str]) -> str:
    """The start script for ``docker`` or ``podman``."""
    command = _PLAIN
    if container.remove_torchcodec:
        shell = f'{REMOVE_TORCHCODEC}; exec vllm serve "$@"'
        command = (
            f'--entrypoint /bin/sh "$image" -c {shlex.quote(shell)} vllm /model "${{arguments[@]}}" "$@"'
        )
    text = _HEAD.format(
        engine=engine,
        image=shlex.quote(container.image),
        site=shlex.quote(container.site),
        files="\n".join(f"  {shlex.quote(path)}" for path in files),
        arguments=shlex.join(container.arguments),
        devices=shlex.join(_DEVICES[engine](container.gpus)),
    )
    text += _VERIFY.format(engine=engine, label=" --security-opt=label=disable" if engine == "podman" else "")
    if engine == "podman":
        text += _CDI
    shm = "--ipc=host"
    if container.shm is not None:
        shm = f"--shm-size={container.shm}g"
    else:
        text += _SHM.format(beside=SHM_BESIDE)
    return text + _START.format(
        engine=engine,
        shm=shm,
        environment="".join(
            f"  -e {shlex.quote(f'{name}={value}')} \\\n" for name, value in container.environment
        ),
        command=command,
    )
