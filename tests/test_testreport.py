# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from vllm_series.errors import UsageError
from vllm_series.testreport import Outcome, Test, TestRun, from_document, merge, read_events, read_tests


def phase(node, when, outcome, **more):
    return {"event": "phase", "node": node, "when": when, "outcome": outcome, "seconds": 1.0, **more}


def test_a_test_passes_if_every_phase_does():
    events = [phase("t", when, "passed") for when in ("setup", "call", "teardown")]
    assert read_tests(events) == (Test("t", Outcome.PASSED, 3.0),)


@pytest.mark.parametrize(
    ("when", "outcome"), [("setup", Outcome.ERROR), ("call", Outcome.FAILED), ("teardown", Outcome.ERROR)]
)
def test_a_bad_phase_is_told_apart(when, outcome):
    events = [
        phase("t", w, "failed" if w == when else "passed", reason="E: x")
        for w in ("setup", "call", "teardown")
    ]
    found = read_tests(events)[0]
    assert (found.outcome, found.reason) == (outcome, "E: x")


def test_the_first_failure_of_a_test_counts():
    events = [phase("t", "call", "failed", reason="first"), phase("t", "teardown", "failed", reason="second")]
    assert read_tests(events)[0].reason == "first"


def test_an_expected_failure_is_no_pass():
    events = [phase("t", "setup", "passed"), phase("t", "call", "skipped", expected="known bug")]
    assert read_tests(events)[0] == Test("t", Outcome.SKIPPED, 2.0, "known bug")


def test_a_stopped_run_fails_the_test_at_work_and_those_to_come():
    events = [
        {"event": "collected", "nodes": ["a", "b", "c"]},
        phase("a", "setup", "passed"),
        phase("a", "call", "passed"),
        phase("a", "teardown", "passed"),
        {"event": "test", "node": "b"},
    ]
    found = {test.node: test for test in read_tests(events, "time limit: b took longer than 1 s")}
    assert found["a"].outcome is Outcome.PASSED
    assert (found["b"].outcome, found["b"].reason) == (Outcome.ERROR, "time limit: b took longer than 1 s")
    assert found["c"].outcome is Outcome.ERROR


def test_a_cut_off_line_is_left_out():
    assert read_events(['{"event": "start"}', '{"event": "te']) == [{"event": "start"}]


@pytest.mark.parametrize(
    ("reason", "place", "collected", "about"),
    [
        ("assert 41 == 42", "tests/a.py:3", True, True),
        ("StopIteration", "vllm/a.py:3", True, True),
        ("ImportError: cannot import name 'new' from 'vllm.engine' (/t/vllm/engine.py)", "", False, True),
        ("ModuleNotFoundError: No module named 'vllm.new'", "", False, True),
        ("ModuleNotFoundError: No module named 'anthropic'", "tests/conftest.py:1", False, False),
        ("ModuleNotFoundError: No module named 'anthropic'", "vllm/a.py:9", True, False),
        ("AttributeError: module 'vllm.engine' has no attribute 'new'", "", False, True),
        ("AttributeError: type object 'Mode' has no attribute 'NEW'", "vllm/mode.py:4", False, True),
        ("AttributeError: module 'torch' has no attribute 'x'", "ENV/torch/tests/a.py:4", False, False),
        ("TypeError: f() got an unexpected keyword argument 'new'", "vllm/mode.py:4", False, False),
        ("SyntaxError: invalid syntax", "tests/a.py:4", False, False),
    ],
)
def test_which_failures_say_something_of_the_tree(reason, place, collected, about):
    test = Test("t", Outcome.ERROR, 0.0, reason, place, "", collected)
    assert test.is_about_the_tree is about


def test_a_run_survives_its_document():
    run = TestRun(
        (
            Test("t", Outcome.FAILED, 1.5, "why", "a.py:1", "text"),
            Test("f", Outcome.SKIPPED, collected=False),
        ),
        2.0,
        foreign=("process 1",),
        leftovers=("process 2",),
    )
    assert from_document(run.document()) == run
    with pytest.raises(UsageError):
        from_document({"tests": [{"node": "t"}]})


def test_a_test_that_ran_twice_counts_with_the_worse_outcome():
    one = TestRun((Test("a", Outcome.PASSED), Test("b", Outcome.FAILED)), 1.0)
    other = TestRun((Test("a", Outcome.FAILED), Test("b", Outcome.PASSED)), 2.0, stopped="why")
    run = merge([one, other])
    assert [test.outcome for test in run.tests] == [Outcome.FAILED, Outcome.FAILED]
    assert (run.seconds, run.stopped, run.counts) == (3.0, "why", {"failed": 2})
