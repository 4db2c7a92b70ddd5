# SPDX-License-Identifier: Apache-2.0
"""The files of a commit, with changes on top that exist in memory alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from vllm_series.errors import EnvironmentFaultError
from vllm_series.git import Repository, TreeEntry, blob_id


@dataclass(frozen=True)
class File:
    """A file: git's mode (octal text) and content."""

    mode: str
    content: bytes

    @cached_property
    def oid(self) -> str:
        """The blob's id."""
        return blob_id(self.content)


class Source(Protocol):
    """Where the unchanged files come from."""

    def get(self, path: str) -> File | None:
        """The file at ``path``, or None."""

    def link_above(self, path: str) -> str | None:
        """The parent of ``path`` that is a symbolic link or a file, or None."""

    def files_below(self, path: str) -> Iterable[str]:
        """Every file of the folder ``path``; none if it is no folder."""


def _parents(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: i + 1]) for i in range(len(parts))]


@dataclass
class CommitSource:
    """The files of one commit, read in as few git calls as possible."""

    repository: Repository
    commit: str
    _entries: dict[str, TreeEntry | None] = field(default_factory=dict)
    _contents: dict[str, bytes] = field(default_factory=dict)

    def load(self, paths: Iterable[str]) -> None:
        """Read ``paths`` ahead."""
        wanted = {p for path in paths for p in (path, *_parents(path))} - self._entries.keys()
        if not wanted:
            return
        found = self.repository.entries(self.commit, sorted(wanted))
        self._entries.update((path, found.get(path)) for path in wanted)
        blobs = {e.oid for e in found.values() if e.kind == "blob"} - self._contents.keys()
        self._contents.update(self.repository.objects(sorted(blobs)))

    def get(self, path: str) -> File | None:
        """The file at ``path``, or None."""
        self.load([path])
        entry = self._entries[path]
        if entry is None or entry.kind != "blob":
            return None
        content = self._contents.get(entry.oid)
        if content is None:
            raise EnvironmentFaultError(
                f"the content of {path} is missing in {self.repository.where}",
                hint=self.repository.deepen_hint(),
            )
        return File(entry.mode, content)

    def link_above(self, path: str) -> str | None:
        """The parent of ``path`` that is a symbolic link or a file, or None."""
        self.load([path])
        for parent in _parents(path):
            entry = self._entries[parent]
            if entry is not None and entry.kind != "tree":
                return parent
        return None

    def files_below(self, path: str) -> Iterable[str]:
        """Every file of the folder ``path``; none if it is no folder."""
        self.load([path])
        entry = self._entries[path]
        below = f"{path}/"
        if entry is not None and entry.kind == "commit":
            return [path]
        # git does not list a folder of which it is asked for a file as well.
        if entry is None and not any(e and p.startswith(below) for p, e in self._entries.items()):
            return []
        return self.repository.all_entries(self.commit, path)


@dataclass(frozen=True)
class Snapshot:
    """A source with changes; a change of None means that the path is gone."""

    source: Source
    changed: Mapping[str, File | None] = field(default_factory=dict)

    @classmethod
    def at(cls, repository: Repository, commit: str, paths: Iterable[str]) -> Snapshot:
        """The files of a commit, with ``paths`` read ahead."""
        source = CommitSource(repository, commit)
        source.load(paths)
        return cls(source)

    def get(self, path: str) -> File | None:
        """The file at ``path``, or None."""
        if path in self.changed:
            return self.changed[path]
        return self.source.get(path)

    def link_above(self, path: str) -> str | None:
        """The parent of ``path`` that is no folder, or None."""
        for parent in _parents(path):
            if self.changed.get(parent) is not None:
                return parent
        found = self.source.link_above(path)
        return None if found in self.changed else found

    def has_below(self, path: str) -> bool:
        """Whether ``path`` is a folder with files in it."""
        if any(file and p.startswith(f"{path}/") for p, file in self.changed.items()):
            return True
        return any(p not in self.changed for p in self.source.files_below(path))

    def with_changes(self, changes: Mapping[str, File | None]) -> Snapshot:
        """The snapshot after ``changes``."""
        return Snapshot(self.source, {**self.changed, **changes})
