# SPDX-License-Identifier: Apache-2.0
"""Unpack what ``vllm-series env pack`` packed: ``python3 unpack.py PARTS FOLDER``.

This file travels with the archive, and needs Python's standard library alone. The archive holds

* ``base/``: the files of the official wheel that are needed, and its compiled libraries;
* ``trees/ID/``: of each tree, the files that differ from the base, with ``removed.json``;
* ``site/``: Python packages that the machine lacks;
* ``project/``: this project's tests and what they need.

Here each tree becomes a whole folder again, made of links to the base.
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
from collections.abc import Callable
from pathlib import Path, PurePosixPath

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
    """Give a tree everything of the base that it neither has nor lacks.

    A folder in which nothing differs is one symbolic link, and other files are hard links.
    """
    removed = set(json.loads((tree / REMOVED).read_text("utf-8")))
    (tree / REMOVED).unlink()
    own = {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}
    changed = own | removed
    mixed = {str(folder) for name in changed for folder in PurePosixPath(name).parents}
    _link(base, tree, PurePosixPath(), changed, mixed)


def _link(base: Path, tree: Path, folder: PurePosixPath, changed: set[str], mixed: set[str]) -> None:
    (tree / folder).mkdir(parents=True, exist_ok=True)
    for entry in os.scandir(base / folder):
        name = folder / entry.name
        if not entry.is_dir():
            if str(name) not in changed:
                os.link(entry.path, tree / name)
        elif entry.name == "__pycache__":
            _link_compiled(base, tree, name, changed)
        elif str(name) in mixed:
            _link(base, tree, name, changed, mixed)
        else:
            (tree / name).symlink_to(os.path.relpath(base / name, tree / folder))


def _link_compiled(base: Path, tree: Path, folder: PurePosixPath, changed: set[str]) -> None:
    """Link the compiled files, but for those of sources that differ: these will be compiled anew."""
    (tree / folder).mkdir(exist_ok=True)
    for entry in os.scandir(base / folder):
        source = folder.parent / f"{entry.name.split('.')[0]}.py"
        if str(source) not in changed:
            os.link(entry.path, tree / folder / entry.name)


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
