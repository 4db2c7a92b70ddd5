# SPDX-License-Identifier: Apache-2.0
"""The folder for an image: every file of it, by name."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from vllm_series import __version__
from vllm_series.container.scripts import REMOVE_TORCHCODEC, run_script
from vllm_series.container.spec import Container
from vllm_series.payload import Payload

#: Names a folder as written by this tool.
MANIFEST = "manifest.json"
EXECUTABLE = ("docker-run.sh", "podman-run.sh")
ENGINES = ("docker", "podman")


def folder_files(container: Container, payload: Payload) -> dict[str, bytes]:
    """Content by path."""
    names = list(payload.files)
    made = {f"files/{path}": file.new for path, file in payload.files.items()}
    texts = {f"{engine}-run.sh": run_script(engine, container, names) for engine in ENGINES}
    texts["Dockerfile"] = dockerfile(container)
    texts["compose.yaml"] = compose(container, names)
    texts["verify.py"] = (Path(__file__).parent / "verify.py").read_text()
    texts[MANIFEST] = json.dumps(manifest(container, payload), indent=1) + "\n"
    texts[".dockerignore"] = "compose.yaml\n*-run.sh\n"
    made.update((name, text.encode()) for name, text in texts.items())
    return made


def manifest(container: Container, payload: Payload) -> dict[str, object]:
    """What the folder holds, for people and for ``verify.py``."""
    return {
        "schema": 1,
        "tool": __version__,
        "image": container.image,
        "site": container.site,
        "base": {"ref": payload.base.ref, "version": payload.base.version, "commit": payload.base.commit},
        "patches": [{"name": name, "sha256": digest} for name, digest in payload.patches],
        "files": {p: {"base": f.old_digest, "overlay": f.new_digest} for p, f in payload.files.items()},
    }


def dockerfile(container: Container) -> str:
    """An image with the series in it: the files are checked before and after they are put in."""
    lines = [
        "# Written by vllm-series overlay. Build: docker build -t vllm-series .   (or podman build)",
        f"FROM {container.image}",
        "COPY . /opt/vllm-series-overlay",
        "RUN python3 /opt/vllm-series-overlay/verify.py --beneath \\",
        f" && cp -r /opt/vllm-series-overlay/files/vllm {shlex.quote(container.site)}/ \\",
        " && python3 /opt/vllm-series-overlay/verify.py --replaced",
    ]
    if container.remove_torchcodec:
        lines += [
            "# The image has CUDA 12, and its torchcodec wants libnvrtc.so.13.",
            f"RUN {REMOVE_TORCHCODEC}",
        ]
    for name, value in container.environment:
        quoted = json.dumps(value, ensure_ascii=False).replace("$", "\\$")
        lines.append(f"ENV {name}={quoted}")
    return "\n".join(lines) + "\n"


def compose(container: Container, files: list[str]) -> str:
    """A file for docker compose. A JSON string is a YAML string; a dollar sign is doubled for compose."""

    def text(value: str) -> str:
        return json.dumps(value.replace("$", "$$"), ensure_ascii=False)

    gpus = (
        f"device_ids: [{', '.join(json.dumps(number) for number in container.gpus)}]"
        if container.gpus
        else "count: all"
    )
    lines = [
        "# Written by vllm-series overlay. Start: MODEL=/path/to/checkpoint docker compose up",
        "# For podman use podman-run.sh: not every podman compose passes the GPUs on.",
        "services:",
        "  vllm:",
        f"    image: {text(container.image)}",
        "    ipc: host" if container.shm is None else f"    shm_size: {container.shm}gb",
        '    ports: ["${PORT:-8000}:8000"]',
    ]
    if container.environment:
        lines.append("    environment:")
        lines += [f"      {name}: {text(value)}" for name, value in container.environment]
    if container.remove_torchcodec:
        shell = f'{REMOVE_TORCHCODEC}; exec vllm serve "$@"'
        lines.append(f'    entrypoint: ["/bin/sh", "-c", {text(shell)}, "vllm"]')
    lines.append("    command:")
    lines += [f"      - {text(argument)}" for argument in ("/model", *container.arguments)]
    lines += [
        "    deploy:",
        "      resources:",
        "        reservations:",
        "          devices:",
        f"            - {{driver: nvidia, {gpus}, capabilities: [gpu]}}",
        "    volumes:",
        *_mount('"${MODEL:?name the folder of the checkpoint}"', '"/model"'),
    ]
    for path in files:
        lines += _mount(text(f"./files/{path}"), text(f"{container.site}/{path}"))
    return "\n".join(lines) + "\n"


def _mount(source: str, target: str) -> list[str]:
    return [
        "      - type: bind",
        f"        source: {source}",
        f"        target: {target}",
        "        read_only: true",
        "        bind: {create_host_path: false}",
    ]
