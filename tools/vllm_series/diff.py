# SPDX-License-Identifier: Apache-2.0
"""The diff of one patch as values.

unidiff reads the hunks. It keeps neither git's extended header lines (modes, renames, binary data) nor a
complaint about lines that follow a hunk's counted end, so both are read and checked here. Text is bytes
in disguise: decoded as UTF-8 with surrogate escapes, so that any file content survives.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from unidiff.errors import UnidiffParseError
from unidiff.patch import PatchSet

from vllm_series.errors import UsageError

FILE_MODES = ("100644", "100755", "120000")


class CorruptPatchError(UsageError):
    """A patch file that is damaged or holds what git would not write."""

    kind = "corrupt"


@dataclass(frozen=True)
class Line:
    """One line of a hunk; ``content`` has its line feed, unless the file ends without one."""

    tag: str
    content: bytes


@dataclass(frozen=True)
class Hunk:
    """One hunk; positions count lines from 1, as in its ``@@`` line."""

    old_start: int
    new_start: int
    lines: tuple[Line, ...]
    section: str

    @property
    def old(self) -> tuple[bytes, ...]:
        """The lines that the hunk expects."""
        return tuple(line.content for line in self.lines if line.tag != "+")

    @property
    def new(self) -> tuple[bytes, ...]:
        """The lines that the hunk leaves."""
        return tuple(line.content for line in self.lines if line.tag != "-")

    @property
    def leading(self) -> int:
        """How many context lines precede the first change."""
        return next((i for i, line in enumerate(self.lines) if line.tag != " "), len(self.lines))

    @property
    def trailing(self) -> int:
        """How many context lines follow the last change."""
        return next((i for i, line in enumerate(reversed(self.lines)) if line.tag != " "), len(self.lines))

    def reversed(self) -> Hunk:
        """The hunk that undoes this one."""
        swap = {"+": "-", "-": "+", " ": " "}
        lines = tuple(Line(swap[line.tag], line.content) for line in self.lines)
        return Hunk(self.new_start, self.old_start, lines, self.section)


class Action(StrEnum):
    """What happens to a path."""

    MODIFY = "modify"
    CREATE = "create"
    DELETE = "delete"
    RENAME = "rename"
    COPY = "copy"


@dataclass(frozen=True)
class BinaryData:
    """One side of a binary diff: the content itself, or a delta against the other side."""

    delta: bool
    data: bytes


@dataclass(frozen=True)
class FileChange:
    """What a patch does to one file.

    Attributes:
        action: What happens to the path.
        old_path: Path before, empty for a new file.
        new_path: Path after, empty for a deleted file.
        old_mode: git's mode before, empty if the patch does not state it.
        new_mode: git's mode after, empty if unchanged.
        old_id: Full blob id before as the ``index`` line states it, empty if it states none.
        new_id: Full blob id after.
        hunks: The hunks in file order; empty for binary changes, pure renames and mode changes.
        binary: Forward and reverse data of a binary change.

    """

    action: Action
    old_path: str
    new_path: str
    old_mode: str = ""
    new_mode: str = ""
    old_id: str = ""
    new_id: str = ""
    hunks: tuple[Hunk, ...] = ()
    binary: tuple[BinaryData, BinaryData] | None = None

    @property
    def path(self) -> str:
        """The path that people call the file by."""
        return self.new_path or self.old_path

    @property
    def added(self) -> int:
        """Lines added."""
        return sum(line.tag == "+" for hunk in self.hunks for line in hunk.lines)

    @property
    def removed(self) -> int:
        """Lines removed."""
        return sum(line.tag == "-" for hunk in self.hunks for line in hunk.lines)

    def reversed(self) -> FileChange:
        """The change that undoes this one."""
        swap = {Action.CREATE: Action.DELETE, Action.DELETE: Action.CREATE}
        return FileChange(
            action=swap.get(self.action, self.action),
            old_path=self.new_path,
            new_path=self.old_path,
            old_mode=self.new_mode or (self.old_mode if self.action is not Action.DELETE else ""),
            new_mode=self.old_mode if self.new_mode or self.action is Action.DELETE else "",
            old_id=self.new_id,
            new_id=self.old_id,
            hunks=tuple(hunk.reversed() for hunk in self.hunks),
            binary=(self.binary[1], self.binary[0]) if self.binary else None,
        )


def parse_diff(text: str) -> tuple[FileChange, ...]:
    """Read the diff part of a patch.

    Args:
        text: Everything from the first ``diff --git`` line on, decoded with surrogate escapes.

    Raises:
        CorruptPatchError: Truncated or overlong hunks, unknown header lines, unsafe paths.

    """
    starts = [match.start() for match in re.finditer(r"^diff --git ", text, re.MULTILINE)]
    if not starts:
        raise CorruptPatchError("it holds no diff")
    if text[: starts[0]].strip():
        raise CorruptPatchError(f"text before the first diff: {text.strip().splitlines()[0]!r}")
    ends = [*starts[1:], len(text)]
    changes = tuple(_parse_file(text[a:b]) for a, b in zip(starts, ends, strict=True))
    seen: dict[str, Action] = {}
    for change in changes:
        # A file that becomes a symbolic link is deleted and made.
        if (seen.get(change.path), change.action) not in KINDS:
            raise CorruptPatchError(f"{change.path} appears twice")
        seen[change.path] = change.action
    return changes


KINDS = {(None, action) for action in Action} | {(Action.DELETE, Action.CREATE)}
_HEADERS = re.compile(
    r"(old mode|new mode|deleted file mode|new file mode|copy from|copy to|rename from|rename to|"
    r"similarity index|dissimilarity index|index|---|\+\+\+) (.*)"
)


def _parse_file(section: str) -> FileChange:
    lines = section.split("\n")
    fields: dict[str, str] = {}
    binary_at = None
    body_at = len(lines)
    for number, line in enumerate(lines[1:], 1):
        if line.startswith("@@ "):
            body_at = number
            break
        if line == "GIT binary patch":
            binary_at = number + 1
            break
        if line.startswith("Binary files "):
            raise CorruptPatchError(
                f"{lines[0]}: a binary file without its data", hint="export it with --binary"
            )
        match = _HEADERS.fullmatch(line)
        if match:
            fields[match[1]] = match[2]
        elif line.strip() or any(rest.strip() for rest in lines[number:]):
            raise CorruptPatchError(f"{lines[0]}: unexpected line {line!r}")
    action, old_path, new_path = _paths(lines[0], fields)
    for path in (old_path, new_path):
        _check_path(path)
    ids = re.fullmatch(r"([0-9a-f]+)\.\.([0-9a-f]+)(?: (\d{6}))?", fields.get("index", ""))
    old_id, new_id = (ids[1], ids[2]) if ids else ("", "")
    old_mode = fields.get("old mode") or fields.get("deleted file mode") or (ids[3] if ids else "") or ""
    new_mode = fields.get("new mode") or fields.get("new file mode") or ""
    for mode in (old_mode, new_mode):
        if mode and mode not in FILE_MODES:
            raise CorruptPatchError(f"{new_path or old_path}: mode {mode} is not a file's")
    hunks: tuple[Hunk, ...] = ()
    binary = None
    if binary_at is not None:
        binary = _parse_binary(lines[binary_at:], new_path or old_path)
    elif body_at < len(lines):
        hunks = tuple(_parse_hunks("\n".join(lines[body_at:]), new_path or old_path))
    if action is Action.MODIFY and not hunks and binary is None and not new_mode:
        raise CorruptPatchError(f"{new_path}: changes nothing")
    return FileChange(
        action=action,
        old_path=old_path,
        new_path=new_path,
        old_mode=old_mode,
        new_mode=new_mode,
        old_id=old_id if len(old_id) == 40 else "",
        new_id=new_id if len(new_id) == 40 else "",
        hunks=hunks,
        binary=binary,
    )


def _paths(first: str, fields: dict[str, str]) -> tuple[Action, str, str]:
    if "rename from" in fields:
        return Action.RENAME, unquote(fields["rename from"]), unquote(fields["rename to"])
    if "copy from" in fields:
        return Action.COPY, unquote(fields["copy from"]), unquote(fields["copy to"])
    old, new = _named(fields.get("---", "")), _named(fields.get("+++", ""))
    if old is None and new is None:
        # Mode changes, empty files and binary files have no ---/+++ lines.
        old = new = _same_path(first)
    if "new file mode" in fields:
        return Action.CREATE, "", new or ""
    if "deleted file mode" in fields:
        return Action.DELETE, old or "", ""
    if old is None or new is None or old != new:
        raise CorruptPatchError(f"{first}: names of the two sides differ without a rename")
    return Action.MODIFY, old, new


def _named(field: str) -> str | None:
    # git ends a name that holds a space with a tab, so that `patch` finds its end.
    name = unquote(field.removesuffix("\t"))
    if not name or name == "/dev/null":
        return None
    if name[:2] not in ("a/", "b/"):
        raise CorruptPatchError(f"{name!r} lacks the prefix a/ or b/")
    return name[2:]


def _same_path(first: str) -> str:
    rest = first.removeprefix("diff --git ")
    if rest.startswith('"'):
        halves = re.fullmatch(r'("(?:[^"\\]|\\.)*") (.*)', rest)
        if halves:
            return unquote(halves[1])[2:]
    middle = len(rest) // 2
    old, new = rest[:middle], rest[middle + 1 :]
    if rest[middle : middle + 1] != " " or old[2:] != new[2:]:
        raise CorruptPatchError(f"cannot read the file name of {first!r}")
    return old[2:]


_ESCAPES = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}


def unquote(name: str) -> str:
    """Undo git's C-style quoting of a path."""
    if not (len(name) > 1 and name.startswith('"') and name.endswith('"')):
        return name
    out = bytearray()
    for match in re.finditer(r"\\([0-7]{3}|.)|([^\\]+)", name[1:-1]):
        escape, plain = match.groups()
        if plain is not None:
            out += plain.encode("utf-8", "surrogateescape")
        elif escape in _ESCAPES:
            out.append(_ESCAPES[escape])
        elif escape.isdigit():
            out.append(int(escape, 8) & 0xFF)
        else:
            raise CorruptPatchError(f"unknown escape in {name}")
    return out.decode("utf-8", "surrogateescape")


