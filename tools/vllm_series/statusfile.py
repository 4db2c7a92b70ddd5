# SPDX-License-Identifier: Apache-2.0
"""``status.toml``: what changes about a patch while its text does not.

One table per patch name. People edit it too, so it is written with its comments and order kept.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field

from vllm_series.errors import UsageError

INTENTS = ("upstream", "hold", "never")
STATES = ("none", "open", "merged", "closed")


@dataclass(frozen=True)
class Retire:
    """The condition under which upstream has solved it: ``pattern`` matches in the file ``path``."""

    path: str
    pattern: str

    def holds(self, content: bytes | None) -> bool:
        """Whether the condition holds, given the file's content (None: no such file)."""
        text = content.decode("utf-8", "replace") if content is not None else None
        return text is not None and re.search(self.pattern, text, re.MULTILINE) is not None


@dataclass(frozen=True)
class Status:
    """What is known about one patch.

    Attributes:
        intent: ``upstream`` (to be proposed), ``hold`` (not yet) or ``never``.
        state: State of the upstream pull request that solves it: none, open, merged or closed. It is the
            patch's own, else the first of ``prs``; none if neither does.
        pr: Number of the pull request that was made of this patch, 0 if there is none.
        issues: Numbers of upstream issues.
        prs: Numbers of other people's pull requests on the same ground.
        differs: How this patch differs from open work on the same ground.
        retire: When the patch is no longer needed.
        note: Anything else, for people.
        summary: What the patch does for a user, one line.
        proven: On what it was proven, one line.
        measured: What was measured beyond the tests, as Markdown for the pull request: machine, versions,
            figures, and what they do not prove.

    """

    intent: str = "upstream"
    state: str = "none"
    pr: int = 0
    issues: tuple[int, ...] = ()
    prs: tuple[int, ...] = ()
    differs: str = ""
    retire: Retire | None = None
    note: str = ""
    summary: str = ""
    proven: str = ""
    measured: str = ""


@dataclass(frozen=True)
class StatusFile:
    """The whole file; ``text`` is what was read."""

    text: str
    patches: Mapping[str, Status] = field(default_factory=dict)

    def of(self, name: str) -> Status:
        """What is known about ``name``."""
        return self.patches.get(name, Status())

    def edited(self, name: str, **values: object) -> str:
        """The file's text with keys of one patch set; everything else stays byte for byte."""
        import tomlkit

        document = tomlkit.parse(self.text)
        table = document.get(name)
        if table is None:
            table = tomlkit.table()
            document[name] = table
        for key, value in values.items():
            table[key] = value
        return tomlkit.dumps(document)

    def removed(self, name: str) -> str:
        """The file's text without one patch."""
        import tomlkit

        document = tomlkit.parse(self.text)
        document.pop(name, None)
        return tomlkit.dumps(document)


def parse_status(text: str, where: str = "status.toml") -> StatusFile:
    """Read ``status.toml``.

    Raises:
        UsageError: Not TOML, an unknown key or a value that is not allowed.

    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{where}: {error}") from None
    return StatusFile(text, {name: _status(name, row, where) for name, row in document.items()})


def _status(name: str, row: object, where: str) -> Status:
    def bad(what: str) -> UsageError:
        return UsageError(f"{where}: [{name}] {what}")

    if not isinstance(row, dict):
        raise bad("is no table")
    texts = ("differs", "note", "summary", "proven", "measured")
    known = {"intent", "state", "pr", "issues", "prs", "retire", *texts}
    unknown = sorted(row.keys() - known)
    if unknown:
        raise bad(f"has the unknown key {unknown[0]!r} (known: {', '.join(sorted(known))})")
    intent, state = row.get("intent", "upstream"), row.get("state", "none")
    if intent not in INTENTS:
        raise bad(f"intent is {intent!r}, not one of {', '.join(INTENTS)}")
    if state not in STATES:
        raise bad(f"state is {state!r}, not one of {', '.join(STATES)}")
    for key in ("issues", "prs"):
        numbers = row.get(key, [])
        # `true` is an int to Python.
        if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
            raise bad(f"{key} is no list of numbers")
    if type(row.get("pr", 0)) is not int:
        raise bad("pr is no number")
    for key in texts:
        if not isinstance(row.get(key, ""), str):
            raise bad(f"{key} is no text")
    retire = None
    if "retire" in row:
        condition = row["retire"]
        if not isinstance(condition, dict) or condition.keys() != {"path", "pattern"}:
            raise bad("retire needs exactly path and pattern")
        if not all(isinstance(value, str) for value in condition.values()):
            raise bad("retire.path and retire.pattern are texts")
        try:
            re.compile(condition["pattern"])
        except re.error as error:
            raise bad(f"retire.pattern is no regular expression: {error}") from None
        retire = Retire(condition["path"], condition["pattern"])
    return Status(
        intent=intent,
        state=state,
        pr=row.get("pr", 0),
        issues=tuple(row.get("issues", ())),
        prs=tuple(row.get("prs", ())),
        retire=retire,
        **{key: row.get(key, "") for key in texts},
    )
