# SPDX-License-Identifier: Apache-2.0
"""What a command tells people and programs.

Results go to standard output, notes, warnings and progress to standard error. With ``--json`` standard
output holds exactly one document. Patch text goes out as it is: no markup is ever read in it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TextIO

from vllm_series.errors import EXIT_ENVIRONMENT

#: Version of the JSON documents.
SCHEMA = 1

#: Words that deserve a colour on a terminal.
_STYLES = {
    "clean": "green",
    "ok": "green",
    "applied": "green",
    "offset": "green",
    "retired": "cyan",
    "upstream-exact": "cyan",
    "upstream-equivalent": "cyan",
    "upstream-partial": "yellow",
    "context-drift": "yellow",
    "warning": "yellow",
    "conflict": "bold red",
    "target-moved": "bold red",
    "target-gone": "bold red",
    "blocked": "red",
    "corrupt": "bold red",
    "error": "bold red",
}


@dataclass
class Output:
    """Where a command writes.

    Attributes:
        verb: The command.
        json: Whether a program reads.

    """

    verb: str
    json: bool = False
    _warnings: list[str] = field(default_factory=list)
    _document: dict[str, object] | None = None

    def say(self, text: str = "") -> None:
        """A line of the result, for people."""
        if not self.json:
            _write(sys.stdout, text)

    def raw(self, content: bytes) -> None:
        """Bytes as they are, such as a patch file, for people."""
        if not self.json:
            with _reader_may_leave(sys.stdout):
                sys.stdout.buffer.write(content)
                sys.stdout.flush()

    def note(self, text: str) -> None:
        """A line beside the result; it is not worth a failure if it cannot be written."""
        with suppress(OSError):
            _write(sys.stderr, text)

    def warn(self, text: str) -> None:
        """A warning; it also stands in the JSON document."""
        self._warnings.append(text)
        self.note(f"vllm-series: warning: {text}")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Rows for people: drawn on a terminal, aligned text without cuts in a pipe."""
        if self.json:
            return
        if sys.stdout.isatty():
            _draw(columns, rows)
            return
        widths = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]
        for row in (columns, *rows):
            line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            _write(sys.stdout, line.rstrip())

    def finish(self, exit_code: int, **values: object) -> int:
        """Keep what the JSON document says, until :meth:`close`, and return the exit code."""
        if self.json:
            self._document = {
                "schema": SCHEMA,
                "verb": self.verb,
                "exit": exit_code,
                "warnings": self._warnings,
                **values,
            }
        return exit_code

    def close(self, exit_code: int) -> int:
        """Write the JSON document, if one is wanted: once, whatever happened last; returns the exit code."""
        if self._document is not None:
            try:
                _write(sys.stdout, json.dumps(self._document, indent=2, sort_keys=False))
            except OSError as error:
                self.note(f"vllm-series: error: standard output: {error.strerror or error}")
                return EXIT_ENVIRONMENT
        return exit_code


def _write(stream: TextIO, text: str) -> None:
    encoding = stream.encoding or "utf-8"
    with _reader_may_leave(stream):
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()


@contextmanager
def _reader_may_leave(stream: TextIO) -> Iterator[None]:
    """Go on in silence when the reader has gone, as in ``vllm-series list | head -1``."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _draw(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        # A column without spaces has names, to be copied whole.
        name = all(" " not in row[number] for row in rows)
        table.add_column(column, overflow="fold", no_wrap=name)
    for row in rows:
        table.add_row(*(Text(cell, style=_STYLES.get(cell.split(" ")[0], "")) for cell in row))
    Console().print(table)


def plural(count: int, noun: str) -> str:
    """``1 patch``, ``2 patches``."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}{'es' if noun.endswith(('h', 's')) else 's'}"
