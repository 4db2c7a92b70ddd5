# SPDX-License-Identifier: Apache-2.0
"""vLLM as an installer leaves it: small wheels, and folders that they were installed into."""

from __future__ import annotations

import base64
import compileall
import hashlib
import py_compile
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

from series_support import clean_env, write


def wheel(folder: Path, version: str, files: Mapping[str, bytes | str]) -> Path:
    """A wheel of vLLM with the package's files of a release."""
    info = f"vllm-{version}.dist-info"
    rows = {n: c.encode() if isinstance(c, str) else c for n, c in files.items() if n.startswith("vllm/")}
    rows["vllm/_version.py"] = f"version = '{version}'\n".encode()
    rows[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n".encode()
    rows[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    rows[f"{info}/RECORD"] = (
        "".join(
            f"{name},{record_digest(content)},{len(content)}\n" for name, content in rows.items()
        ).encode()
        + f"{info}/RECORD,,\n".encode()
    )
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"vllm-{version}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in rows.items():
            archive.writestr(name, content)
    return target


def record_digest(content: bytes) -> str:
    """A digest as RECORD writes it."""
    raw = hashlib.sha256(content).digest()
    return "sha256=" + base64.urlsafe_b64encode(raw).decode().rstrip("=")


def unpack(archive: Path, site: Path) -> Path:
    """Install a wheel as pip does, bytecode included, without the time that pip takes."""
    with zipfile.ZipFile(archive) as stream:
        stream.extractall(site)
    compileall.compile_dir(site / "vllm", quiet=2, invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP)
    return site


def environment(folder: Path) -> Path:
    """A virtual environment; returns its site-packages folder."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return next(folder.glob("lib/python3*/site-packages"))


def pip(environment: Path, *args: str | Path) -> None:
    """Run pip on an environment, without an index."""
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(environment), "--no-input", *map(str, args)],
        check=True,
        capture_output=True,
        env=clean_env(PIP_NO_INDEX="1", PIP_DISABLE_PIP_VERSION_CHECK="1"),
    )


def overwrite(site: Path, files: Mapping[str, bytes | str | None]) -> None:
    """Change installed files as an editor does."""
    write(site, files)
