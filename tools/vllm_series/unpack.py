# SPDX-License-Identifier: Apache-2.0
"""Unpack what ``vllm-series env pack`` packed: ``python3 unpack.py PARTS FOLDER``.

This file travels with the archive, and needs Python's standard library alone. The archive holds

* ``base/``: the files of the official wheel that are needed, and its compiled libraries;
* ``trees/ID/``: of each tree, the files that differ from the base, with ``removed.json``;
* ``site/``: Python packages that the machine lacks;
* ``project/``: this project's tests and what they need.

Here each tree becomes a whole folder again, made of hard links to the base.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

SCHEMA = 1
INDEX = "parts.json"
MANIFEST = "pack.json"
REMOVED = "removed.json"


class UnpackError(Exception):
    """The parts are no archive, or there is no room for it."""


class Parts(io.RawIOBase):
    """The parts as one stream."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = iter(paths)
        self._stream: io.BufferedReader | None = None

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Read from the present part, or the next."""
        while True:
            if self._stream is None:
                path = next(self._paths, None)
                if path is None:
                    return 0
                self._stream = path.open("rb")
            count = self._stream.readinto(buffer)
            if count:
                return count
            self._stream.close()
            self._stream = None


def unpack(parts: Path, folder: Path, say: Callable[[str], None] = lambda _: None) -> Path:
    """Unpack the archive in the folder ``parts`` into the new folder ``folder``.

    Raises:
        UnpackError: A part is missing or damaged, or the folder is there. Nothing is left in the latter case.

    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UnpackError(f"{folder} exists; name a folder that is new or empty")
    paths = check_parts(parts)
    new = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    try:
        new.mkdir(parents=True)
        with tarfile.open(fileobj=io.BufferedReader(Parts(paths), 1 << 20), mode="r|xz") as archive:
            archive.extractall(new, filter="data")
        say("extracted")
        manifest = json.loads((new / MANIFEST).read_text("utf-8"))
        compile_sources(new)
        say("compiled")
        for tree in dict.fromkeys(manifest["trees"].values()):
            complete(new / "base", new / "trees" / tree)
        if folder.exists():
            folder.rmdir()
        new.rename(folder)
    except (OSError, tarfile.TarError, EOFError) as error:
        shutil.rmtree(new, ignore_errors=True)
        raise UnpackError(f"cannot unpack into {folder}: {error}") from None
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    return folder


def check_parts(parts: Path) -> list[Path]:
    """The parts in order, after a look at their content.

    Raises:
        UnpackError: One is missing or damaged.

    """
    try:
        index = json.loads((parts / INDEX).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UnpackError(f"{parts} holds no packed environment: {error}") from None
    if index.get("schema") != SCHEMA:
        raise UnpackError(f"{parts / INDEX} was written by another version of vllm-series")
    paths = []
    for part in index["parts"]:
        path = parts / part["name"]
        if not path.is_file():
            raise UnpackError(f"{path} is missing")
        with path.open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != part["sha256"]:
                raise UnpackError(f"{path} is damaged; copy it again")
        paths.append(path)
    return paths


def compile_sources(new: Path) -> None:
    """Byte-compile what all trees share, on every CPU; only speed depends on it."""
    folders = [str(new / name) for name in ("base", "site") if (new / name).is_dir()]
    command = [sys.executable, "-I", "-m", "compileall", "-qq", "-j0", *folders]
    subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL)


def complete(base: Path, tree: Path) -> None:
    """Link into a tree every file of the base that it neither has nor lacks."""
    removed = set(json.loads((tree / REMOVED).read_text("utf-8")))
    (tree / REMOVED).unlink()
    own = {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}
    for path in _files(base):
        name = path.relative_to(base).as_posix()
        source = _source(name)
        if name in own or source in own or source in removed:
            continue
        target = tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, target)


def _files(folder: Path) -> Iterator[Path]:
    for here, _, names in os.walk(folder):
        for name in names:
            yield Path(here) / name


def _source(name: str) -> str:
    """The source file of a compiled one; any other name is its own."""
    folder, found, leaf = name.rpartition("__pycache__/")
    return f"{folder}{leaf.split('.')[0]}.py" if found else name


def main() -> int:
    """Unpack; exit 5 if that cannot be done."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    try:
        unpack(args.parts, args.folder.absolute())
    except UnpackError as error:
        sys.stderr.write(f"error: {error}\n")
        return 5
    return 0


if __name__ == "__main__":
    sys.exit(main())
