# SPDX-License-Identifier: Apache-2.0
"""``dropped.toml``: which patches left the series, when and why.

One entry per departure, the oldest first: a name may leave, come back and leave again. People read it and
write comments in it, so entries are added behind what is there, which stays byte for byte.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime

from vllm_series.errors import UsageError

FILE_NAME = "dropped.toml"

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Dropped:
    """A patch that left the series.

    Attributes:
        name: The patch.
        reason: Why, in a person's words or as the evidence that was found.
        date: The day (UTC).
        base: The pinned base at that time.
        subject: First line of its message.
        sha256: Digest of its file for that base, empty if it had none.
        verdict: What was found on the new base, such as ``upstream-exact``; empty if a person decided.

    """

    name: str
    reason: str
    date: date
    base: str
    subject: str = ""
    sha256: str = ""
    verdict: str = ""


@dataclass(frozen=True)
class DroppedFile:
    """The whole file; ``text`` is what was read."""

    text: str = ""
    entries: tuple[Dropped, ...] = ()

    def of(self, name: str) -> tuple[Dropped, ...]:
        """The departures of ``name``, the oldest first."""
        return tuple(entry for entry in self.entries if entry.name == name)

    def added(self, entries: Iterable[Dropped]) -> str:
        """The file's text with entries behind those that are there."""
        import tomlkit

        parts = [self.text.rstrip("\n")] if self.text.strip() else []
        for entry in entries:
            table = tomlkit.table()
            for key, value in asdict(entry).items():
                if value:
                    table[key] = value
            rows = tomlkit.aot()
            rows.append(table)
            document = tomlkit.document()
            document["dropped"] = rows
            parts.append(tomlkit.dumps(document).strip("\n"))
        return "\n\n".join(parts) + "\n" if parts else ""


def today() -> date:
    """The day that a new entry bears."""
    return datetime.now(UTC).date()


def parse_dropped(text: str, where: str = FILE_NAME) -> DroppedFile:
    """Read ``dropped.toml``.

    Raises:
        UsageError: Not TOML, an unknown or missing key, or a value that is not allowed.

    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{where}: {error}") from None
    rows = document.pop("dropped", [])
    if document:
        raise UsageError(f"{where}: unknown key {next(iter(document))!r}; entries begin with [[dropped]]")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UsageError(f"{where}: dropped is no list of tables; entries begin with [[dropped]]")
    return DroppedFile(text, tuple(_entry(row, number, where) for number, row in enumerate(rows, 1)))


def _entry(row: dict[str, object], number: int, where: str) -> Dropped:
    def bad(what: str) -> UsageError:
        return UsageError(f"{where}: entry {number} {what}")

    known = Dropped.__dataclass_fields__.keys()
    unknown = sorted(row.keys() - known)
    if unknown:
        raise bad(f"has the unknown key {unknown[0]!r} (known: {', '.join(known)})")
    for key in ("name", "reason", "date", "base"):
        if key not in row:
            raise bad(f"lacks {key}")
    day = row["date"]
    if type(day) is not date:  # A datetime is a date to Python.
        raise bad("has no date like 2026-01-31")
    texts = {key: value for key, value in row.items() if key != "date"}
    for key, value in texts.items():
        if not isinstance(value, str):
            raise bad(f"{key} is no text")
    values: dict[str, str] = {key: str(value) for key, value in texts.items()}
    if values.get("sha256") and not _SHA256.fullmatch(values["sha256"]):
        raise bad("sha256 is no digest of 64 hex digits")
    return Dropped(date=day, **values)
