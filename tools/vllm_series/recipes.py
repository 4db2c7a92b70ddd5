# SPDX-License-Identifier: Apache-2.0
"""What the verbs on the series make of its patches, for :func:`vllm_series.restack.restack`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from vllm_series.bases import Base
from vllm_series.dependencies import closure, dependents
from vllm_series.errors import PreconditionError
from vllm_series.patchfile import Patch
from vllm_series.restack import Item, Recipe


def ordered(names: Sequence[str]) -> Recipe:
    """The patches that are named, in that order: for ``move`` and ``drop``."""

    def recipe(_: Base, patches: Sequence[Patch]) -> Sequence[Item]:
        here = {patch.name: patch for patch in patches}
        return [Item.of(here[name]) for name in names if name in here]

    return recipe


def inserted(new: Sequence[Patch], names: Sequence[str]) -> Recipe:
    """The patches and new ones, in the order of ``names``; not every base has every patch."""

    def recipe(_: Base, patches: Sequence[Patch]) -> Sequence[Item]:
        here = {patch.name: Item.of(patch) for patch in (*patches, *new)}
        return [here[name] for name in names if name in here]

    return recipe


def replaced(new: Patch, bases: Collection[Base]) -> Recipe:
    """The patches with another text of one of them on some bases."""

    def recipe(base: Base, patches: Sequence[Patch]) -> Sequence[Item]:
        return [Item.of(new if p.name == new.name and base in bases else p) for p in patches]

    return recipe


def require_foldable(patches: Sequence[Patch], order: Sequence[str], names: Sequence[str], into: str) -> None:
    """Raise if a patch would come to stand before one that it says it needs.

    Args:
        patches: The patches of a base.
        order: The names of the series as it is.
        names: The patches to be taken into ``into``.
        into: The patch that stays.

    """
    needs = {patch.name: patch.depends_on for patch in patches}
    behind = order[order.index(into) + 1 :]
    for name, wanted in needs.items():
        if name in names:
            late = [need for need in wanted if need in behind and need not in names]
            if late:
                more = closure(needs, names)
                every = [need for need in behind if need in more]
                raise PreconditionError(
                    f"{name} says Depends-on: {late[0]}, which stands behind {into}",
                    hint=f"fold {', '.join(every)} too, or fold --into {every[-1]}",
                    patch=name,
                )
        elif name != into and name not in behind:
            early = [need for need in wanted if need in names]
            if early:
                every = [n for n in dependents(needs, names) if n != into and n not in behind]
                raise PreconditionError(
                    f"{name} says Depends-on: {early[0]}, and {into} stands behind it",
                    hint=f"fold {', '.join(every)} too, or fold --into an earlier patch",
                    patch=name,
                )


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
