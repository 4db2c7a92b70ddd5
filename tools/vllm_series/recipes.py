# SPDX-License-Identifier: Apache-2.0
"""What the verbs on the series make of its patches, for :func:`vllm_series.restack.restack`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from vllm_series.bases import Base
from vllm_series.diff import Action, FileChange
from vllm_series.errors import UsageError
from vllm_series.patchfile import Patch
from vllm_series.restack import Item, Recipe


def ordered(names: Sequence[str]) -> Recipe:
    """The patches that are named, in that order: for ``move`` and ``drop``."""

    def recipe(_: Base, patches: Sequence[Patch]) -> Sequence[Item]:
        here = {patch.name: patch for patch in patches}
        return [Item.of(here[name]) for name in names if name in here]

    return recipe


def inserted(new: Sequence[Patch], before: str | None) -> Recipe:
    """The patches with others before the patch ``before``, or at the end."""

    def recipe(_: Base, patches: Sequence[Patch]) -> Sequence[Item]:
        found = [Item.of(patch) for patch in patches]
        at = next((n for n, item in enumerate(found) if item.patch.name == before), len(found))
        return [*found[:at], *map(Item.of, new), *found[at:]]

    return recipe


def replaced(new: Patch, bases: Collection[Base]) -> Recipe:
    """The patches with another text of one of them on some bases."""

    def recipe(base: Base, patches: Sequence[Patch]) -> Sequence[Item]:
        return [Item.of(new if p.name == new.name and base in bases else p) for p in patches]

    return recipe


def folded(names: Sequence[str], into: str) -> Recipe:
    """The patches ``names`` taken into ``into``, whose message stays; their authors are named."""
    gone = {*names, into}

    def recipe(_: Base, patches: Sequence[Patch]) -> Sequence[Item]:
        parts = [patch for patch in patches if patch.name in gone]
        found = []
        for patch in patches:
            if patch.name == into:
                # In the order of the series: a part may need the one before it.
                whole = credited(patch, [part for part in parts if part.name != into])
                needs = [need for part in parts for need in part.depends_on if need not in gone]
                found.append(Item(needing(whole, needs), tuple(part.changes for part in parts)))
            elif patch.name not in names:
                needs = [into if need in gone else need for need in patch.depends_on]
                found.append(Item(needing(patch, needs), (patch.changes,)))
        return found

    return recipe


def needing(patch: Patch, needs: Sequence[str]) -> Patch:
    """The patch with other ``Depends-on`` trailers."""
    wanted = list(dict.fromkeys(needs))
    if wanted == list(patch.depends_on):
        return patch
    lines = [line for line in patch.body.split("\n") if not line.startswith("Depends-on:")]
    return replace(patch, body="\n".join([*lines, *(f"Depends-on: {need}" for need in wanted)]))


def credited(patch: Patch, others: Sequence[Patch]) -> Patch:
    """The patch with a ``Co-authored-by`` trailer for every other author."""
    have = {value.lower() for value in patch.trailer("Co-authored-by")}
    lines = []
    for other in others:
        person = f"{other.author.name} <{other.author.email}>"
        if other.author.email != patch.author.email and person.lower() not in have:
            have.add(person.lower())
            lines.append(f"Co-authored-by: {person}")
    return replace(patch, body="\n".join([patch.body, *lines])) if lines else patch


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
    """The patch ``name`` in two: the chosen parts become ``new``, before or behind the rest."""

    def recipe(base: Base, patches: Sequence[Patch]) -> Sequence[Item]:
        found: list[Item] = []
        for patch in patches:
            if patch.name != name:
                found.append(Item.of(patch))
                continue
            taken, left = _parted(patch, chosen, base)
            pair = [Item(renamed(patch, new, title), (taken,)), Item(patch, (left,))]
            found += pair if first else reversed(pair)
        return found

    return recipe


def _parted(
    patch: Patch, chosen: Chosen, base: Base
) -> tuple[tuple[FileChange, ...], tuple[FileChange, ...]]:
    paths = {change.path for change in patch.changes}
    for path in chosen.files:
        if not any(Chosen([path]).has(known) for known in paths):
            raise _unknown(patch, base, f"does not change {path}", paths)
    for path, number in chosen.hunks:
        there = sum(len(change.hunks) for change in patch.changes if change.path == path)
        if not 1 <= number <= there:
            raise _unknown(patch, base, f"has no hunk {number} in {path} (it has {there})", paths)
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
            hint=f"see its files and hunks: vllm-series show {patch.name} --patch",
        )
    return tuple(taken), tuple(left)


def _unknown(patch: Patch, base: Base, what: str, paths: Collection[str]) -> UsageError:
    return UsageError(f"{patch.name} {what} on {base.ref}", hint="it changes " + ", ".join(sorted(paths)))


def renamed(patch: Patch, name: str, title: str) -> Patch:
    """The patch with another name and title; its other trailers stay."""
    body = "\n".join(
        f"Patch-Name: {name}" if line.startswith("Patch-Name:") else line for line in patch.body.split("\n")
    )
    return replace(patch, name=name, subject=title, body=body)
