# SPDX-License-Identifier: Apache-2.0
"""One patch made into two, by files or hunks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from vllm_series.bases import Base
from vllm_series.diff import Action, FileChange
from vllm_series.errors import UsageError
from vllm_series.patchfile import Patch
from vllm_series.restack import Item, Recipe


@dataclass(frozen=True)
class Chosen:
    """Which parts of a patch go into the new one.

    Attributes:
        files: Whole files, or folders.
        hunks: Hunks: path and number, counted from 1 in the file's part of the patch.

    """

    files: Collection[str] = ()
    hunks: Collection[tuple[str, int]] = ()

    def has(self, path: str) -> bool:
        """Whether the whole file ``path`` is chosen."""
        return any(path == name or path.startswith(f"{name.rstrip('/')}/") for name in self.files)


def split(name: str, new: str, chosen: Chosen, title: str, *, first: bool) -> Recipe:
    """The patch ``name`` in two: the chosen parts become ``new``, before or behind the rest.

    Hunks are counted in the text for the pinned base, which is asked for first; in another text they are
    those that change the same lines.
    """
    wanted: dict[tuple[str, int], Marks] = {}

    def recipe(base: Base, patches: Sequence[Patch]) -> Sequence[Item]:
        found: list[Item] = []
        for patch in patches:
            if patch.name != name:
                found.append(Item.of(patch))
                continue
            here = _same_hunks(patch, chosen, wanted, base)
            taken, left = _parted(patch, here, base)
            pair = [Item(renamed(patch, new, title), (taken,)), Item(patch, (left,))]
            found += pair if first else reversed(pair)
        return found

    return recipe


#: The lines that a hunk takes out and puts in.
Marks = tuple[tuple[str, bytes], ...]


def _marks(change: FileChange, number: int) -> Marks:
    return tuple((line.tag, line.content) for line in change.hunks[number - 1].lines if line.tag != " ")


def _same_hunks(patch: Patch, chosen: Chosen, wanted: dict[tuple[str, int], Marks], base: Base) -> Chosen:
    """The chosen hunks as they are counted in this text of the patch."""
    changes = {change.path: change for change in patch.changes}
    hunks = []
    for path, number in chosen.hunks:
        change = changes.get(path)
        if (path, number) not in wanted:
            if change is None or not 1 <= number <= len(change.hunks):
                there = len(change.hunks) if change else 0
                raise UsageError(
                    f"{patch.name} has no hunk {number} in {path} on {base.ref} (it has {there})",
                    hint=f"see: vllm-series show {patch.name} --patch",
                )
            wanted[path, number] = _marks(change, number)
        numbers = range(1, len(change.hunks) + 1) if change else ()
        same = [n for n in numbers if change and _marks(change, n) == wanted[path, number]]
        if number in same:
            same = [number]
        if len(same) != 1:
            many = len(same) or "no"
            raise UsageError(
                f"the text of {patch.name} for {base.ref} has {many} hunks like hunk {number} of {path}",
                hint=f"split whole files, or mend that text: vllm-series edit {patch.name} --onto {base.ref}",
            )
        hunks.append((path, same[0]))
    return Chosen(chosen.files, tuple(hunks))


def _parted(
    patch: Patch, chosen: Chosen, base: Base
) -> tuple[tuple[FileChange, ...], tuple[FileChange, ...]]:
    taken, left = [], []
    for change in patch.changes:
        numbers = {number for path, number in chosen.hunks if path == change.path}
        if chosen.has(change.path) or (numbers and len(numbers) == len(change.hunks)):
            taken.append(change)
        elif not numbers:
            left.append(change)
        elif change.action is not Action.MODIFY:
            raise UsageError(
                f"{change.path} is a file that {patch.name} {change.action}s: its hunks cannot be parted",
                hint=f"name the whole file: {change.path}",
            )
        else:
            hunks = list(enumerate(change.hunks, 1))
            some = tuple(hunk for number, hunk in hunks if number in numbers)
            rest = tuple(hunk for number, hunk in hunks if number not in numbers)
            taken.append(replace(change, hunks=some, new_mode="", old_id="", new_id=""))
            left.append(replace(change, hunks=rest, old_id="", new_id=""))
    if not taken or not left:
        raise UsageError(
            f"{'all' if taken else 'nothing'} of {patch.name} was chosen on {base.ref}",
            hint="it changes " + ", ".join(sorted(change.path for change in patch.changes)),
        )
    return tuple(taken), tuple(left)


def renamed(patch: Patch, name: str, title: str) -> Patch:
    """The patch with another name and title; its other trailers stay."""
    body = "\n".join(
        f"Patch-Name: {name}" if line.startswith("Patch-Name:") else line for line in patch.body.split("\n")
    )
    return replace(patch, name=name, subject=title, body=body)
