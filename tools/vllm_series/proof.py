# SPDX-License-Identifier: Apache-2.0
"""What test runs say of a patch: pure judgement, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from vllm_series.errors import EXIT_NO, EXIT_OK, EXIT_SKIPPED
from vllm_series.testreport import Outcome, Test, TestRun
from vllm_series.testtable import Selector


class Verdict(StrEnum):
    """The answer on a patch in a tier."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_LOAD_BEARING = "not-load-bearing"
    NEWLY_FAILING = "newly-failing"
    SKIPPED = "skipped"
    NO_TESTS = "no-tests"
    NOT_NEEDED = "not-needed"

    @property
    def is_no(self) -> bool:
        """Whether the patch is not as it must be."""
        return self in (Verdict.FAILED, Verdict.NOT_LOAD_BEARING, Verdict.NEWLY_FAILING)

    @property
    def unproven(self) -> bool:
        """Whether nothing was shown, one way or the other."""
        return self in (Verdict.SKIPPED, Verdict.NO_TESTS)


@dataclass(frozen=True)
class Judgement:
    """A verdict and one line that says why."""

    verdict: Verdict
    reason: str = ""


def _shown(test: Test) -> str:
    return f"{test.node}: {test.reason}" if test.reason else test.node


def _invalid(run: TestRun) -> str:
    """Why a run proves nothing, whatever its tests came to."""
    if run.problem:
        return run.problem
    return run.foreign[0] if run.foreign else ""


def judge_patched(run: TestRun, by_selector: Mapping[Selector, TestRun]) -> Judgement:
    """Whether a patch's tests pass on the tree with it: each selector has a pass and no failure."""
    invalid = _invalid(run)
    if invalid:
        return Judgement(Verdict.FAILED, invalid)
    if run.bad:
        return Judgement(Verdict.FAILED, _shown(run.bad[0]))
    if run.stopped:
        return Judgement(Verdict.FAILED, run.stopped)
    for selector, part in by_selector.items():
        if not part.tests:
            return Judgement(Verdict.FAILED, f"{selector.text} selects no test")
        if not part.named(Outcome.PASSED):
            return Judgement(Verdict.SKIPPED, _shown(part.tests[0]))
    return Judgement(Verdict.PASSED)


def judge_control(run: TestRun, by_selector: Mapping[Selector, TestRun]) -> Judgement:
    """Whether a patch's tests fail on the tree without it: each selector has a failure.

    A failure about the environment shows nothing of the patch, see :attr:`Test.is_about_the_tree`.
    The reason is that of the first failure that counts, so ``PASSED`` here means that the control is
    good, not that its tests passed.
    """
    invalid = _invalid(run)
    if invalid:
        return Judgement(Verdict.FAILED, f"the control cannot be run: {invalid}")
    first = ""
    for selector, part in by_selector.items():
        counting = [test for test in part.bad if test.is_about_the_tree]
        if counting:
            first = first or _shown(counting[0])
        elif part.bad:
            return Judgement(
                Verdict.FAILED, f"the control fails for a reason of its own: {_shown(part.bad[0])}"
            )
        elif part.named(Outcome.PASSED):
            return Judgement(Verdict.NOT_LOAD_BEARING, f"{selector.text} passes without the patch")
        else:
            skipped = _shown(part.tests[0]) if part.tests else f"{selector.text} selects no test"
            return Judgement(Verdict.SKIPPED, f"the control was skipped: {skipped}")
    return Judgement(Verdict.PASSED, first)


def newly_failing(before: TestRun, after: TestRun) -> list[Test]:
    """The tests that fail after and did not before.

    A file that cannot be collected after is one of them, unless it could not be before either.
    """
    failed = {test.node for test in before.bad}
    files = {test.node for test in before.bad if not test.collected}
    return [t for t in after.bad if t.node not in failed and t.node.split("::")[0] not in files]


def repeated(run: TestRun, again: TestRun) -> TestRun:
    """A run after a second try: what passed then counts, and its reason says how it failed first."""
    passed = {test.node for test in again.named(Outcome.PASSED)}
    return replace(
        run,
        tests=tuple(
            Test(test.node, Outcome.PASSED, test.seconds, test.reason) if test.node in passed else test
            for test in run.tests
        ),
    )


def judge_upstream(before: TestRun, after: TestRun) -> Judgement:
    """Whether vLLM's own tests got worse from the base to the patched tree."""
    invalid = _invalid(after)
    if invalid and invalid != _invalid(before):
        return Judgement(Verdict.NEWLY_FAILING, invalid)
    worse = newly_failing(before, after)
    if worse:
        return Judgement(Verdict.NEWLY_FAILING, _shown(worse[0]))
    return Judgement(Verdict.PASSED)


def conclude(
    patched: Judgement, control: Judgement | None = None, upstream: Judgement | None = None
) -> Judgement:
    """The answer from the three runs: the first that is not good, a "no" before a skip."""
    found = [judgement for judgement in (patched, control, upstream) if judgement is not None]
    for judgement in found:
        if judgement.verdict.is_no:
            return judgement
    return next((j for j in found if j.verdict.unproven), Judgement(Verdict.PASSED))


def exit_code(verdicts: Iterable[Verdict]) -> int:
    """1 if any answer is no, else 6 if anything that was demanded was not shown, else 0."""
    found = list(verdicts)
    if any(verdict.is_no for verdict in found):
        return EXIT_NO
    return EXIT_SKIPPED if any(verdict.unproven for verdict in found) else EXIT_OK


def demanded(
    by_patch: Mapping[str, Mapping[str, Verdict]], *, names_given: bool, tiers_given: bool
) -> list[Verdict]:
    """The verdicts that the exit code counts: a tier that a patch states no tests for may be no gap.

    Args:
        by_patch: Verdict by patch and tier.
        names_given: Whether the patches were named.
        tiers_given: Whether the tiers were named.

    Returns:
        Every verdict but ``no-tests``, and that one where it is a gap: the patch and the tier were
        named; or no tier was, and the patch has tests in none; or no patch has tests in the tiers named.

    """
    found = []
    every = [v for row in by_patch.values() for v in row.values()]
    nothing_ran = bool(every) and all(v is Verdict.NO_TESTS for v in every)
    for row in by_patch.values():
        untested = all(v is Verdict.NO_TESTS for tier, v in row.items() if tier != "static")
        gap = (names_given and tiers_given) or (untested and not tiers_given) or nothing_ran
        found += [v for v in row.values() if v is not Verdict.NO_TESTS or gap]
    return found
