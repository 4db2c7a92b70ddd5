# SPDX-License-Identifier: Apache-2.0
"""Compare two states of the series, patch by patch.

As in ``git range-diff``, line numbers and blob ids do not count. Patches are matched by name, which they
keep for life, not by likeness.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vllm_series.patchfile import Patch


@dataclass(frozen=True)
class PatchDiff:
    """One patch in two states.

    Attributes:
        name: The patch.
        mark: ``=`` the same, ``!`` changed, ``<`` only in the first state, ``>`` only in the second.
        old: Place in the first state, from 1; 0 if it is not there.
        new: Place in the second state.
        lines: How the text differs, as a diff of the two texts.

    """

    name: str
    mark: str
    old: int
    new: int
    lines: tuple[str, ...]


def compare_series(old: Sequence[Patch], new: Sequence[Patch]) -> list[PatchDiff]:
    """Compare two states: the patches of the second in its order, each gone one behind its predecessor."""
    before, after = ([patch.name for patch in side] for side in (old, new))
    order: list[str] = list(after)
    for number, name in enumerate(before):
        if name not in after:
            kept = [n for n in before[:number] if n in order]
            order.insert(order.index(kept[-1]) + 1 if kept else 0, name)
    texts = [{patch.name: tuple(_text(patch)) for patch in side} for side in (old, new)]
    found = []
    for name in order:
        one, two = texts[0].get(name), texts[1].get(name)
        mark = "=" if one == two else ">" if one is None else "<" if two is None else "!"
        lines = tuple(difflib.unified_diff(one, two, n=3, lineterm="")) if one and two else ()
        at, to = (side.index(name) + 1 if name in side else 0 for side in (before, after))
        found.append(PatchDiff(name, mark, at, to, tuple(_without_places(lines))))
    return found


def _text(patch: Patch) -> Iterator[str]:
    """What a patch says and does, without what moves whenever something else changes."""
    yield f"Author: {patch.author.name} <{patch.author.email}>"
    yield from patch.message.splitlines()
    for change in patch.changes:
        names = change.path if change.old_path in ("", change.path) else f"{change.old_path} => {change.path}"
        mode = f" (mode {change.new_mode})" if change.new_mode and change.old_mode else ""
        yield f"## {change.action.value} {names}{mode}"
        if change.binary is not None:
            yield f"binary {change.new_id}"
        for hunk in change.hunks:
            yield f"@@ {hunk.section}".rstrip()
            for line in hunk.lines:
                yield line.tag + line.content.decode("utf-8", "replace").rstrip("\n")


def _without_places(lines: Sequence[str]) -> Iterator[str]:
    for line in lines[2:]:
        yield "@@" if line.startswith("@@ -") else line
