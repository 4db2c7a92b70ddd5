# SPDX-License-Identifier: Apache-2.0
"""Which change of upstream's a hunk collides with."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from vllm_series import git
from vllm_series.bases import version_of
from vllm_series.linediff import LineChange, parse_line_diff
from vllm_series.patchfile import Patch
from vllm_series.place import split_lines
from vllm_series.rebasing import Carry
from vllm_series.stack import apply_patch
from vllm_series.tree import Snapshot
from vllm_series.verdict import positions


@dataclass(frozen=True)
class UpstreamChange:
    """What upstream did to the lines of one hunk.

    Attributes:
        path: The file.
        number: The hunk, from 1.
        line: Where the hunk begins on its own base, from 1.
        sources: The commits, or the releases between which it happened, as people call them.
        changes: The replaced lines; empty if the file is gone.

    """

    path: str
    number: int
    line: int
    sources: tuple[str, ...]
    changes: tuple[LineChange, ...]


def find_upstream_changes(
    carry: Carry, snapshot: Snapshot, patch: Patch, hunks: Iterable[tuple[str, int]]
) -> list[UpstreamChange]:
    """What upstream did to the lines of some hunks.

    Args:
        carry: The rebase.
        snapshot: What there is of the new stack.
        patch: The patch that collides.
        hunks: Path and number of the hunks in question.

    """
    wanted = set(hunks)
    before = carry.before[patch.name]
    found = []
    for result in apply_patch(before, patch).files:
        change = result.change
        if not any(path == change.path for path, _ in wanted):
            continue
        old = before.get(change.old_path) if change.old_path else None
        new = snapshot.get(change.old_path) if change.old_path else snapshot.get(change.new_path)
        theirs = _line_changes(old.content if old else b"", new.content if new else b"") if new else []
        for number, (hunk, _, at) in enumerate(positions(before, result), 1):
            if (change.path, number) not in wanted or at is None:
                continue
            end = at + len(hunk.old)
            touching = tuple(_clipped(c, at, end) for c in theirs if _touches(c, at, end))
            lines = {line for c in touching for line in c.lines if len(line[1].strip()) > 3}
            if new is None:
                lines = {("-", line) for line in split_lines(old.content if old else b"") if line.strip()}
            sources = tuple(_sources(carry, change.old_path or change.new_path, lines))
            found.append(UpstreamChange(change.path, number, at + 1, sources, touching))
    return found


def _line_changes(old: bytes, new: bytes) -> list[LineChange]:
    with tempfile.TemporaryDirectory(prefix="vllm-series-diff-") as folder:
        return parse_line_diff(git.line_changes(old, new, Path(folder)))


def _touches(change: LineChange, start: int, end: int) -> bool:
    return change.at < end and change.at + max(len(change.removed), 1) > start


def _clipped(change: LineChange, start: int, end: int) -> LineChange:
    """The part of a change whose old lines lie between two indices."""
    first = max(start - change.at, 0)
    removed = change.removed[first : max(end - change.at, 0)]
    return LineChange(change.path, change.at + first, removed, change.added)


def _sources(carry: Carry, path: str, lines: set[tuple[str, bytes]]) -> Iterable[str]:
    """The commits or pairs of releases that made one of the ``lines`` of a file come or go."""
    for label, diff in _history(carry, path):
        made = {line for change in parse_line_diff(diff) for line in change.lines}
        if made & lines:
            yield label


def _history(carry: Carry, path: str) -> Sequence[tuple[str, bytes]]:
    target = carry.target
    source = target.serving.ref
    if target.repository != carry.store.repository:
        since = target.repository.find_commit(f"refs/tags/{source}")
        if since is not None:
            rows = target.repository.path_history(since, target.commit, path)
            return [(f"{commit[:12]} {subject}", diff) for commit, subject, diff in rows]
    repository = carry.store.repository
    low, high = sorted((version_of(source) or (), version_of(target.release) or ()))
    tags = [tag for tag in repository.release_tags() if low <= (version_of(tag) or ()) <= high]
    tags.sort(key=lambda tag: version_of(tag) or (), reverse=(version_of(source) or ()) == high)
    return [(f"{a} to {b}", repository.line_diff(a, b, [path])) for a, b in pairwise(tags)]
