# SPDX-License-Identifier: Apache-2.0
"""The tests of a patch: there, run by upstream's pipeline, and on real objects."""

from __future__ import annotations

import ast
import fnmatch
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from vllm_series.compose import is_test_file
from vllm_series.gates.subject import Finding, Subject

_DOUBLES = {"MagicMock", "Mock", "AsyncMock", "PropertyMock", "SimpleNamespace", "create_autospec", "mocker"}
_EVASIONS = {"xfail", "flaky", "skip"}
_WITH_VALUE = {"-m", "-k", "-n", "-p", "-o", "-W"}


@dataclass(frozen=True)
class Step:
    """One ``pytest`` command of the pipeline.

    Attributes:
        paths: Files, folders and patterns that it names, from the repository's top.
        ignored: What it leaves out.
        marker: The expression of ``-m``.

    """

    paths: tuple[str, ...]
    ignored: tuple[str, ...] = ()
    marker: str = ""

    def selects(self, path: str, text: str) -> bool:
        """Whether the command runs tests of the file ``path`` with the content ``text``."""
        if not any(_covers(p, path) for p in self.paths) or any(_covers(p, path) for p in self.ignored):
            return False
        word = re.fullmatch(r"\w+", self.marker)
        return word is None or re.search(rf"\bmark\.{word[0]}\b", text) is not None


def _covers(named: str, path: str) -> bool:
    return path == named or path.startswith(f"{named}/") or fnmatch.fnmatchcase(path, named)


def pipeline_steps(pipeline: Mapping[str, str]) -> list[Step]:
    """The ``pytest`` commands of the pipeline's files; lines that are commented out do not count."""
    found = []
    for text in pipeline.values():
        joined = re.sub(r"\\\n\s*", " ", text)
        for line in joined.splitlines():
            if not line.lstrip().startswith("#") and re.search(r"\bpytest\b", line):
                found += [_step(part) for part in re.split(r"&&|;|\|\|", line) if "pytest" in part]
    return [step for step in found if step.paths]


def _step(command: str) -> Step:
    try:
        words = shlex.split(command.strip().removeprefix("- ").replace("$$", "$"), comments=True)
    except ValueError:
        words = command.split()
    paths, ignored, marker = [], [], ""
    start = next((i for i, word in enumerate(words) if word.endswith("pytest")), len(words))
    rest = iter(words[start + 1 :])
    for word in rest:
        if word in _WITH_VALUE:
            value = next(rest, "")
            marker = value if word == "-m" else marker
        elif word.startswith(("--ignore=", "--ignore-glob=")):
            ignored.append(_from_top(word.partition("=")[2]))
        elif not word.startswith("-") and "=" not in word:
            paths.append(_from_top(word.split("::")[0]))
    return Step(tuple(paths), tuple(ignored), marker)


def _from_top(path: str) -> str:
    path = path.removeprefix("./").rstrip("/")
    return path if path.startswith("tests/") else f"tests/{path}"


def findings(subject: Subject) -> Iterator[Finding]:
    """Gates ``tests``, ``pipeline``, ``mock``, ``private`` and ``skip``."""
    changed = sorted({line.path for line in subject.added if is_test_file(line.path)})
    if not changed:
        yield Finding("tests", "it adds no test to vLLM", "extend the test file nearest to the change")
    steps = pipeline_steps(subject.pipeline)
    for path in changed:
        text = subject.after.get(path) or ""
        if not any(step.selects(path, text) for step in steps):
            yield Finding(
                "pipeline",
                f"no step of upstream's test pipeline selects {path}",
                "move the tests into a file that one selects, or add it to a step in .buildkite/test_areas",
            )
        yield from _test_file(subject, path)


def _test_file(subject: Subject, path: str) -> Iterator[Finding]:
    known = Counter(use for node in ast.walk(subject.parsed(subject.before.get(path))) for use in _uses(node))
    now = Counter(use for node in ast.walk(subject.parsed(subject.after.get(path))) for use in _uses(node))
    found: dict[tuple[str, str], int] = {}
    for node in subject.new_nodes(path):
        for use in _uses(node):
            # A patch that rewords a line of an old test brings nothing new.
            if now[use] > known[use]:
                found.setdefault(use, int(getattr(node, "lineno", 0)))
    for code, (what, fix) in _OBJECTIONS.items():
        for (kind, name), line in found.items():
            if kind == code:
                yield Finding(code, f"{path}:{line}: {what.format(name)} in a new test", fix)


_OBJECTIONS = {
    "mock": ("{}", "build the real object"),
    "private": ("the private attribute {}", "test what callers see"),
    "skip": ("{}", "let the test run, or mark it with skipif"),
}


def _uses(node: ast.AST) -> Iterator[tuple[str, str]]:
    """What a reviewer would object to in ``node``: the gate and the name."""
    for name in _names(node):
        if name in _DOUBLES or name.startswith("unittest.mock"):
            yield "mock", name
    if isinstance(node, ast.Attribute):
        if _is_private(node):
            yield "private", node.attr
        if node.attr in _EVASIONS:
            yield "skip", node.attr


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module == "unittest.mock")


def _is_private(node: ast.Attribute) -> bool:
    own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
    return node.attr.startswith("_") and not node.attr.startswith("__") and not own
