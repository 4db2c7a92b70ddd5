# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from vllm_series.proof import (
    Judgement,
    Verdict,
    conclude,
    demanded,
    exit_code,
    judge_control,
    judge_patched,
    judge_upstream,
    newly_failing,
)
from vllm_series.testreport import Outcome, Test, TestRun
from vllm_series.testtable import Selector

P, F, E, S = Outcome.PASSED, Outcome.FAILED, Outcome.ERROR, Outcome.SKIPPED
ONE, TWO = Selector("tests/a.py::one"), Selector("tests/a.py::two")


def made(*outcomes, **more):
    """A run of one selector with tests of these outcomes."""
    tests = tuple(Test(f"tests/a.py::one[{n}]", o, 0.0, f"why {n}") for n, o in enumerate(outcomes))
    run = TestRun(tests, **more)
    return run, {ONE: run}


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ((P,), Verdict.PASSED),
        ((P, S), Verdict.PASSED),
        ((S,), Verdict.SKIPPED),
        ((S, S), Verdict.SKIPPED),
        ((P, F), Verdict.FAILED),
        ((P, E), Verdict.FAILED),
        ((), Verdict.FAILED),
    ],
)
def test_with_the_patch(outcomes, verdict):
    assert judge_patched(*made(*outcomes)).verdict is verdict


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ((F,), Verdict.PASSED),
        ((P, F), Verdict.PASSED),
        ((S, F), Verdict.PASSED),
        ((P,), Verdict.NOT_LOAD_BEARING),
        ((P, S), Verdict.NOT_LOAD_BEARING),
        ((S,), Verdict.SKIPPED),
    ],
)
def test_without_the_patch(outcomes, verdict):
    assert judge_control(*made(*outcomes)).verdict is verdict


def test_every_selector_has_to_prove_something():
    fails, passes = made(F)[0], TestRun((Test("tests/a.py::two", P),))
    run = TestRun(fails.tests + passes.tests)
    assert judge_control(run, {ONE: fails, TWO: passes}).verdict is Verdict.NOT_LOAD_BEARING
    skips = TestRun((Test("tests/a.py::two", S),))
    assert judge_patched(made(P)[0], {ONE: made(P)[0], TWO: skips}).verdict is Verdict.SKIPPED


def test_a_control_that_fails_for_want_of_a_package_shows_nothing():
    run = TestRun(
        (Test("tests/a.py", E, 0.0, "ModuleNotFoundError: No module named 'torch'", collected=False),)
    )
    found = judge_control(run, {ONE: run})
    assert found.verdict is Verdict.FAILED
    assert "torch" in found.reason


@pytest.mark.parametrize("more", [{"problem": "no pytest"}, {"foreign": ("process 1 imported vllm",)}])
def test_a_run_on_something_else_shows_nothing(more):
    assert judge_patched(*made(P, **more)).verdict is Verdict.FAILED
    assert judge_control(*made(F, **more)).verdict is Verdict.FAILED


def test_only_tests_that_did_not_fail_before_are_newly_failing():
    before = TestRun((Test("a.py::x", P), Test("a.py::y", F), Test("a.py::gone", P)))
    after = TestRun((Test("a.py::x", F), Test("a.py::y", F), Test("a.py::new", F)))
    assert [test.node for test in newly_failing(before, after)] == ["a.py::x", "a.py::new"]
    assert judge_upstream(before, after).verdict is Verdict.NEWLY_FAILING
    assert judge_upstream(after, before).verdict is Verdict.PASSED


def test_a_file_that_never_could_be_collected_is_not_newly_failing():
    error = TestRun((Test("a.py", E, collected=False),))
    assert not newly_failing(error, error)
    assert newly_failing(TestRun((Test("a.py::x", P),)), error)


def test_a_no_comes_before_a_skip():
    good, skip, no = (Judgement(v) for v in (Verdict.PASSED, Verdict.SKIPPED, Verdict.NEWLY_FAILING))
    assert conclude(skip, good, no) is no
    assert conclude(good, skip) is skip
    assert conclude(good, good, None).verdict is Verdict.PASSED


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ([Verdict.PASSED, Verdict.NOT_NEEDED], 0),
        ([Verdict.PASSED, Verdict.SKIPPED], 6),
        ([Verdict.NO_TESTS], 6),
        ([Verdict.SKIPPED, Verdict.FAILED], 1),
        ([Verdict.NOT_LOAD_BEARING], 1),
        ([Verdict.NEWLY_FAILING], 1),
        ([], 0),
    ],
)
def test_exit_codes(verdicts, code):
    assert exit_code(verdicts) == code


@pytest.mark.parametrize(
    ("rows", "names", "tiers", "gaps"),
    [
        # A kernel patch has no CPU tests, and that is no gap unless it was asked for.
        ({"a": {"cpu": "passed"}, "b": {"cpu": "no-tests"}}, False, True, 0),
        ({"a": {"cpu": "passed"}, "b": {"cpu": "no-tests"}}, True, True, 1),
        ({"a": {"cpu": "no-tests"}, "b": {"cpu": "no-tests"}}, False, True, 2),
        # A patch without any test is a gap.
        ({"a": {"static": "passed", "cpu": "no-tests"}}, False, False, 1),
        ({"a": {"cpu": "passed", "interpret": "no-tests"}}, True, False, 0),
    ],
)
def test_when_no_tests_are_a_gap(rows, names, tiers, gaps):
    by_patch = {name: {tier: Verdict(v) for tier, v in row.items()} for name, row in rows.items()}
    found = demanded(by_patch, names_given=names, tiers_given=tiers)
    assert found.count(Verdict.NO_TESTS) == gaps
