# SPDX-License-Identifier: Apache-2.0
"""vLLM as an installer leaves it: small wheels, and folders that they were installed into."""

from __future__ import annotations

import base64
import compileall
import hashlib
import io
import os
import py_compile
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from series_support import clean_env


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


class _RemoteFile(io.RawIOBase):
    """A file on a web server, read in pieces."""

    def __init__(self, url: str) -> None:
        import requests

        self._url, self._session, self._at = url, requests.Session(), 0
        with self._session.get(url, headers={"Range": "bytes=0-0"}, stream=True, timeout=60) as answer:
            answer.raise_for_status()
            if answer.status_code != 206:
                pytest.skip("the package index sends whole files alone, and a wheel has 300 MB")
            self._size = int(answer.headers["Content-Range"].rpartition("/")[2])

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: bytearray) -> int:
        end = min(self._at + len(buffer), self._size)
        if end <= self._at:
            return 0
        answer = self._session.get(self._url, headers={"Range": f"bytes={self._at}-{end - 1}"}, timeout=60)
        answer.raise_for_status()
        buffer[: len(answer.content)] = answer.content
        self._at += len(answer.content)
        return len(answer.content)


def official_python_files(version: str, cache: Path) -> Path:
    """An archive of the Python files and metadata of vLLM's official wheel: 17 MB of its 300 are fetched."""
    import pypi_simple

    target = cache / "wheels" / f"vllm-{version}-python.zip"
    if target.is_file():
        return target
    with pypi_simple.PyPISimple(
        os.environ.get("PIP_INDEX_URL") or pypi_simple.PYPI_SIMPLE_ENDPOINT
    ) as client:
        packages = client.get_project_page("vllm", timeout=60).packages
    found = next(
        p for p in packages if p.version == version and p.filename.endswith("manylinux_2_28_x86_64.whl")
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    reader = io.BufferedReader(_RemoteFile(found.url), 1 << 20)
    with zipfile.ZipFile(reader) as archive, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as out:
        for row in sorted(archive.infolist(), key=lambda row: row.header_offset):
            if row.filename.endswith(".py") or ".dist-info/" in row.filename:
                out.writestr(row, archive.read(row))
    part.replace(target)
    return target
