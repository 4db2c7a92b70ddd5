# SPDX-License-Identifier: Apache-2.0
"""vLLM's files as they lie on disk: a checkout, an unpacked source tree, or what pip has installed."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from vllm_series.git import Repository, TreeEntry, blob_id, path_bytes, path_text
from vllm_series.installed import PACKAGE, Installed, sha256_of
from vllm_series.releases import is_generated
from vllm_series.tree import File

LINK = "120000"
#: What a build leaves in a source tree.
_BUILT = (".so", ".pyc", ".pyo")


@dataclass(frozen=True)
class Foreign:
    """A file that neither the base nor a patch accounts for.

    Attributes:
        path: Relative to the top level of vLLM.
        kind: ``edited``, ``added`` or ``deleted``.
        detail: What is known about it, one line; may be empty.

    """

    path: str
    kind: str
    detail: str = ""


class Place(Protocol):
    """Where vLLM's files lie; also a :class:`vllm_series.tree.Source`."""

    @property
    def root(self) -> Path:
        """The folder that paths are relative to."""

    @property
    def kind(self) -> str:
        """``checkout``, ``tree`` or ``installed``."""

    def covers(self, path: str) -> bool:
        """Whether a file of the base would be here at all."""

    def get(self, path: str) -> File | None:
        """The file at ``path``, or None."""

    def link_above(self, path: str) -> str | None:
        """The parent of ``path`` that is no folder, or None."""

    def files_below(self, path: str) -> Iterable[str]:
        """Every file of the folder ``path``."""

    def foreign(self, base: Mapping[str, TreeEntry], known: Collection[str]) -> Iterator[Foreign]:
        """What differs from the base outside the paths ``known``."""


@dataclass(frozen=True)
class Folder:
    """Files below a folder, read as git would store them."""

    root: Path
    kind: str = "tree"

    def covers(self, path: str) -> bool:
        """Every file of the base is expected."""
        return True

    def _at(self, path: str) -> Path:
        return self.root / os.fsdecode(path_bytes(path))

    def get(self, path: str) -> File | None:
        """The file at ``path``, or None."""
        place = self._at(path)
        try:
            mode = place.lstat().st_mode
            if stat.S_ISLNK(mode):
                return File(LINK, os.fsencode(place.readlink()))
            if not stat.S_ISREG(mode):
                return None
            return File("100755" if mode & 0o100 else "100644", place.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None

    def link_above(self, path: str) -> str | None:
        """The parent of ``path`` that is a symbolic link or a file, or None."""
        parts = path.split("/")[:-1]
        for count in range(1, len(parts) + 1):
            parent = "/".join(parts[:count])
            place = self._at(parent)
            if place.is_symlink() or place.is_file():
                return parent
        return None

    def files_below(self, path: str) -> Iterable[str]:
        """Every file of the folder ``path``."""
        for folder, names, leaves in os.walk(self._at(path)):
            names[:] = sorted(name for name in names if name not in ("__pycache__", ".git"))
            links = [name for name in names if Path(folder, name).is_symlink()]
            for leaf in sorted([*leaves, *links]):
                relative = os.path.relpath(os.path.join(folder, leaf), self.root)  # noqa: PTH118
                yield path_text(os.fsencode(relative))

    def foreign(self, base: Mapping[str, TreeEntry], known: Collection[str]) -> Iterator[Foreign]:
        """What differs from the base outside the paths ``known``; build products do not count."""
        yield from self._edited(base, known)
        for path in self._others():
            if path in base or path in known or path.endswith(_BUILT):
                continue
            if not is_generated(path, self._small(path)):
                yield Foreign(path, "added")

    def _small(self, path: str) -> bytes:
        file = self.get(path) if path == "setup.cfg" else None
        return file.content if file else b""

    def _edited(self, base: Mapping[str, TreeEntry], known: Collection[str]) -> Iterator[Foreign]:
        for path, entry in base.items():
            if path in known or entry.kind != "blob":
                continue
            file = self.get(path)
            if file is None:
                yield Foreign(path, "deleted")
            elif file.oid != entry.oid:
                yield Foreign(path, "edited")
            elif file.mode != entry.mode:
                yield Foreign(path, "edited", f"its mode is {file.mode}, not {entry.mode}")

    def _others(self) -> Iterable[str]:
        return self.files_below("")


@dataclass(frozen=True)
class Checkout(Folder):
    """The working tree of a git repository; what it ignores does not count."""

    kind: str = "checkout"
    repository: Repository = field(kw_only=True)

    def _others(self) -> Iterable[str]:
        return self.repository.listed_files()


@dataclass(frozen=True)
class Package(Folder):
    """The package that pip has installed; tests, documents and C++ sources are not in it."""

    kind: str = "installed"
    installed: Installed = field(kw_only=True)
    base: Mapping[str, TreeEntry] = field(kw_only=True)

    def covers(self, path: str) -> bool:
        """What lies in the package, unless the wheel leaves it out."""
        if not path.startswith(f"{PACKAGE}/"):
            return False
        return path in self.installed.record or path not in self.base

    def get(self, path: str) -> File | None:
        """The file at ``path``, with the mode of the base: installers do not keep it, and some make links."""
        place = self._at(path)
        if not place.is_file():
            return None
        return File(self.base[path].mode if path in self.base else "100644", place.read_bytes())

    def link_above(self, path: str) -> str | None:
        """None: where an installer has put a link, what it leads to is what Python loads."""
        return None

    def foreign(self, base: Mapping[str, TreeEntry], known: Collection[str]) -> Iterator[Foreign]:
        """What differs from the wheel, or from the release if that is what is there."""
        record = self.installed.record
        prefix = f"{PACKAGE}/"
        for path, row in record.items():
            if path in known or not path.startswith(prefix) or not row.sha256:
                continue
            place = self.root / path
            if not place.is_file():
                yield Foreign(path, "deleted")
            elif row.size not in (None, place.stat().st_size) or sha256_of(place) != row.sha256:
                yield Foreign(path, "edited")
            elif path in base and path.endswith(".py") and blob_id(place.read_bytes()) != base[path].oid:
                yield Foreign(path, "edited", "not the release's file, whatever RECORD says")
        for path in self.files_below(PACKAGE):
            if path not in record and path not in known:
                yield Foreign(path, "added")
