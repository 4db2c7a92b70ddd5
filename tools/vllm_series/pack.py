# SPDX-License-Identifier: Apache-2.0
"""Pack what the tests of the GPU tiers need into one archive, for a machine without a package index.

Of vLLM that is the official wheel's Python files and its compiled libraries, reduced to one architecture
(see :mod:`vllm_series.fatbin`); and for the series, and for each control, the files that differ from the
release. :mod:`vllm_series.unpack` says what lies where.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from vllm_series.errors import EnvironmentFaultError, PreconditionError
from vllm_series.fatbin import strip
from vllm_series.git import Repository
from vllm_series.swap import write_file
from vllm_series.unpack import INDEX, MANIFEST, REMOVED, SCHEMA

#: What of the wheel is read by Python code that runs.
_SUFFIXES = frozenset({".py", ".json", ".jinja", ".typed"})
#: Libraries that are needed, and whether with their GPU code. vLLM will not be imported without
#: FlashAttention, which the model under test never launches.
_LIBRARIES = {
    "vllm/_C_stable_libtorch.abi3.so": True,
    "vllm/_moe_C_stable_libtorch.abi3.so": True,
    "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so": False,
    "vllm/cumem_allocator.abi3.so": True,
    "vllm/fs_io_C.abi3.so": True,
    "vllm/spinloop.abi3.so": True,
}
#: What of this project travels.
_PROJECT = ("tests/engine", "tests/startup", "tools/vllm_series", "ci/gpu.sh")
#: Folders of the trees that travel beside vLLM itself: tests that need a GPU.
_TREE_FOLDERS = ("vllm", "tests/models/qwen4_exp", "tests/v1/worker")
ARCHIVE = "vllm-series-env.tar.xz"


@dataclass(frozen=True)
class Contents:
    """What an archive is made of.

    Attributes:
        release: The release, such as ``v0.33.0``.
        repository: Where the trees are.
        base: The release's tree.
        trees: Tree ids by role.
        wheel: The official wheel of the release.
        wheels: Wheels of packages that the machine lacks.
        project: This project's folder.
        architecture: Of the GPU, such as 90.

    """

    release: str
    repository: Repository
    base: str
    trees: Mapping[str, str]
    wheel: Path
    wheels: tuple[Path, ...]
    project: Path
    architecture: int


@dataclass
class _Splitter(io.RawIOBase):
    """A stream that is written into parts of a size."""

    folder: Path
    size: int
    parts: list[Path] = field(default_factory=list)
    _left: int = 0
    _stream: io.BufferedWriter | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: bytes | memoryview) -> int:  # type: ignore[override]
        data = memoryview(data).cast("B")
        at = 0
        while at < len(data):
            if self._left == 0:
                self._next()
            assert self._stream is not None
            count = min(self._left, len(data) - at)
            self._stream.write(data[at : at + count])
            self._left -= count
            at += count
        return len(data)

    def _next(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self.parts.append(self.folder / f"{ARCHIVE}.{len(self.parts):03d}")
        self._stream = self.parts[-1].open("wb")
        self._left = self.size

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        super().close()


def write_pack(contents: Contents, folder: Path, part_size: int, preset: int = 9) -> list[Path]:
    """Write the archive into a new or empty folder.

    Args:
        contents: What goes in.
        folder: The folder.
        part_size: Bytes of a part.
        preset: Of the compression, from 0 (fast) to 9 (small).

    Returns:
        The parts. ``parts.json``, which makes them an archive, is written last.

    Raises:
        PreconditionError: The folder has something in it.
        EnvironmentFaultError: It cannot be written, or the wheel lacks a library.

    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise PreconditionError(f"{folder} exists", hint="name a folder that is new or empty")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        splitter = _Splitter(folder, part_size)
        with (
            splitter,
            lzma.LZMAFile(splitter, "wb", preset=preset) as stream,  # type: ignore[arg-type]
            tarfile.open(fileobj=stream, mode="w|") as archive,
        ):
            for name, data in sorted(_files(contents).items()):
                _add(archive, name, data)
        rows = []
        for path in splitter.parts:
            with path.open("rb") as part:
                rows.append({"name": path.name, "sha256": hashlib.file_digest(part, "sha256").hexdigest()})
        source = Path(__file__).with_name("unpack.py")
        write_file(folder / source.name, source.read_bytes())
        index = {"schema": SCHEMA, "release": contents.release, "trees": dict(contents.trees), "parts": rows}
        write_file(folder / INDEX, (json.dumps(index, indent=2) + "\n").encode())
    except OSError as error:
        raise EnvironmentFaultError(f"cannot write {folder}: {error.strerror or error}") from None
    return splitter.parts


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    # One time for all, so that the same content makes the same archive. Zero is no time to some tools.
    member.mtime = 1_000_000_000
    member.mode = 0o755 if name.endswith((".sh", ".so")) else 0o644
    archive.addfile(member, io.BytesIO(data))


