# SPDX-License-Identifier: Apache-2.0
"""``dropped.toml``: which patches are no longer needed from which base on, since when, and why."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass

from vllm_series.errors import UsageError

FILE = "dropped.toml"
_HEAD = "# Patches that are no longer needed: from which base on, since when, and why.\n"


@dataclass(frozen=True)
class Dropped:
    """One entry.

    Attributes:
        name: The patch.
        base: The first base that does without it.
        date: ISO date of the decision.
        verdict: What the tool said of the patch then.
        reason: Why, in a person's words or the tool's evidence.

    """

    name: str
    base: str
    date: str
    verdict: str
    reason: str


def parse_dropped(text: str, where: str = FILE) -> tuple[Dropped, ...]:
    """Read ``dropped.toml``.

    Raises:
        UsageError: Not TOML, or another set of keys.

    """
    try:
        rows = tomllib.loads(text).get("dropped", [])
        found = tuple(Dropped(**row) for row in rows)
    except (tomllib.TOMLDecodeError, TypeError) as error:
        raise UsageError(f"{where}: {error}") from None
    if not all(isinstance(value, str) for row in found for value in vars(row).values()):
        raise UsageError(f"{where}: a value is no text")
    return found


def with_dropped(text: str, rows: Sequence[Dropped]) -> str:
    """The file's text with more entries at the end; what is there stays byte for byte."""
    import tomlkit

    parts = [text or _HEAD]
    for row in rows:
        table = tomlkit.table()
        for key, value in vars(row).items():
            table[key] = value
        document = tomlkit.document()
        document["dropped"] = tomlkit.aot()
        document["dropped"].append(table)
        parts.append(tomlkit.dumps(document))
    found = "\n".join(part.rstrip("\n") + "\n" for part in parts)
    parse_dropped(found)
    return found
