# SPDX-License-Identifier: Apache-2.0
"""Patches that others wrote, in the forms that people carry them in.

Mailboxes and single mails as ``git format-patch`` and mail programs write them, plain unified diffs with or
without a description, folders of either, and quilt's series with its options.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from vllm_series.diff import CorruptPatchError, FileChange, parse_diff
from vllm_series.errors import UsageError
from vllm_series.git import Ident, Mail, Repository, read_mails, user_identity
from vllm_series.messages import name_of, stated_name
from vllm_series.patchfile import diff_end, mail_date

_DIFF_START = re.compile(rb"^(?:diff |Index: |--- \S)", re.MULTILINE)
_HEADER_BLOCK = re.compile(rb"\A(?:[A-Za-z-]+:[^\n]*\n(?:[ \t][^\n]*\n)*)+\r?\n")
_PERSON = re.compile(r"\s*(.*?)\s*<([^<>\s]+)>\s*")


@dataclass(frozen=True)
class Incoming:
    """A patch to be imported.

    Attributes:
        label: Where it came from, for people.
        name: The name that it would like to have.
        author: Who wrote it and when.
        subject: First line of the message.
        body: The rest, without line feed at the end.
        diff: The diff, whatever stands around it.
        strip: How many leading folders its paths have too many, None to find out.
        reverse: Whether it is to be applied backwards.
        origin: Value of the ``Origin`` trailer if it brings none.

    """

    label: str
    name: str
    author: Ident
    subject: str
    body: str
    diff: bytes
    strip: int | None = None
    reverse: bool = False
    origin: str = "own"

    @property
    def has_diff(self) -> bool:
        """Whether there is anything to apply; a cover letter has nothing."""
        return _DIFF_START.search(self.diff) is not None

    @property
    def changes(self) -> tuple[FileChange, ...] | None:
        """What it changes, None if it is not in git's form."""
        text = self.diff.decode("utf-8", "surrogateescape")
        start = re.search(r"^diff --git ", text, re.MULTILINE)
        if start is None:
            return None
        text = text[start.start() :]
        try:
            return parse_diff(text[: diff_end(text)])
        except CorruptPatchError:
            return None

    @property
    def levels(self) -> tuple[int, ...]:
        """Which ``-p`` its paths may need, the likeliest first."""
        git = re.search(rb"(?m)^diff --git \"?(\w/)?", self.diff)
        if git is not None:
            return (1,) if git[1] else (0, 1)
        named = re.findall(rb"(?m)^(?:---|\+\+\+) (\S+)", self.diff)
        usual = all(path.startswith((b"a/", b"b/")) or path == b"/dev/null" for path in named)
        likely = (1, 0, 2) if usual else (0, 1, 2)
        # Stripping must not make a good path of one that leaves the tree or enters a git directory.
        return tuple(n for n in likely if not any(_ESCAPES & {*p.split(b"/")[:n]} for p in named)) or (1,)


_ESCAPES = {b"..", b".git"}


def read_source(path: Path, author: tuple[str, str] | None, strip: int | None) -> list[Incoming]:
    """Read a file or a folder.

    Args:
        path: What to read.
        author: Who wrote what names no author; None for the user of git.
        strip: The ``-p`` of plain diffs that do not say it themselves.

    Raises:
        UsageError: It holds no patch, or one without an author.

    """
    if path.is_dir():
        found = [
            replace(incoming, label=f"{path.name}/{incoming.label}")
            for file, options in _listed(path)
            for incoming in _read_file(
                file, author, options.get("strip", strip), bool(options.get("reverse"))
            )
        ]
        if not any(incoming.has_diff for incoming in found):
            raise UsageError(f"{path} holds no patches", hint="name a folder with a series file, or *.patch")
        return found
    found = _read_file(path, author, strip, False)
    if not any(incoming.has_diff for incoming in found):
        raise UsageError(f"{path} holds no diff", hint="name patches, mailboxes or unified diffs")
    return found


def _listed(folder: Path) -> Iterator[tuple[Path, dict[str, int]]]:
    """The files of a folder in order: by quilt's series file if there is one, else by name."""
    for series in (folder / "series", folder / "patches" / "series"):
        if series.is_file():
            yield from _quilt(series)
            return
    for file in sorted(folder.iterdir()):
        if file.suffix in (".patch", ".diff", ".eml", ".mbox") and file.is_file():
            yield file, {}


def _quilt(series: Path) -> Iterator[tuple[Path, dict[str, int]]]:
    for number, line in enumerate(series.read_text("utf-8", "surrogateescape").splitlines(), 1):
        words = re.split(r"(?:^|\s)#", line, maxsplit=1)[0].split()
        if not words:
            continue
        options: dict[str, int] = {}
        for word in words[1:]:
            level = re.fullmatch(r"-p(\d+|ab)", word)
            if level is not None:
                options["strip"] = 1 if level[1] == "ab" else int(level[1])
            elif word in ("-R", "--reverse"):
                options["reverse"] = 1
            else:
                raise UsageError(f"{series}:{number}: unknown option {word!r}", hint="known: -pN, -R")
        file = series.parent / words[0]
        if not file.is_file():
            raise UsageError(f"{series}:{number}: {words[0]} does not exist")
        options.setdefault("strip", 1)  # quilt's default
        yield file, options


