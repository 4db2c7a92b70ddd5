# SPDX-License-Identifier: Apache-2.0
"""``tests.toml``: which tests prove which patch, and in which tier.

One table per patch. A key named as a tier holds selectors: pytest node ids in the vLLM tree
(``tests/a/test_b.py::test_c``), a file with an expression (``tests/a/test_b.py::-k one or two``), or either
behind ``project:`` for a file of this project, which finds the tree in ``VLLM_TREE``. ``upstream`` replaces
the list of vLLM's own test files that must not get worse, which by default are those that the patch
touches. ``series`` names selectors of a tier that pass in the series alone, since they need patches beside
the prerequisites: with ``--each`` and ``--prefix`` they are not run. A table ``base."v0.32.0"`` replaces keys
on that base.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from vllm_series.errors import UsageError
from vllm_series.project import Project

UPSTREAM = "upstream"
SERIES = "series"
PROJECT = "project:"
_EXPRESSION = "::-k "


@dataclass(frozen=True, order=True)
class Selector:
    """Some tests.

    Attributes:
        text: As written in the table.

    """

    text: str

    @property
    def project(self) -> bool:
        """Whether the tests are this project's and not the tree's."""
        return self.text.startswith(PROJECT)

    @property
    def _rest(self) -> str:
        return self.text.removeprefix(PROJECT)

    @property
    def file(self) -> str:
        """The test file or folder, relative to the tree or to the project."""
        return self._rest.split("::", 1)[0]

    @property
    def expression(self) -> str:
        """The expression of a ``-k``, empty if there is none."""
        _, found, expression = self._rest.partition(_EXPRESSION)
        return expression.strip() if found else ""

    @property
    def node(self) -> str:
        """What pytest is given: a file, a folder or a node id."""
        return self.file if self.expression else self._rest

    def covers(self, node: str) -> bool:
        """Whether a test's node id is among the selected, leaving the expression aside."""
        return node == self.node or node.startswith((f"{self.node}::", f"{self.node}[", f"{self.node}/"))


@dataclass(frozen=True)
class PatchTests:
    """The tests of one patch on one base.

    Attributes:
        tiers: Selectors by tier.
        upstream: vLLM's own tests that must not get worse; None for the files that the patch touches.
        series: Those of the selectors that need other patches of the series.

    """

    tiers: Mapping[str, tuple[Selector, ...]] = field(default_factory=dict)
    upstream: tuple[Selector, ...] | None = None
    series: tuple[Selector, ...] = ()

    def alone(self) -> PatchTests:
        """The tests that need no other patch than the prerequisites."""
        tiers = {
            tier: tuple(selector for selector in selectors if selector not in self.series)
            for tier, selectors in self.tiers.items()
        }
        return PatchTests(tiers, self.upstream)


@dataclass(frozen=True)
class TestTable:
    """The whole file: per patch the plain keys, and per base those that replace them."""

    __test__ = False

    plain: Mapping[str, PatchTests] = field(default_factory=dict)
    on_base: Mapping[tuple[str, str], PatchTests] = field(default_factory=dict)

    def of(self, name: str, base: str) -> PatchTests:
        """The tests of the patch ``name`` on the base ``base`` (a release tag)."""
        plain = self.plain.get(name, PatchTests())
        other = self.on_base.get((name, base), PatchTests())
        upstream = other.upstream if other.upstream is not None else plain.upstream
        return PatchTests({**plain.tiers, **other.tiers}, upstream, other.series or plain.series)


def parse_tests(text: str, tiers: tuple[str, ...], where: str = "tests.toml") -> TestTable:
    """Read ``tests.toml``.

    Args:
        text: The file.
        tiers: The tiers that have selectors.
        where: The file's name, for messages.

    Raises:
        UsageError: Not TOML, an unknown key, or a selector that cannot be one.

    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{where}: {error}") from None
    plain, on_base = {}, {}
    for name, row in document.items():
        if not isinstance(row, dict):
            raise UsageError(f"{where}: {name} is no table")
        bases = row.pop("base", {})
        if not isinstance(bases, dict):
            raise UsageError(f'{where}: [{name}] base is no table; write [{name}.base."v1.2.3"]')
        plain[name] = _tests(row, tiers, f"{where}: [{name}]")
        for base, other in bases.items():
            on_base[name, base] = _tests(other, tiers, f"{where}: [{name}.base.{base!r}]")
    table = TestTable(plain, on_base)
    for name, tests in plain.items():
        _require_in_a_tier(tests, f"{where}: [{name}]")
    for name, base in on_base:
        _require_in_a_tier(table.of(name, base), f"{where}: [{name}.base.{base!r}]")
    return table


def load_tests(project: Project, tiers: tuple[str, ...]) -> TestTable:
    """A project's ``tests.toml``, empty if there is none.

    Raises:
        UsageError: It cannot be understood, or names a patch or a base that the project does not have.

    """
    path = project.patch_dir / "tests.toml"
    table = parse_tests(path.read_text("utf-8") if path.is_file() else "", tiers, str(path))
    refs = {base.ref for base in project.bases}
    for name in table.plain:
        if name not in project.series.names:
            raise UsageError(f"{path}: [{name}] is no patch of the series")
    for name, base in table.on_base:
        if base not in refs:
            raise UsageError(f"{path}: [{name}] {base} is no supported base")
    return table


def _tests(row: object, tiers: tuple[str, ...], where: str) -> PatchTests:
    if not isinstance(row, dict):
        raise UsageError(f"{where} is no table")
    known = (*tiers, UPSTREAM, SERIES)
    unknown = sorted(row.keys() - set(known))
    if unknown:
        raise UsageError(f"{where} has the unknown key {unknown[0]!r} (known: {', '.join(known)})")
    found = {key: tuple(_selector(x, where) for x in _strings(row[key], key, where)) for key in row}
    upstream, series = found.pop(UPSTREAM, None), found.pop(SERIES, ())
    return PatchTests(found, upstream, series)


def _require_in_a_tier(tests: PatchTests, where: str) -> None:
    for selector in tests.series:
        if not any(selector in selectors for selectors in tests.tiers.values()):
            raise UsageError(f"{where} {SERIES} names {selector.text!r}, which is in no tier")


def _strings(value: object, key: str, where: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
        raise UsageError(f"{where} {key} is no list of strings")
    if len(set(value)) != len(value):
        raise UsageError(f"{where} {key} names a selector twice")
    return value


def _selector(text: str, where: str) -> Selector:
    selector = Selector(text)
    path = PurePosixPath(selector.file)
    outside = path.is_absolute() or ".." in path.parts or path.parts[:1] != ("tests",)
    if outside or re.search(r"\s", selector.file):
        raise UsageError(
            f"{where}: {text!r} is no selector",
            hint="write tests/a/test_b.py::test_c, tests/a/test_b.py::-k EXPRESSION, or project:tests/…",
        )
    return selector
