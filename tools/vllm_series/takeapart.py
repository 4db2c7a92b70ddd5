# SPDX-License-Identifier: Apache-2.0
"""Take patches back from files on disk, part by part: what was there, and what is left."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from vllm_series.diff import Action, FileChange
from vllm_series.patchfile import Patch
from vllm_series.place import place as put
from vllm_series.places import Foreign, Place
from vllm_series.stack import apply_changes
from vllm_series.tree import File, Snapshot


class State(StrEnum):
    """What became of a patch, or of its part in one file."""

    APPLIED = "applied"
    MISSING = "missing"
    PARTLY = "partly"
    OBSCURED = "obscured"
    UNSEEN = "unseen"
    NOT_NEEDED = "not-needed"
    INAPPLICABLE = "inapplicable"


@dataclass(frozen=True)
class Part:
    """What became of a patch's change of one file: so many of its hunks are there."""

    path: str
    state: State
    present: int
    hunks: int


def same(place: Place, one: File | None, other: File | None) -> bool:
    """Whether two files are the same; what pip has installed does not keep modes."""
    if one is None or other is None or place.kind != "installed":
        return one == other
    return one.content == other.content


def untouched(patch: Patch, place: Place, there: bool) -> tuple[Part, ...]:
    """The parts of a patch that is known to be there as a whole, or not at all."""
    state = State.APPLIED if there else State.MISSING
    return tuple(
        Part(c.path, state if _seen(place, c) else State.UNSEEN, len(c.hunks) if there else 0, len(c.hunks))
        for c in patch.changes
    )


def _seen(place: Place, change: FileChange) -> bool:
    mode_only = not change.hunks and change.binary is None and change.action is Action.MODIFY
    if place.kind == "installed" and mode_only:
        return False
    return any(place.covers(path) for path in (change.old_path, change.new_path) if path)


def take_apart(
    base: Snapshot, disk: Snapshot, place: Place, touched: Sequence[str], patches: Sequence[Patch]
) -> tuple[dict[str, tuple[Part, ...]], list[Foreign]]:
    """Take the patches back from the files: what was there of each, and the files that are left over."""
    rest = disk
    parts: dict[str, tuple[Part, ...]] = {}
    for patch in reversed(patches):
        found = []
        for change in reversed(patch.changes):
            if not _seen(place, change):
                found.append(Part(change.path, State.UNSEEN, 0, len(change.hunks)))
                continue
            part, changes = _take_back(base, rest, change)
            rest = rest.with_changes(changes)
            found.append(part)
        parts[patch.name] = tuple(reversed(found))
    odd = {path for path in touched if not same(place, rest.get(path), base.get(path))}
    # A hunk that lies elsewhere than where it lands by the rules is taken back as well: put all on again.
    again = base
    for patch in patches:
        there = {part.path for part in parts[patch.name] if part.state is State.APPLIED}
        _, changes = apply_changes(again, [change for change in patch.changes if change.path in there])
        again = again.with_changes(changes)
    partly = {part.path for row in parts.values() for part in row if part.state is State.PARTLY}
    odd |= {p for p in touched if p not in partly and not same(place, again.get(p), disk.get(p))}
    clear = {name: tuple(_clear(part, odd) for part in row) for name, row in parts.items()}
    return clear, [_foreign(path, base, disk) for path in sorted(odd)]


def _clear(part: Part, odd: Collection[str]) -> Part:
    """A part that fits neither way is simply missing where nothing is left over: it needs another one."""
    if part.state is State.OBSCURED and part.path not in odd:
        return replace(part, state=State.MISSING)
    return part


def _foreign(path: str, base: Snapshot, disk: Snapshot) -> Foreign:
    old, new = base.get(path), disk.get(path)
    kind = "deleted" if new is None else "added" if old is None else "edited"
    return Foreign(path, kind, "a file of the patches, with changes of nobody's")


def _take_back(base: Snapshot, disk: Snapshot, change: FileChange) -> tuple[Part, dict[str, File | None]]:
    hunks = len(change.hunks)
    if change.action is Action.COPY:
        old, new = disk.get(change.old_path), disk.get(change.new_path)
        if old is not None and new is not None and put(old.content, change.hunks)[0] == new.content:
            return Part(change.path, State.APPLIED, hunks, hunks), {change.new_path: None}
        return Part(change.path, State.MISSING if new is None else State.OBSCURED, 0, hunks), {}
    results, changes = apply_changes(disk, [change.reversed()])
    if results[0].ok and changes:
        return Part(change.path, State.APPLIED, hunks, hunks), changes
    file = disk.get(change.path)
    if file is None:
        state = State.OBSCURED if base.get(change.path) is not None else State.MISSING
        return Part(change.path, state, 0, hunks), {}
    content, landings = put(file.content, [hunk.reversed() for hunk in change.hunks])
    present = sum(landing is not None for landing in landings)
    if present:
        return Part(change.path, State.PARTLY, present, hunks), {change.path: File(file.mode, content)}
    forward, _ = apply_changes(disk, [change])
    return Part(change.path, State.MISSING if forward[0].ok else State.OBSCURED, 0, hunks), {}
