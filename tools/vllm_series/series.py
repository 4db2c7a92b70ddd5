# SPDX-License-Identifier: Apache-2.0
"""The ``series`` file: one patch file per line, in order, ``#`` comments (quilt's syntax)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vllm_series.errors import UsageError
from vllm_series.patchfile import NAME


@dataclass(frozen=True)
class Series:
    """The order of the patches.

    Attributes:
        lines: The file's lines without line feeds; comments and blank lines stay where they are.
        final_newline: Whether the last line ends with a line feed.

    """

    lines: tuple[str, ...]
    final_newline: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """Patch names in order."""
        return tuple(name for line in self.lines if (name := _name(line)))

    def render(self) -> str:
        """The file's text, byte for byte what was read if nothing was changed."""
        return "\n".join(self.lines) + ("\n" if self.final_newline and self.lines else "")

    def without(self, name: str) -> Series:
        """The series without ``name``."""
        return Series(tuple(x for x in self.lines if _name(x) != name), self.final_newline)

    def inserted(self, name: str, before: str | None = None) -> Series:
        """The series with ``name`` before another patch, or at the end."""
        lines = list(self.lines)
        at = next((i for i, x in enumerate(lines) if before and _name(x) == before), len(lines))
        lines.insert(at, f"{name}.patch")
        return Series(tuple(lines))

    def moved(self, name: str, *, before: str | None = None) -> Series:
        """The series with the line of ``name`` before another patch's, or at the end."""
        own = next(x for x in self.lines if _name(x) == name)
        rest = [x for x in self.lines if _name(x) != name]
        at = next((i for i, x in enumerate(rest) if before and _name(x) == before), len(rest))
        rest.insert(at, own)
        return Series(tuple(rest))

    def behind(self, name: str) -> str | None:
        """The patch that follows ``name``, None if it is the last."""
        names = self.names
        at = names.index(name) + 1
        return names[at] if at < len(names) else None


def _name(line: str) -> str:
    entry = re.split(r"(?:^|\s)#", line, maxsplit=1)[0].strip()
    return entry.removesuffix(".patch")


def parse_series(text: str, where: str = "series") -> Series:
    """Read a series file.

    Raises:
        UsageError: A line that is no patch file name, an option of quilt's, or a name twice.

    """
    if "\r" in text:
        raise UsageError(f"{where}: it has CRLF line ends", hint="convert it to LF")
    lines = text.split("\n")
    final = lines[-1] == ""
    if final:
        lines.pop()
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        entry = re.split(r"(?:^|\s)#", line, maxsplit=1)[0].strip()
        if not entry:
            continue
        if not entry.endswith(".patch") or not NAME.fullmatch(entry.removesuffix(".patch")):
            raise UsageError(
                f"{where}:{number}: {entry!r} is no patch file name",
                hint="write one file per line, like my-fix.patch, without options or folders",
            )
        name = entry.removesuffix(".patch")
        if name in seen:
            raise UsageError(f"{where}:{number}: {name} stands at line {seen[name]} already")
        seen[name] = number
    return Series(tuple(lines), final)