def _files(contents: Contents) -> dict[str, bytes]:
    """Every file of the archive."""
    manifest = {
        "schema": SCHEMA,
        "release": contents.release,
        "architecture": contents.architecture,
        "trees": dict(contents.trees),
    }
    found = {MANIFEST: json.dumps(manifest, indent=2).encode()}
    base = {**dict(_wheel_files(contents)), **_tree_files(contents)}
    found |= {f"base/{name}": data for name, data in base.items()}
    for tree in dict.fromkeys(contents.trees.values()):
        found |= {f"trees/{tree}/{name}": data for name, data in _overlay(contents, tree).items()}
    for wheel in contents.wheels:
        found |= {f"site/{name}": data for name, data in _members(wheel)}
    for path in _project_files(contents.project):
        found[f"project/{path.relative_to(contents.project).as_posix()}"] = path.read_bytes()
    return found


def _members(wheel: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not name.endswith("/"):
                # What pip would put beside the packages; scripts and headers are of no use here.
                place = name.partition(".data/purelib/")[2] or name.partition(".data/platlib/")[2] or name
                if ".data/" not in place:
                    yield place, archive.read(name)


def _wheel_files(contents: Contents) -> Iterator[tuple[str, bytes]]:
    missing = set(_LIBRARIES)
    with zipfile.ZipFile(contents.wheel) as archive:
        for name in archive.namelist():
            if name in _LIBRARIES:
                missing.discard(name)
                architecture = contents.architecture if _LIBRARIES[name] else 0
                yield name, strip(archive.read(name), architecture)
            elif PurePosixPath(name).suffix in _SUFFIXES or ".dist-info/" in name:
                yield name, archive.read(name)
    if missing:
        raise EnvironmentFaultError(
            f"{contents.wheel} has no {min(missing)}",
            hint=f"it must be the wheel of vLLM {contents.release} for CUDA",
        )


def _wanted(path: str) -> bool:
    in_folder = any(path.startswith(f"{folder}/") for folder in _TREE_FOLDERS)
    return in_folder and PurePosixPath(path).suffix in _SUFFIXES


def _tree_files(contents: Contents) -> dict[str, bytes]:
    entries = contents.repository.all_entries(contents.base)
    return _blobs(contents.repository, {p: e.oid for p, e in entries.items() if _wanted(p)})


def _overlay(contents: Contents, tree: str) -> dict[str, bytes]:
    changed = [p for p in contents.repository.changed_paths(contents.base, tree) if _wanted(p)]
    there = contents.repository.entries(tree, changed)
    files = _blobs(contents.repository, {path: entry.oid for path, entry in there.items()})
    removed = sorted(set(changed) - there.keys())
    return {**files, REMOVED: json.dumps(removed).encode()}


def _blobs(repository: Repository, oids: Mapping[str, str]) -> dict[str, bytes]:
    contents = repository.objects(set(oids.values()))
    return {path: contents[oid] for path, oid in oids.items()}


def _project_files(project: Path) -> Iterator[Path]:
    for name in _PROJECT:
        place = project / name
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.is_file() and "__pycache__" not in path.parts:
                yield path
