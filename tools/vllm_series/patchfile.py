# SPDX-License-Identifier: Apache-2.0
"""One patch file: the canonical mailbox form of one commit.

The form is what :meth:`vllm_series.git.Repository.format_patches` writes. There is no ``---`` line in it,
since a diffstat would be the only thing behind it; the message ends where the diff begins.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path

from vllm_series.diff import CorruptPatchError, FileChange, parse_diff
from vllm_series.git import Ident

FIRST_LINE = "From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001"
SUBJECT_PREFIX = "[PATCH] "
NAME = re.compile(r"[a-z0-9][a-z0-9._+-]*")

_HEADER = re.compile(r"([A-Za-z-]+): ?(.*(?:\n[ \t].*)*)\n")
_AUTHOR = re.compile(r"(.*?) ?<([^<>]*)>")
_TRAILER = re.compile(r"([A-Za-z][A-Za-z0-9-]*): (\S.*)")
_SENDER = re.compile(r"From: (.* <[^<>]*>)(?:\n|\Z)")
_SIGNATURE = re.compile(r"\n-- \n[^\n]*\n+\Z")
_COUNTS = re.compile(r"\n@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_DIFFSTAT = re.compile(
    r" .* \| +(\d+( \+*-*)?|Bin.*) *| \d+ files? changed.*| (create|delete) mode \d+ .*"
    r"| mode change \d+ => \d+ .*| (rename|copy) .* \(\d+%\)"
)
#: A date as git writes it.
_GIT_DATE = re.compile(
    r"[A-Z][a-z]{2}, (\d{1,2}) ([A-Z][a-z]{2}) (\d{4}) (\d\d):(\d\d):(\d\d) ([+-])(\d\d)(\d\d)"
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
#: Lines at which ``git am`` would end a message.
MESSAGE_ENDS = ("---", "diff -", "Index: ")


@dataclass(frozen=True)
class Patch:
    """A patch as read from its file.

    Attributes:
        name: File stem, the patch's identity across rebases.
        path: Where it was read from.
        raw: The file's bytes.
        author: Who wrote the change and when.
        subject: First line of the message, without ``[PATCH]``.
        body: The message behind the subject, trailers included; ends without line feed.
        diff_text: The diff, decoded with surrogate escapes.

    """

    name: str
    path: Path
    raw: bytes
    author: Ident
    subject: str
    body: str
    diff_text: str

    @cached_property
    def changes(self) -> tuple[FileChange, ...]:
        """The changed files, in the order of the file.

        Raises:
            CorruptPatchError: The diff is damaged.

        """
        try:
            return parse_diff(self.diff_text)
        except CorruptPatchError as error:
            raise CorruptPatchError(f"{self.path.name}: {error.message}", hint=error.hint) from None

    @property
    def ending(self) -> str:
        """How the file must end: for git a blank line ends binary data, also the last."""
        return "\n\n" if self.changes and self.changes[-1].binary is not None else "\n"

    @property
    def sender_in_body(self) -> bool:
        """Whether the mail was sent by another person than the author."""
        _, _, body = self.raw.decode("utf-8", "surrogateescape").replace("\r\n", "\n").partition("\n\n")
        return _SENDER.match(body.lstrip("\n")) is not None

    @property
    def message(self) -> str:
        """The commit message: subject, blank line, body."""
        return f"{self.subject}\n\n{self.body}\n" if self.body else f"{self.subject}\n"

    @property
    def digest(self) -> str:
        """SHA-256 of the file."""
        return hashlib.sha256(self.raw).hexdigest()

    @cached_property
    def trailers(self) -> tuple[tuple[str, str], ...]:
        """``Key: value`` lines of the last paragraph."""
        last = self.body.rsplit("\n\n", 1)[-1].splitlines()
        found = [_TRAILER.fullmatch(line) for line in last]
        if not all(found):
            return ()
        return tuple((match[1], match[2].strip()) for match in found if match)

    def trailer(self, key: str) -> tuple[str, ...]:
        """Every value of the trailer ``key``."""
        return tuple(v for k, v in self.trailers if k.lower() == key.lower())

    @property
    def depends_on(self) -> tuple[str, ...]:
        """Names of patches that this one needs for reasons git cannot see."""
        return tuple(name.strip() for v in self.trailer("Depends-on") for name in v.split(",") if name)

    @property
    def paths(self) -> frozenset[str]:
        """Every path that the patch reads or writes."""
        return frozenset(p for c in self.changes for p in (c.old_path, c.new_path) if p)

    def canonical_findings(self) -> list[str]:
        """What keeps the file from the canonical form, one line each."""
        found = []
        text = self.raw.decode("utf-8", "surrogateescape")
        header = text.split("\n\n", 1)[0].splitlines()
        if self.sender_in_body:
            found.append("its author stands in the body")
        if b"\r\n" in self.raw.split(b"\ndiff --git ", 1)[0]:
            found.append("its header has CRLF line ends")
        if not header or header[0] != FIRST_LINE:
            found.append("its first line is not the canonical From line")
        if not any((line + " ").startswith(f"Subject: {SUBJECT_PREFIX}") for line in header):
            found.append("its subject is numbered or lacks [PATCH]")
        if diff_end(text) != len(text):
            found.append("it ends with a mail signature")
        if re.search(r"\n---\n", text.split("\ndiff --git ", 1)[0]):
            found.append("it has a diffstat or a '---' line")
        if any(c.action not in ("create", "delete") and c.hunks and not c.old_id for c in self.changes):
            found.append("its index lines are abbreviated or missing")
        if not text.endswith(self.ending):
            found.append("it lacks the final line feed")
        return found


def paths_of(patches: Iterable[Patch]) -> set[str]:
    """Every path that one of the patches touches."""
    return {path for patch in patches for path in patch.paths}


def read_patch(path: Path, name: str | None = None) -> Patch:
    """Read a patch file.

    Raises:
        CorruptPatchError: The file is empty, or no mailbox of one commit.

    """
    return parse_patch(path.read_bytes(), path, name or path.stem)


def parse_patch(raw: bytes, path: Path, name: str) -> Patch:
    """Read a patch from bytes; ``path`` serves messages alone."""

    def corrupt(reason: str, hint: str = "") -> CorruptPatchError:
        return CorruptPatchError(f"{path.name}: {reason}", hint=hint)

    if not raw.strip():
        raise corrupt("the file is empty", "restore it, e.g. with: git checkout -- " + str(path))
    text = raw.decode("utf-8", "surrogateescape")
    start = re.search(r"^diff --git ", text, re.MULTILINE)
    if start is None:
        raise corrupt("it holds no diff")
    head, diff_text = text[: start.start()].replace("\r\n", "\n"), text[start.start() :]
    first, _, rest = head.partition("\n")
    if not re.fullmatch(r"From [0-9a-f]{40} .*", first):
        raise corrupt(
            "it is no git mailbox patch",
            "make it with git format-patch, or use: vllm-series import",
        )
    headers: dict[str, str] = {}
    position = 0
    while match := _HEADER.match(rest, position):
        headers[match[1].lower()] = match[2]
        position = match.end()
    if not rest.startswith("\n", position):
        raise corrupt("its mail header does not end with a blank line")
    missing = [key for key in ("from", "date", "subject") if key not in headers]
    if missing:
        raise corrupt(f"its mail header lacks {', '.join(missing)}")
    body, _, tail = rest[position + 1 :].partition("\n---\n")
    if (lost := _not_a_diffstat(tail)) is not None:
        raise corrupt(
            f"behind the line '---', where the message ends, stands {lost!r}",
            "move it above that line, or delete it",
        )
    body = body.strip("\n")
    if sender := _SENDER.match(body):
        # As for git am: who sends a patch need not have written it.
        headers["from"], body = sender[1], body[sender.end() :].lstrip("\n")
    diff_text = diff_text[: diff_end(diff_text)]
    subject = _decode(headers["subject"])
    subject = re.sub(r"^\[PATCH[^\]]*\] ", "", subject).strip()
    return Patch(name, path, raw, _author(headers, corrupt), subject, body, diff_text)


def _not_a_diffstat(tail: str) -> str | None:
    """The first line behind ``---`` that no diffstat has, None if there is none."""
    return next((line for line in tail.splitlines() if line.strip() and not _DIFFSTAT.fullmatch(line)), None)


def diff_end(text: str) -> int:
    """Where the mail signature behind the last counted hunk begins; the end if there is none.

    It cannot be searched for: ``-- `` is also how a diff removes the line ``- ``.
    """
    match = _SIGNATURE.search(text)
    if match is None:
        return len(text)
    hunk = text.rfind("\n@@ ", 0, match.start() + 1)
    if hunk < 0 or "\ndiff --git " in text[hunk : match.start()]:
        return match.start() + 1
    counts = _COUNTS.match(text, hunk)
    if counts is None:
        return len(text)
    old, new = (int(n) if n is not None else 1 for n in counts.groups())
    for line in text[hunk + 1 : match.start() + 1].split("\n")[1:-1]:
        old -= line[:1] in ("-", " ", "")
        new -= line[:1] in ("+", " ", "")
    return match.start() + 1 if old <= 0 and new <= 0 else len(text)


def _decode(value: str) -> str:
    joined = re.sub(r"\n[ \t]", " ", value)
    if "=?" not in joined:
        return joined.strip()
    # Imported where they are needed: the e-mail package takes longer to load than a patch to read.
    from email.errors import HeaderParseError
    from email.header import decode_header, make_header

    try:
        return str(make_header(decode_header(re.sub(r"\?=\s+=\?", "?==?", joined)))).strip()
    except (HeaderParseError, UnicodeError, LookupError):
        return joined.strip()


def _author(headers: dict[str, str], corrupt: Callable[[str], CorruptPatchError]) -> Ident:
    match = _AUTHOR.fullmatch(_decode(headers["from"]))
    when = mail_date(headers["date"])
    if match is None or when is None:
        raise corrupt("its author or date cannot be read")
    name = match[1]
    if len(name) > 1 and name[0] == name[-1] == '"':
        name = re.sub(r"\\(.)", r"\1", name[1:-1])
    return Ident(name, match[2], *when)


def mail_date(value: str) -> tuple[int, str] | None:
    """Seconds since the epoch and the zone (``+0200``) of a mail date; None if it cannot be read."""
    match = _GIT_DATE.fullmatch(value.strip())
    if match is None or match[2] not in _MONTHS:
        return _foreign_date(value)
    day, year, hour, minute, second = (int(match[i]) for i in (1, 3, 4, 5, 6))
    try:
        days = date(year, _MONTHS.index(match[2]) + 1, day).toordinal() - date(1970, 1, 1).toordinal()
    except ValueError:
        return None
    offset = int(match[8]) * 3600 + int(match[9]) * 60
    seconds = days * 86400 + hour * 3600 + minute * 60 + second
    return seconds - (offset if match[7] == "+" else -offset), match[7] + match[8] + match[9]


def _foreign_date(value: str) -> tuple[int, str] | None:
    from email.utils import mktime_tz, parsedate_tz

    fields = parsedate_tz(value)
    if fields is None:
        return None
    offset = fields[9] or 0
    zone = f"{'-' if offset < 0 else '+'}{abs(offset) // 3600:02d}{abs(offset) % 3600 // 60:02d}"
    return mktime_tz(fields), zone


def split_mailbox(data: bytes) -> list[bytes]:
    """The single patches of ``format-patch --stdout`` output."""
    starts = [m.start() for m in re.finditer(rb"^" + FIRST_LINE.encode() + rb"$", data, re.MULTILINE)]
    ends = [*starts[1:], len(data)]
    return [data[a:b] for a, b in zip(starts, ends, strict=True)]
