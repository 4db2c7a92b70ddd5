# SPDX-License-Identifier: Apache-2.0
"""Where a hunk lands in a file, by the rules of ``git apply`` without fuzz.

Every line of context must match. A hunk that begins at line 1 must land at the beginning, one without
trailing context at the end; any other lands at the nearest place, counted from the line that it names,
forwards first. Lines that an earlier hunk has left are not matched again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_series.diff import Hunk


@dataclass(frozen=True)
class Landing:
    """Where a hunk was placed.

    Attributes:
        line: Line of the result at which the hunk begins, counted from 1.
        offset: How many lines that is from where the patch says.

    """

    line: int
    offset: int


def split_lines(content: bytes) -> list[bytes]:
    """Lines with their line feeds; other separators are part of a line."""
    lines = content.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])


def _fits(lines: Sequence[bytes], done: set[int], old: Sequence[bytes], at: int) -> bool:
    if at < 0 or at + len(old) > len(lines):
        return False
    if lines[at : at + len(old)] != list(old):
        return False
    return not done or not any(i in done for i in range(at, at + len(old)))


def find(lines: Sequence[bytes], done: set[int], hunk: Hunk) -> int | None:
    """Index of the line where ``hunk`` matches, or None."""
    old = hunk.old
    at_start = hunk.old_start <= 1
    at_end = hunk.trailing == 0
    if at_start or at_end:
        position = 0 if at_start else len(lines) - len(old)
        if at_start and at_end and len(lines) != len(old):
            return None
        return position if _fits(lines, done, old, position) else None
    start = min(max(hunk.new_start - 1, 0), len(lines))
    if _fits(lines, done, old, start):
        return start
    for distance in range(1, max(start, len(lines) - start) + 1):
        for candidate in (start + distance, start - distance):
            if _fits(lines, done, old, candidate):
                return candidate
    return None


def place(content: bytes, hunks: Sequence[Hunk]) -> tuple[bytes, list[Landing | None]]:
    """Apply ``hunks`` in order; those that do not match are left out.

    Returns:
        The new content, and per hunk its landing or None.

    """
    lines = split_lines(content)
    done: set[int] = set()
    landings: list[Landing | None] = []
    for hunk in hunks:
        at = find(lines, done, hunk)
        if at is None:
            landings.append(None)
            continue
        old, new = hunk.old, hunk.new
        lines[at : at + len(old)] = new
        shift = len(new) - len(old)
        done = {i + shift if i >= at else i for i in done}
        done.update(range(at, at + len(new)))
        landings.append(Landing(at + 1, at + 1 - max(hunk.new_start, 1)))
    return b"".join(lines), landings
