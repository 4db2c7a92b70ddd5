# SPDX-License-Identifier: Apache-2.0
"""Names and messages for patches whose authors knew nothing of this series."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from vllm_series.patchfile import MESSAGE_ENDS, NAME

_TRAILER = re.compile(r"[A-Za-z][A-Za-z0-9-]*: \S.*")
_NUMBER = re.compile(r"^(?:v\d+-)?\d+[-_.]+(?=.)")
#: How long a name made from a title may become.
_LENGTH = 48


def name_of(text: str) -> str:
    """A patch name from a file's name or a title: no number in front, no tags, ASCII alone."""
    text = re.sub(r"^(\s*\[[^\]]*\])+", "", text)
    text = _NUMBER.sub("", text).lower()
    text = re.sub(r"\(#\d+\)\s*$", "", text)  # What GitHub puts behind a title.
    # An accent goes, its letter stays.
    text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    text = re.sub(r"[^a-z0-9._+]+", "-", text).strip("-._+")
    if len(text) > _LENGTH:
        text = text[: _LENGTH + 1].rpartition("-")[0] or text[:_LENGTH]
    return text if NAME.fullmatch(text) else "patch"


def stated_name(body: str) -> str:
    """The name that the message itself gives the patch, empty if it gives none."""
    found = re.findall(r"(?m)^Patch-Name:[ \t]*(\S+)[ \t]*$", body)
    return found[-1] if found and NAME.fullmatch(found[-1]) else ""


def tidy(body: str) -> tuple[str, list[str]]:
    """The body of a message as a mailbox can carry it, and what was changed about it."""
    lines, notes = [], []
    for line in body.split("\n"):
        if re.fullmatch(r"-{3,}\s*", line):
            notes.append("a line of dashes was taken out of its message")
        elif line.startswith((*MESSAGE_ENDS, "From ")):
            notes.append(f"a line of its message was indented: {line[:40]!r}")
            lines.append(f" {line}")
        else:
            lines.append(line.rstrip())
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n"), notes


def trailer_of(body: str, key: str) -> list[str]:
    """The values of a trailer of the body; a line that looks like one elsewhere is text."""
    last = body.rpartition("\n\n")[2].split("\n")
    if not all(_TRAILER.fullmatch(line) for line in last):
        return []
    rows = [line.partition(": ") for line in last]
    return [value.strip() for name, _, value in rows if name.lower() == key.lower()]


def with_trailers(body: str, trailers: Sequence[tuple[str, str]]) -> str:
    """The body with trailers in its last paragraph; one that stands there already is replaced."""
    wanted = {key.lower(): f"{key}: {value}" for key, value in trailers}
    paragraphs = body.split("\n\n") if body else []
    last = paragraphs[-1].split("\n") if paragraphs else []
    rows: list[str] = []
    if last and all(_TRAILER.fullmatch(line) for line in last):
        paragraphs.pop()
        for line in last:
            key = line.partition(":")[0].lower()
            if key not in wanted or wanted[key] not in rows:  # Stated twice: once is enough.
                rows.append(wanted.get(key, line))
    rows += [row for row in wanted.values() if row not in rows]
    return "\n\n".join([*paragraphs, "\n".join(rows)])
