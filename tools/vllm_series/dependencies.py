# SPDX-License-Identifier: Apache-2.0
"""Which patches a patch needs.

Two kinds: declared ones (``Depends-on:`` trailers, for needs that git cannot see) and textual ones, found
by applying subsets of the series.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vllm_series.errors import UsageError
from vllm_series.patchfile import Patch
from vllm_series.stack import apply_all
from vllm_series.tree import Snapshot


def _applies(snapshot: Snapshot, patches: Sequence[Patch]) -> bool:
    applications, _ = apply_all(snapshot, patches)
    return all(application.ok for application in applications)


def textual(snapshot: Snapshot, patches: Sequence[Patch], name: str) -> tuple[str, ...]:
    """The smallest set of earlier patches without which ``name`` does not apply.

    A patch that applies with none of them needs none. If it applies with no subset at all, every
    earlier patch on its files counts as needed.

    Args:
        snapshot: The base.
        patches: The series in order.
        name: The patch in question.

    """
    index = next(i for i, patch in enumerate(patches) if patch.name == name)
    target = patches[index]
    related: list[Patch] = []
    paths = set(target.paths)
    for patch in reversed(patches[:index]):
        if patch.paths & paths:
            related.insert(0, patch)
            paths |= patch.paths
    if not related or _applies(snapshot, [target]):
        return ()
    needed = list(related)
    if _applies(snapshot, [*needed, target]):
        for patch in reversed(related):
            rest = [p for p in needed if p is not patch]
            if _applies(snapshot, [*rest, target]):
                needed = rest
    return tuple(patch.name for patch in needed)


def declared(patches: Sequence[Patch], series: Sequence[str] | None = None) -> dict[str, tuple[str, ...]]:
    """The ``Depends-on:`` names of every patch.

    Args:
        patches: The patches in order.
        series: The names of the whole series, if ``patches`` are those of it that serve a base: what is
            not among them is not needed there, or is damaged, and is no fault of the patch that needs it.

    Raises:
        UsageError: A name that does not stand before the patch in the series.

    """
    order = list(series) if series is not None else [patch.name for patch in patches]
    found = {}
    for patch in patches:
        before = order[: order.index(patch.name)]
        for need in patch.depends_on:
            if need not in before:
                raise UsageError(
                    f"{patch.name} says Depends-on: {need}, which does not stand before it in the series"
                )
        found[patch.name] = patch.depends_on
    return found


def prerequisites(snapshot: Snapshot, patches: Sequence[Patch]) -> dict[str, tuple[str, ...]]:
    """Direct prerequisites of every patch among ``patches``, declared and textual, in series order."""
    stated = {patch.name: patch.depends_on for patch in patches}
    order = [patch.name for patch in patches]
    return {
        name: tuple(sorted({*stated[name], *textual(snapshot, patches, name)} & {*order}, key=order.index))
        for name in order
    }


def closure(needs: Mapping[str, Sequence[str]], names: Sequence[str]) -> dict[str, str]:
    """Every prerequisite of ``names`` that is not among them, and which patch asks for it."""
    found: dict[str, str] = {}
    queue = list(names)
    while queue:
        name = queue.pop(0)
        for need in needs.get(name, ()):
            if need not in names and need not in found:
                found[need] = name
                queue.append(need)
    return found


def dependents(needs: Mapping[str, Sequence[str]], names: Sequence[str]) -> dict[str, str]:
    """Every patch that needs one of ``names``, directly or not, and which one it needs."""
    found: dict[str, str] = {}
    grown = True
    while grown:
        grown = False
        for name, wanted in needs.items():
            if name in names or name in found:
                continue
            cause = next((n for n in wanted if n in names or n in found), None)
            if cause is not None:
                found[name] = cause
                grown = True
    return found


@dataclass(frozen=True)
class OrderMatters:
    """Two patches neither of which needs the other, and which still do not commute."""

    first: str
    second: str
    problem: str


def order_matters(
    snapshot: Snapshot, patches: Sequence[Patch], needs: Mapping[str, Sequence[str]]
) -> list[OrderMatters]:
    """Every pair of patches that should commute and does not.

    Patches on different files commute. Of the others each pair is applied in both orders, on top of
    what either of them needs.
    """
    found = []
    by_name = {patch.name: patch for patch in patches}
    for number, second in enumerate(patches):
        for first in patches[:number]:
            below = closure(needs, [second.name, first.name])
            apart = not {first.name} & closure(needs, [second.name]).keys() and first.paths & second.paths
            if not apart:
                continue
            common = [by_name[name] for name in by_name if name in below]
            one, there = apply_all(snapshot, [*common, first, second])
            two, here = apply_all(snapshot, [*common, second, first])
            failed = next((a for a in (*one, *two) if not a.ok), None)
            if failed is not None:
                found.append(OrderMatters(first.name, second.name, failed.first_problem()))
                continue
            other = sorted(p for p in first.paths | second.paths if there.get(p) != here.get(p))
            if other:
                problem = f"{other[0]} differs with the order"
                found.append(OrderMatters(first.name, second.name, problem))
    return found


def reduced(needs: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """The needs without those that another need brings along."""
    found = {}
    for name, wanted in needs.items():
        brought = {n for need in wanted for n in closure(needs, [need])}
        found[name] = tuple(need for need in wanted if need not in brought)
    return found
