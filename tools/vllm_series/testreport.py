# SPDX-License-Identifier: Apache-2.0
"""What a run of tests came to: the events of the pytest plugin as values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from vllm_series.errors import UsageError

#: An error about a name that a tree lacks; of these, the ones about other packages are the environment's.
_MISSING = re.compile(r"(ImportError|ModuleNotFoundError|AttributeError)\b:? ?(.*)")
_TREE_PACKAGES = ("vllm", "tests")


class Outcome(StrEnum):
    """What became of a test."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"

    @property
    def bad(self) -> bool:
        """Whether the test, its fixtures or its import failed."""
        return self in (Outcome.FAILED, Outcome.ERROR)


@dataclass(frozen=True)
class Test:
    """One test, or one file that could not be collected.

    Attributes:
        node: pytest's node id.
        outcome: What became of it. An expected failure is no pass and counts as skipped.
        seconds: How long its phases took.
        reason: One line on a failure or skip.
        place: File and line that raised, as far as pytest says; relative to the tree if it lies there.
        text: The failure as pytest prints it.
        collected: False for a file that could not be collected.

    """

    __test__ = False

    node: str
    outcome: Outcome
    seconds: float = 0.0
    reason: str = ""
    place: str = ""
    text: str = ""
    collected: bool = True

    @property
    def is_about_the_tree(self) -> bool:
        """Whether a bad outcome says something of the tree, not of the environment.

        A file that cannot be collected says something if a name of the tree is missing. A test that
        ran says something unless a foreign package is missing.
        """
        match = _MISSING.match(self.reason)
        if match is None:
            return self.collected
        named = re.findall(r"'([\w.]+)'|\(([^()]+)\)", match[2])
        words = [word for pair in named for word in pair if word]
        of_tree = any(word.split(".")[0] in _TREE_PACKAGES for word in words)
        in_tree = self.place.split("/")[0] in _TREE_PACKAGES
        if match[1] == "ModuleNotFoundError":
            return of_tree
        return of_tree or in_tree


@dataclass(frozen=True)
class TestRun:
    """The tests of one run.

    Attributes:
        tests: In the order in which they ended.
        seconds: How long the whole run took.
        stopped: Why it was stopped before its end, empty if it was not.
        foreign: Imports of a vllm that is not the tree.
        leftovers: Processes that outlived the run, and the test each came from.
        problem: Why pytest could not run at all, empty if it could.

    """

    __test__ = False

    tests: tuple[Test, ...]
    seconds: float = 0.0
    stopped: str = ""
    foreign: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()
    problem: str = ""

    def named(self, outcome: Outcome) -> list[Test]:
        """The tests with an outcome."""
        return [test for test in self.tests if test.outcome == outcome]

    @property
    def bad(self) -> list[Test]:
        """The tests that failed."""
        return [test for test in self.tests if test.outcome.bad]

    @property
    def counts(self) -> dict[str, int]:
        """How many tests had which outcome; outcomes that none had are left out."""
        return {o.value: len(self.named(o)) for o in Outcome if self.named(o)}

    def document(self) -> dict[str, object]:
        """The run as plain JSON types; :func:`from_document` reads it back."""
        return json.loads(json.dumps(asdict(self)))  # type: ignore[no-any-return]


def from_document(document: Mapping[str, object]) -> TestRun:
    """The inverse of :meth:`TestRun.document`.

    Raises:
        UsageError: It is something else.

    """
    row: dict[str, Any] = dict(document)
    try:
        tests = tuple(Test(**{**test, "outcome": Outcome(test["outcome"])}) for test in row.pop("tests"))
        foreign, leftovers = tuple(row.pop("foreign")), tuple(row.pop("leftovers"))
        return TestRun(tests, foreign=foreign, leftovers=leftovers, **row)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"no record of a test run: {error}") from None


def merge(runs: Sequence[TestRun]) -> TestRun:
    """Several runs as one; a test that ran twice counts once, with the worse outcome."""
    order = [Outcome.SKIPPED, Outcome.PASSED, Outcome.FAILED, Outcome.ERROR]
    tests: dict[str, Test] = {}
    for run in runs:
        for test in run.tests:
            known = tests.get(test.node)
            if known is None or order.index(test.outcome) > order.index(known.outcome):
                tests[test.node] = test
    return TestRun(
        tuple(tests.values()),
        sum(run.seconds for run in runs),
        next((run.stopped for run in runs if run.stopped), ""),
        tuple(line for run in runs for line in run.foreign),
        tuple(line for run in runs for line in run.leftovers),
        next((run.problem for run in runs if run.problem), ""),
    )


def read_events(lines: Iterable[str]) -> list[dict[str, object]]:
    """The events of a report; a last line that a kill cut off is left out."""
    events = []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            events.append(event)
    return events


def read_tests(events: Sequence[Mapping[str, object]], stopped: str = "") -> tuple[Test, ...]:
    """The tests that a report tells of.

    Args:
        events: The report.
        stopped: Why the run was stopped before its end. The test that was at work then failed for this
            reason, and so did those that never began.

    """
    tests: dict[str, Test] = {}
    waiting: dict[str, None] = {}
    for event in events:
        node = str(event.get("node", ""))
        match event["event"]:
            case "collected":
                waiting = dict.fromkeys(event["nodes"])  # type: ignore[call-overload]
            case "collect-error":
                reason, place, text = (str(event[key]) for key in ("reason", "place", "text"))
                tests[node] = Test(node, Outcome.ERROR, 0.0, reason, place, text, collected=False)
            case "collect-skip":
                tests[node] = Test(node, Outcome.SKIPPED, 0.0, str(event["reason"]), collected=False)
            case "phase":
                tests[node] = _after_phase(tests.get(node), event)
                if event["when"] == "teardown":
                    waiting.pop(node, None)
    if stopped:
        for number, node in enumerate(waiting):
            reason = stopped if number == 0 else "not run: the run was stopped before"
            tests[node] = Test(node, Outcome.ERROR, 0.0, reason)
    return tuple(tests.values())


def _after_phase(known: Test | None, event: Mapping[str, object]) -> Test:
    node, when, said = str(event["node"]), event["when"], event["outcome"]
    seconds = float(str(event["seconds"])) + (known.seconds if known else 0.0)
    reason, place, text = (str(event.get(key, "")) for key in ("reason", "place", "text"))
    if said == "failed":
        outcome = Outcome.FAILED if when == "call" else Outcome.ERROR
        if known is not None and known.outcome.bad:
            return Test(node, known.outcome, seconds, known.reason, known.place, known.text)
        return Test(node, outcome, seconds, reason, place, text)
    if said == "skipped":
        return Test(node, Outcome.SKIPPED, seconds, str(event.get("expected", reason)))
    if known is None:
        return Test(node, Outcome.PASSED, seconds)
    return Test(node, known.outcome, seconds, known.reason, known.place, known.text)