def _check_path(path: str) -> None:
    parts = path.split("/")
    if path and (path.startswith("/") or {"", ".", ".."} & set(parts) or "\0" in path):
        raise CorruptPatchError(f"{path!r} leaves the tree", hint="a patch names files below the top level")
    if any(part.lower() == ".git" for part in parts):
        raise CorruptPatchError(f"{path!r} is inside a git directory")


def _parse_hunks(body: str, path: str) -> Iterator[Hunk]:
    # A blank line at the end separates patches in a mailbox.
    body = body[:-1] if body.endswith("\n\n") else body
    try:
        files = PatchSet.from_string(f"--- a/x\n+++ b/x\n{body}")
    except UnidiffParseError as error:
        raise CorruptPatchError(f"{path}: {error}") from None
    consumed = 0
    for hunk in files[0]:
        lines: list[Line] = []
        for row in hunk:
            consumed += 1
            content = row.value.encode("utf-8", "surrogateescape")
            if row.line_type == "\\":
                if not lines:
                    raise CorruptPatchError(f"{path}: a hunk begins with {row.value.strip()!r}")
                lines[-1] = Line(lines[-1].tag, lines[-1].content.removesuffix(b"\n"))
            else:
                lines.append(Line(row.line_type or " ", content))
        consumed += 1
        if all(line.tag == " " for line in lines):
            raise CorruptPatchError(f"{path}: hunk at line {hunk.source_start} changes nothing")
        yield Hunk(hunk.source_start, hunk.target_start, tuple(lines), hunk.section_header)
    if consumed != body.rstrip("\n").count("\n") + 1 and consumed != body.count("\n"):
        raise CorruptPatchError(f"{path}: lines after the counted end of a hunk")


