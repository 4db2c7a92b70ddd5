# SPDX-License-Identifier: Apache-2.0
"""Tables and comparisons."""

from __future__ import annotations

import json

import pytest
from vllm_series.bench.report import bad_answers, compare, markdown, number, rows_of
from vllm_series.bench.result import Measurement, Result, Sample, read_result
from vllm_series.errors import UsageError


def result(*rates: float, **settings: object) -> Result:
    made = [
        Measurement("decode", {"context": 1024, "users": 2, "run": n}, {"rate": rate}, (Sample(1024, 8),))
        for n, rate in enumerate(rates)
    ]
    return Result({"seed": 0, "tokens": 128, **settings}, {"model": "tiny"}, len(made), "complete", made)


def test_runs_become_one_row():
    [row] = rows_of(result(10.0, 30.0, 20.0))
    assert (row.median, row.values, row.with_what) == (20.0, (10.0, 30.0, 20.0), "1024 tokens, 2 at once")


def test_a_failed_measurement_is_no_value_and_is_reported():
    one = result(10.0)
    one.measurements.append(
        Measurement("decode", {"context": 1024, "users": 2, "run": 1}, problem="HTTP 500")
    )
    assert rows_of(one)[0].values == (10.0,)
    assert "## Failed\n\n- decode context=1024 users=2 run=1: HTTP 500" in markdown(one)


def test_the_report_says_when_it_is_not_whole():
    one = result(10.0)
    one.state, one.planned = "interrupted", 9
    assert "**interrupted after 1 of 9 measurements.**" in markdown(one)
    assert "| generation per session | 1024 tokens, 2 at once | 10 | 10 | 10 | tokens/s | 1 |" in markdown(
        one
    )


def test_answers_to_look_at():
    one = result()
    for values in ({"loops": 2, "not_finite": 1}, {"found": False}, {"same_hot": True, "same_back": False}):
        one.measurements.append(Measurement("check", {}, values))
    texts = bad_answers(one)
    assert len(texts) == 4
    assert "2 answers" in texts[0]


def test_comparison_says_what_is_apart_and_what_is_doubtful():
    pairs, doubts = compare(result(10.0, 11.0), result(20.0, 22.0))
    assert [(p.ratio, p.clear) for p in pairs] == [(2.0, True)]
    assert doubts == []
    pairs, doubts = compare(result(10.0, 20.0), result(15.0, 16.0, seed=1, tokens=64))
    assert not pairs[0].clear
    assert doubts == ["tokens differs: 128 and 64", "seed differs: 0 and 1"]
    assert not compare(result(10.0), result(20.0))[0][0].clear
    unfinished = result(1.0)
    unfinished.state = "interrupted"
    assert compare(result(1.0), unfinished)[1] == ["the second run is not whole: interrupted"]


def test_a_result_is_read_back(tmp_path):
    one = result(10.0, 11.0)
    (tmp_path / "result.json").write_text(json.dumps(one.document()))
    assert read_result(tmp_path) == one
    assert read_result(tmp_path / "result.json") == one


def test_what_is_no_result(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        read_result(tmp_path)
    for text in ("{", "[]", '{"schema": 1}'):
        (tmp_path / "result.json").write_text(text)
        with pytest.raises(UsageError, match="is no result"):
            read_result(tmp_path)
    (tmp_path / "result.json").write_text('{"schema": 99}')
    with pytest.raises(UsageError, match="the form 99"):
        read_result(tmp_path)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1.0, "1"), (0.012345, "0.01235"), (12.345, "12.35"), (123.45, "123.5"), (123456.7, "123457")],
)
def test_numbers_are_short(value, text):
    assert number(value) == text
