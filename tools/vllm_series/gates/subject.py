# SPDX-License-Identifier: Apache-2.0
"""What the gates look at: one patch, the files around it, and what is known about it."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from vllm_series.freshness import Standing, State
from vllm_series.patchfile import Patch
from vllm_series.place import Landing
from vllm_series.stack import Application, FileResult
from vllm_series.statusfile import Status
from vllm_series.tree import File


@dataclass(frozen=True)
class Finding:
    """Something that stands between a patch and its pull request.

    Attributes:
        code: Short name of the gate.
        text: What is wrong, one line.
        fix: What to do about it, one line.

    """

    code: str
    text: str
    fix: str


@dataclass(frozen=True)
class AddedLine:
    """A line that a patch adds; ``number`` counts in the new file."""

    path: str
    number: int
    text: str


@dataclass(frozen=True)
class Subject:
    """One patch before the gates.

    Attributes:
        application: The patch, applied.
        status: What is known about it.
        before: Text of every file that it changes, as it was; None for a new one.
        pipeline: Texts of upstream's test pipeline by path, as the patch leaves them.
        standing: The evidence.
        has_tests: Whether ``tests.toml`` names a test that must pass with the patch and fail without it.
        base: Name of the base, for messages.
        prerequisites: What is known about the patches that it needs, by name.
        open_requests: Numbers of the open pull requests that were made of this series.
        signer: Name and address of who would submit it; None if git does not know.

    """

    application: Application
    status: Status = field(default_factory=Status)
    before: Mapping[str, str | None] = field(default_factory=dict)
    pipeline: Mapping[str, str] = field(default_factory=dict)
    standing: Standing = field(default_factory=lambda: Standing(State.NONE))
    has_tests: bool = True
    base: str = ""
    prerequisites: Mapping[str, Status] = field(default_factory=dict)
    open_requests: tuple[int, ...] = ()
    signer: tuple[str, str] | None = None

    @property
    def patch(self) -> Patch:
        """The patch, as it lies in the patch directory."""
        return self.application.patch

    @property
    def name(self) -> str:
        """The patch's name."""
        return self.patch.name

    @cached_property
    def after(self) -> Mapping[str, str | None]:
        """Text of every file that the patch changes, as it leaves it; None for a deleted one."""
        return {path: text_of(file) for path, file in self.application.changes.items()}

    @cached_property
    def added(self) -> tuple[AddedLine, ...]:
        """The lines that are new; one that the patch only moves is not."""
        removed = Counter(
            line.content.strip()
            for change in self.patch.changes
            for hunk in change.hunks
            for line in hunk.lines
            if line.tag == "-"
        )
        found = []
        for line in _plus_lines(self.application):
            content = line.text.strip().encode("utf-8", "surrogateescape")
            if content and removed[content]:
                removed[content] -= 1
            else:
                found.append(line)
        return tuple(found)

    def added_in(self, *, tests: bool) -> Iterator[AddedLine]:
        """The new lines of Python files below ``tests/``, or of those elsewhere."""
        for line in self.added:
            if line.path.endswith(".py") and line.path.startswith("tests/") == tests:
                yield line

    def new_nodes(self, path: str) -> Iterator[ast.AST]:
        """The syntax nodes of ``path`` that begin on a new line."""
        numbers = {line.number for line in self.added if line.path == path}
        for node in ast.walk(self.parsed(self.after.get(path))):
            if getattr(node, "lineno", None) in numbers:
                yield node

    @staticmethod
    def parsed(text: str | None) -> ast.Module:
        """The syntax tree of a file; an empty one if there is none, or it does not parse."""
        try:
            return ast.parse(text or "")
        except SyntaxError:
            return ast.Module([], [])

    def says(self, *words: str) -> bool:
        """Whether the message speaks of one of ``words``."""
        message = self.patch.message.lower()
        return any(word.lower() in message for word in words)


def text_of(file: File | None) -> str | None:
    """A file's text; bytes that are no text are replaced."""
    return file.content.decode("utf-8", "replace") if file is not None else None


def _plus_lines(application: Application) -> Iterator[AddedLine]:
    for result in application.files:
        for hunk, landing in zip(result.change.hunks, _landings(result), strict=True):
            number = (landing.line if landing is not None else hunk.new_start) - 1
            for line in hunk.lines:
                number += line.tag != "-"
                if line.tag == "+":
                    text = line.content.decode("utf-8", "surrogateescape").rstrip("\n")
                    yield AddedLine(result.change.path, number, text)


def _landings(result: FileResult) -> Sequence[Landing | None]:
    return result.landings or [None] * len(result.change.hunks)
