# SPDX-License-Identifier: Apache-2.0
"""Apply patches to a snapshot, one on top of the other, in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vllm_series import git
from vllm_series.diff import Action, FileChange, apply_binary
from vllm_series.errors import SeriesError
from vllm_series.patchfile import Patch
from vllm_series.place import Landing, place
from vllm_series.tree import File, Snapshot

LINK = "120000"

#: Finds the content of a blob id, for three-way merges.
Ancestors = Callable[[str], bytes | None]


@dataclass(frozen=True)
class FileResult:
    """What became of one file of a patch.

    Attributes:
        change: The patch's part.
        landings: Per hunk where it was placed, None where it was not.
        problem: Why the file could not be changed, empty if it was. Hunks that were not placed are
            said by ``landings`` alone.
        merged: Whether a three-way merge was needed.

    """

    change: FileChange
    landings: tuple[Landing | None, ...] = ()
    problem: str = ""
    merged: bool = False

    @property
    def ok(self) -> bool:
        """Whether the whole change is in."""
        return not self.problem and (self.merged or all(self.landings))


@dataclass(frozen=True)
class Application:
    """A patch applied to a snapshot.

    Attributes:
        patch: The patch.
        files: One result per changed file.
        changes: New content by path; to be used only if ``ok``.

    """

    patch: Patch
    files: tuple[FileResult, ...]
    changes: Mapping[str, File | None] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every file was changed."""
        return all(result.ok for result in self.files)

    @property
    def merged(self) -> bool:
        """Whether any file needed a three-way merge."""
        return any(result.merged for result in self.files)

    @property
    def offset(self) -> bool:
        """Whether any hunk landed at another line than the patch says."""
        return any(x is not None and x.offset for r in self.files for x in r.landings)

    @property
    def empty(self) -> bool:
        """Whether the patch changed nothing."""
        return not self.changes

    def first_problem(self) -> str:
        """One line on the first thing that failed."""
        for result in self.files:
            if result.problem:
                return f"{result.change.path}: {result.problem}"
            for number, landing in enumerate(result.landings, 1):
                if landing is None and not result.merged:
                    hunk = result.change.hunks[number - 1]
                    return (
                        f"{result.change.path}: hunk {number} of {len(result.landings)} "
                        f"(line {hunk.old_start}) does not match"
                    )
        return ""


def apply_patch(snapshot: Snapshot, patch: Patch, *, ancestors: Ancestors | None = None) -> Application:
    """Apply one patch.

    Args:
        snapshot: The files before.
        patch: What to apply.
        ancestors: Where to find blobs for three-way merges; None forbids merging.

    """
    results, changes = apply_changes(snapshot, patch.changes, ancestors)
    return Application(patch, tuple(results), changes)


def apply_changes(
    snapshot: Snapshot, changes: Sequence[FileChange], ancestors: Ancestors | None = None
) -> tuple[list[FileResult], dict[str, File | None]]:
    """Apply the parts of one patch: the results, and the new content by path.

    As in git, every part is made against the files before the patch, and paths that the patch itself
    removes are free: a file may become a folder or a symbolic link.
    """
    removed: dict[str, File | None] = {
        change.old_path: None for change in changes if change.action in (Action.DELETE, Action.RENAME)
    }
    rest = snapshot.with_changes(removed)
    results = []
    found: dict[str, File | None] = {}
    for change in changes:
        result, new = _apply_change(snapshot, rest, change, ancestors)
        results.append(result)
        if result.ok:
            found.update(new)
    return results, {path: file for path, file in found.items() if snapshot.get(path) != file}


def take_back(snapshot: Snapshot, patch: Patch) -> dict[str, File | None] | None:
    """The new content by path if a patch whose changes are all there is taken back, else None."""
    copies: dict[str, File | None] = {}
    for change in patch.changes:
        if change.action is Action.COPY:
            old, new = snapshot.get(change.old_path), snapshot.get(change.new_path)
            if old is None or new is None or place(old.content, change.hunks)[0] != new.content:
                return None
            copies[change.new_path] = None
    rest = [change.reversed() for change in reversed(patch.changes) if change.action is not Action.COPY]
    results, changes = apply_changes(snapshot, rest)
    if not all(result.ok for result in results):
        return None
    # A patch that changes nothing backwards either, such as a mode that is another one, is not there.
    return {**changes, **copies} or None


def _apply_change(
    snapshot: Snapshot, rest: Snapshot, change: FileChange, ancestors: Ancestors | None
) -> tuple[FileResult, dict[str, File | None]]:
    def failed(problem: str) -> tuple[FileResult, dict[str, File | None]]:
        return FileResult(change, problem=problem), {}

    old = snapshot.get(change.old_path) if change.old_path else None
    if change.old_path:
        link = snapshot.link_above(change.old_path)
        if link is not None:
            return failed(f"its parent {link} is no folder")
        if old is None:
            return failed("it does not exist")
        if change.old_mode and (change.old_mode == LINK) != (old.mode == LINK):
            return failed("it is a symbolic link" if old.mode == LINK else "it is no symbolic link")
    if change.new_path and change.new_path != change.old_path:
        link = rest.link_above(change.new_path)
        if link is not None:
            return failed(f"its parent {link} is no folder")
        if rest.get(change.new_path):
            return failed("it exists already")
        if rest.has_below(change.new_path):
            return failed("it is a folder")
    before = old.content if old else b""
    landings: tuple[Landing | None, ...] = ()
    merged = False
    if change.binary is not None:
        if change.old_id and old is not None and old.oid != change.old_id:
            return failed("its binary content is another one")
        try:
            content = apply_binary(change.binary[0], before)
        except SeriesError as error:
            return failed(error.message)
    else:
        content, placed = place(before, change.hunks)
        landings = tuple(placed)
        if None in landings and ancestors is not None and old is not None:
            joined = _merge(before, change, ancestors)
            if joined is not None:
                content, merged = joined, True
    mode = change.new_mode or (old.mode if old else "100644")
    result = FileResult(change, landings, merged=merged)
    if not result.ok:
        return result, {}
    if change.action is Action.DELETE:
        if content:
            return failed("it has lines that the patch does not delete")
        return result, {change.old_path: None}
    new: dict[str, File | None] = {change.new_path: File(mode, content)}
    if change.action is Action.RENAME:
        new[change.old_path] = None
    return result, new


def _merge(before: bytes, change: FileChange, ancestors: Ancestors) -> bytes | None:
    base = ancestors(change.old_id) if change.old_id else None
    if base is None:
        return None
    theirs, landings = place(base, change.hunks)
    if None in landings:
        return None
    import tempfile

    with tempfile.TemporaryDirectory(prefix="vllm-series-merge-") as folder:
        return git.merge_file(before, base, theirs, Path(folder))


def apply_all(
    snapshot: Snapshot, patches: Sequence[Patch], *, ancestors: Ancestors | None = None
) -> tuple[list[Application], Snapshot]:
    """Apply patches in order up to the first that fails.

    Returns:
        The applications, the last of which may have failed, and the files after the good ones.

    """
    applications = []
    for patch in patches:
        application = apply_patch(snapshot, patch, ancestors=ancestors)
        applications.append(application)
        if not application.ok:
            break
        snapshot = snapshot.with_changes(application.changes)
    return applications, snapshot