def _read_file(
    path: Path, author: tuple[str, str] | None, strip: int | None, reverse: bool
) -> list[Incoming]:
    raw = path.read_bytes()
    if not raw.strip():
        raise UsageError(f"{path} is empty")
    try:
        if raw.startswith(b"From ") or (_HEADER_BLOCK.match(raw) and re.search(rb"(?mi)^From:", raw)):
            found = _mails(path, raw, author)
        else:
            found = [_plain(path, raw, author)]
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", hint=error.hint) from None
    return [replace(incoming, strip=strip, reverse=reverse) for incoming in found]


def _mails(path: Path, raw: bytes, author: tuple[str, str] | None) -> list[Incoming]:
    # A mailbox that went through a CRLF editor has it in its header too; a patch of a CRLF file has not.
    header = raw.partition(b"\n")[0]
    mails = read_mails(raw, keep_cr=not header.endswith(b"\r"))
    alone = len(mails) == 1
    return [_from_mail(path, mail, author, alone) for mail in mails]


def _from_mail(path: Path, mail: Mail, author: tuple[str, str] | None, alone: bool) -> Incoming:
    subject = mail.subject.strip() or path.stem
    who = (mail.author or mail.email.partition("@")[0], mail.email) if mail.email else author
    when = (mail_date(mail.date) if mail.date else None) or _file_date(path)
    label = path.name if alone else f"{path.name}: {subject}"
    name = stated_name(mail.body) or name_of(path.stem if alone and path.suffix != ".mbox" else subject)
    return Incoming(label, name, _ident(who, when), subject, mail.body, mail.diff)


def _plain(path: Path, raw: bytes, author: tuple[str, str] | None) -> Incoming:
    start = _DIFF_START.search(raw)
    text = (
        raw[: start.start() if start else len(raw)].decode("utf-8", "surrogateescape").replace("\r\n", "\n")
    )
    fields, rest = _description(text.strip("\n").removesuffix("\n---").strip())
    person = _PERSON.fullmatch(fields.get("from", "") or fields.get("author", ""))
    who = (person[1], person[2]) if person else author
    stated = fields.get("subject", "") or fields.get("description", "")
    lines = (stated or rest).strip().splitlines()
    subject = lines[0].strip() if lines else name_of(path.stem)
    body = "\n".join(lines[1:]).strip() + (f"\n\n{rest.strip()}" if stated and rest.strip() else "")
    when = (mail_date(fields["date"]) if "date" in fields else None) or _file_date(path)
    return Incoming(path.name, name_of(path.stem), _ident(who, when), subject, body.strip(), raw)


def _description(text: str) -> tuple[dict[str, str], str]:
    """Header fields as Debian writes them above a diff (DEP-3) that say what a mail says, and the rest."""
    fields: dict[str, str] = {}
    rest: list[str] = []
    known = {"from", "author", "subject", "description", "date"}
    last = ""
    for line in text.split("\n"):
        key, colon, value = line.partition(":")
        if colon and key.lower() in known and not (rest and not fields):
            last = key.lower()
            fields[last] = value.strip()
        elif last and line.startswith((" ", "\t")):
            # A line with a single dot is a blank one.
            fields[last] += "\n" + ("" if line.strip() == "." else line.strip())
        else:
            last = ""
            rest.append(line)
    return fields, "\n".join(rest).strip()


def read_commits(repository: Repository, revision: str) -> list[Incoming]:
    """Read a commit or a range ``A..B`` of a clone.

    Raises:
        UsageError: There is no such commit, the range is empty, or it has a merge.

    """
    older, dots, newer = revision.partition("..")
    tip = repository.commit((newer or "HEAD") if dots else revision)
    if dots:
        commits = list(repository.commits_between(repository.commit(older or "HEAD"), tip))
    else:
        commits = list(repository.commits(tip, 1))
    if not commits:
        raise UsageError(f"{revision} holds no commits in {repository.where}")
    found = []
    for commit in commits:
        if len(commit.parents) != 1:
            kind = "a merge" if commit.parents else "without a parent"
            raise UsageError(
                f"{commit.oid[:12]} ({commit.subject}) is {kind}", hint="name the commits below it"
            )
        diff = repository.diff_of(commit.oid)
        published = repository.is_published(commit.oid)
        subject, _, body = commit.message.partition("\n")
        subject = subject.strip() or commit.oid[:12]  # git can make a commit without a message.
        found.append(
            Incoming(
                label=commit.oid[:12],
                name=stated_name(body) or name_of(subject),
                author=commit.author,
                subject=subject,
                body=body.strip("\n"),
                diff=diff,
                strip=1,
                origin=f"upstream, {commit.oid[:12]}" if published else "own",
            )
        )
    return found


def _ident(who: tuple[str, str] | None, when: tuple[int, str]) -> Ident:
    person = who or user_identity()
    if person is None:
        raise UsageError("it names no author", hint='name one with --author "Name <mail>"')
    name, email = (re.sub(r"[<>\n]", "", text).strip() for text in person)
    return Ident(name, email, *when)


def parse_person(text: str) -> tuple[str, str]:
    """Read ``Name <mail>``.

    Raises:
        UsageError: It is something else.

    """
    match = _PERSON.fullmatch(text)
    if match is None or not match[1]:
        raise UsageError(f"{text!r} is no author", hint='write it like "Ada Lovelace <ada@example.org>"')
    return match[1], match[2]


def _file_date(path: Path) -> tuple[int, str]:
    return int(path.stat().st_mtime), "+0000"