def _parse_binary(lines: list[str], path: str) -> tuple[BinaryData, BinaryData]:
    blocks: list[BinaryData] = []
    position = 0
    while position < len(lines) and len(blocks) < 2:
        head = re.fullmatch(r"(literal|delta) (\d+)", lines[position])
        if head is None:
            break
        end = next((i for i in range(position, len(lines)) if not lines[i]), len(lines))
        blocks.append(_decode_binary(head[1] == "delta", int(head[2]), lines[position + 1 : end], path))
        position = end + 1
    if len(blocks) != 2 or any(line for line in lines[position:]):
        raise CorruptPatchError(f"{path}: binary data is incomplete")
    return blocks[0], blocks[1]


def _decode_binary(delta: bool, size: int, lines: list[str], path: str) -> BinaryData:
    packed = bytearray()
    try:
        for line in lines:
            # The first letter counts the bytes of the line: A-Z are 1 to 26, a-z are 27 to 52.
            count = ord(line[0]) - (ord("A") - 1 if line[0].isupper() else ord("a") - 27)
            packed += base64.b85decode(line[1:])[:count]
        data = zlib.decompress(bytes(packed))
    except (ValueError, zlib.error, IndexError) as error:
        raise CorruptPatchError(f"{path}: binary data is damaged ({error})") from None
    if len(data) != size:
        raise CorruptPatchError(f"{path}: binary data has {len(data)} bytes instead of {size}")
    return BinaryData(delta, data)


def apply_binary(data: BinaryData, old: bytes) -> bytes:
    """The content after a binary change.

    The delta format is git's pack format: two sizes, then copy and insert instructions
    (gitformat-pack, "Deltified representation").

    Raises:
        CorruptPatchError: The delta is damaged, or was made against another content.

    """
    if not data.delta:
        return data.data
    stream = iter(data.data)

    def take() -> int:
        byte = next(stream, None)
        if byte is None:
            raise CorruptPatchError("binary delta is damaged")
        return byte

    def size() -> int:
        value = shift = 0
        while True:
            byte = take()
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    source, target = size(), size()
    if source != len(old):
        raise CorruptPatchError("binary delta against another content")
    out = bytearray()
    for op in stream:
        if op & 0x80:
            offset = sum(take() << (8 * i) for i in range(4) if op & (1 << i))
            length = sum(take() << (8 * i) for i in range(3) if op & (0x10 << i)) or 0x10000
            out += old[offset : offset + length]
        else:
            out += bytes(take() for _ in range(op))
    if len(out) != target:
        raise CorruptPatchError("binary delta is damaged")
    return bytes(out)
