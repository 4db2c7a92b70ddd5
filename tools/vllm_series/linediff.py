# SPDX-License-Identifier: Apache-2.0
"""Diffs without context, as git writes them: which lines of which file became which."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vllm_series.diff import unquote
from vllm_series.git import path_text

_RANGE = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclass(frozen=True)
class LineChange:
    """One place where lines were replaced.

    Attributes:
        path: The file.
        at: Index of the first old line; for an insertion, of the line that it stands before.
        removed: The old lines, with their line feeds.
        added: The new lines.

    """

    path: str
    at: int
    removed: tuple[bytes, ...]
    added: tuple[bytes, ...]

    @property
    def lines(self) -> tuple[tuple[str, bytes], ...]:
        """Removed and added lines with their signs."""
        return (*(("-", line) for line in self.removed), *(("+", line) for line in self.added))


def parse_line_diff(diff: bytes) -> list[LineChange]:
    """Read a diff made with ``--unified=0``."""
    found: list[LineChange] = []
    path = ""
    rows = diff.split(b"\n")
    number = 0
    while number < len(rows):
        row = rows[number]
        number += 1
        if row.startswith((b"--- ", b"+++ ")):
            name = unquote(path_text(row[4:].removesuffix(b"\t")))
            if name != "/dev/null":
                path = name[2:]
            continue
        match = _RANGE.match(row)
        if match is None:
            continue
        start = int(match[1])
        old = int(match[2]) if match[2] is not None else 1
        new = int(match[4]) if match[4] is not None else 1
        sides: dict[bytes, list[bytes]] = {b"-": [], b"+": []}
        while number < len(rows) and rows[number][:1] in (b"-", b"+", b"\\"):
            if rows[number][:1] == b"\\":
                last = sides[rows[number - 1][:1]]
                last[-1] = last[-1].removesuffix(b"\n")
            elif len(sides[rows[number][:1]]) == (old if rows[number][:1] == b"-" else new):
                break  # The next file's header looks like a line.
            else:
                sides[rows[number][:1]].append(rows[number][1:] + b"\n")
            number += 1
        at = start - 1 if old else start
        found.append(LineChange(path, at, tuple(sides[b"-"]), tuple(sides[b"+"])))
    return found
