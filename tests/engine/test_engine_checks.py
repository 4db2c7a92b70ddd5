# SPDX-License-Identifier: Apache-2.0
"""The judges of the engine's results: good ones pass, and each kind of bad one fails."""

import copy
import json
import math
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import synthetic
from engine.bands import common_prefix, decoded, difference, loops
from engine.batch import causes
from engine.checks import CHECKS, Check
from engine.results import FailedError, NotRunError, Results, steps
from engine.run import ScenarioError, read_scenario
from engine.scenarios import SCENARIOS, SERIES

ROOT = Path(__file__).resolve().parents[2]
GOOD = synthetic.document()
Run = dict[str, Any]


def check_of(name: str) -> Check:
    return next(check for check in CHECKS if check.id == name)


def judged(change: Callable[[Run], None], scenario: str) -> Results:
    document = copy.deepcopy(GOOD)
    change(document["runs"][f"{SERIES}/{scenario}"])
    return Results(document, SERIES)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_good_results_pass(check: Check) -> None:
    assert check.claim(Results(GOOD, SERIES), check.scenario)


def shift(kind: str, by: float, number: int = 0) -> Callable[[Run], None]:
    def change(run: Run) -> None:
        row = [step for step in run["steps"] if step["do"] == kind][number]["logprobs"]
        row[1] = [value + by for value in row[1]]

    return change


def shift_all(kind: str, by: float, number: int = 0) -> Callable[[Run], None]:
    def change(run: Run) -> None:
        step = [step for step in run["steps"] if step["do"] == kind][number]
        step["logprobs"] = [[value + by for value in row] for row in step["logprobs"]]

    return change


def no_hits(run: Run) -> None:
    for step in run["steps"]:
        step["counters"]["hits"] = step["counters"]["external_hits"] = step["counters"]["draft_tokens"] = 0


def not_finite(run: Run) -> None:
    run["steps"][0]["logprobs"][2][3] = math.nan


def not_finite_soak(run: Run) -> None:
    next(step for step in run["steps"] if step["do"] == "soak")["finite"] = False


def cut_short(run: Run) -> None:
    run["steps"][0]["tokens_out"][1].pop()


def looping(run: Run) -> None:
    row = run["steps"][0]["tokens_out"][1]
    row[:] = row[:8] + [5, 6] * 8


def accept_all(run: Run) -> None:
    for row in run["partitions"]:
        row["accepted"] = True


def refuse_all(run: Run) -> None:
    for row in run["partitions"]:
        row.update(accepted=False, error="no such stage")


def refuse_for_another_reason(run: Run) -> None:
    run["partitions"][-1]["error"] = "ImportError: no module named x"


def fail_a_test(run: Run) -> None:
    run["tests"]["a::c"] = "skipped"


def run_no_test(run: Run) -> None:
    run["tests"] = {}


def stall(run: Run) -> None:
    run["steps"][0]["rates"]["8"] = 0.0


def loosen(run: Run) -> None:
    run["reference"]["context"] = [3 * synthetic.ROUNDING] * 5


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tight-eager", loosen),
        ("like_reference-eager", shift("score", 0.3)),
        ("like_reference-pp-eager", shift("score", 0.3)),
        ("like_anchor-int8", shift("score", 0.3)),
        ("like_anchor-pp-fp8", shift("score", 0.8)),
        ("like_anchor-graphs", shift_all("generate", 0.3)),
        ("decode_like_prefill-eager", shift("generate", 0.3)),
        ("decode_like_prefill-pp-graphs", shift("rescore", 0.3, 1)),
        ("hit_like_cold-eager", shift_all("generate", 0.3, 1)),
        ("hit_like_cold-eager", no_hits),
        ("comes_back-offload", no_hits),
        ("comes_back-pp-offload-uneven", shift_all("generate", 0.3, 2)),
        ("comes_back-offload-int8", shift_all("rescore", 0.3, 1)),
        ("drafts-pp-mtp", no_hits),
        ("sound-pp-eager", not_finite),
        ("sound-pp-eager", not_finite_soak),
        ("sound-ple-file", cut_short),
        ("sound-one-chunk", looping),
        ("tests_pass-kernels-int8", fail_a_test),
        ("tests_pass-kernels-fp8", run_no_test),
        ("rates-pp-rates", stall),
        ("partitions-partitions", accept_all),
        ("partitions-partitions", refuse_all),
        ("partitions-partitions", refuse_for_another_reason),
    ],
)
def test_bad_results_fail(name: str, change: Callable[[Run], None]) -> None:
    check = check_of(name)
    scenario = "reference" if change is loosen else check.scenario
    results = judged(change, scenario)
    with pytest.raises(AssertionError):
        check.claim(results, check.scenario)


def test_every_claim_is_shown_to_fail_somewhere() -> None:
    mark = test_bad_results_fail.pytestmark[0]
    shown = {check_of(name).claim for name, _ in mark.args[1]}
    assert shown == {check.claim for check in CHECKS}


def test_what_is_loose_by_design_is_still_far_from_a_lost_context() -> None:
    found = difference([[0.0] * 9], [[2.5] * 9])
    with pytest.raises(AssertionError):
        check_of("like_anchor-fp8").claim(judged(shift("score", found.worst), "fp8"), "fp8")


def test_a_failed_run_says_why() -> None:
    def fail(run: Run) -> None:
        run.update(
            outcome="failed",
            error="RuntimeError: Engine core initialization failed. See root cause above.",
            causes=["RuntimeError: Engine core initialization failed. See above.", "StopIteration"],
        )

    with pytest.raises(FailedError, match="int8 failed: StopIteration"):
        check_of("like_anchor-int8").claim(judged(fail, "int8"), "int8")


def test_what_was_not_run_is_neither_good_nor_bad() -> None:
    with pytest.raises(NotRunError, match="not run on the tree 0123456"):
        Results(GOOD, "0123456").run("eager")


def test_a_run_that_the_end_cut_off_says_nothing() -> None:
    def cut(run: Run) -> None:
        run.update(outcome="failed", error="out of time")

    with pytest.raises(NotRunError, match="did not end in time"):
        check_of("like_anchor-int8").claim(judged(cut, "int8"), "int8")


def test_causes_are_exceptions_named_once() -> None:
    log = (
        "INFO all is well\n"
        "(Worker_PP1 pid=9) ERROR 11-30 StopIteration\n"
        "(EngineCore pid=8)   File 'x.py', line 3\n"
        "(EngineCore pid=8) torch.AcceleratorError: CUDA error: an illegal memory access\n"
        "(EngineCore pid=8) torch.AcceleratorError: CUDA error: an illegal memory access\n"
    )
    assert causes(log) == [
        "StopIteration",
        "torch.AcceleratorError: CUDA error: an illegal memory access",
    ]


def test_generations_are_compared_up_to_where_they_part() -> None:
    one = {"tokens_out": [[1, 2, 3]], "logprobs": [[-1.0, -1.0, -9.0]]}
    other = {"tokens_out": [[1, 4, 3]], "logprobs": [[-1.0, -1.2, -1.0]]}
    assert common_prefix([1, 2, 3], [1, 4, 3]) == 1
    assert decoded(one, other) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("tokens", "answer"),
    [([1, 2] * 8, True), ([7] * 9, True), ([1, 2, 3] * 3, False), (list(range(24)), False), ([4] * 3, False)],
)
def test_loops(tokens: list[int], answer: bool) -> None:
    assert loops(tokens) is answer


@pytest.mark.parametrize(
    "scenario", [scenario for scenario in SCENARIOS if not scenario.tests], ids=lambda scenario: scenario.key
)
def test_scenarios_are_read_by_the_runner(scenario: Any) -> None:
    assert read_scenario(json.dumps(scenario.document()))["name"] == scenario.name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "no JSON object"),
        ('{"steps": [], "stages": 2}', "unknown key 'stages'"),
        ('{"name": "x"}', "either steps or partitions"),
        ('{"steps": [{"do": "sleep"}]}', "unknown step"),
    ],
)
def test_a_bad_scenario_is_refused(text: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        read_scenario(text)


def test_the_runner_exits_2_on_a_bad_scenario(tmp_path: Path) -> None:
    (tmp_path / "scenario.json").write_text("{")
    command = [
        sys.executable,
        ROOT / "tests/engine/run.py",
        tmp_path / "scenario.json",
        tmp_path,
        tmp_path / "r",
    ]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(ROOT / "tests")}
    )
    assert ended.returncode == 2
    assert "not JSON" in ended.stderr
    assert not (tmp_path / "r").exists()


def test_the_table_of_tests_names_claims_that_exist() -> None:
    rows = tomllib.loads((ROOT / "patches/tests.toml").read_text())
    prefix = "project:tests/engine/test_engine.py::"
    named = [
        selector.removeprefix(prefix)
        for row in rows.values()
        for tier in ("gpu", "engine", "pp")
        for selector in row.get(tier, [])
    ]
    functions = {"gpu": "test_kernels", "engine": "test_one_stage", "pp": "test_stages"}
    assert named
    assert set(named) <= {
        f"{functions[check.tier]}[{check.id}]" for check in CHECKS if check.tier in functions
    }


def test_every_control_repeats_a_scenario_of_the_series() -> None:
    names = {scenario.name for scenario in SCENARIOS if not scenario.fails}
    assert all(scenario.name in names for scenario in SCENARIOS)
    assert all(scenario.role != SERIES for scenario in SCENARIOS if scenario.fails)


def test_the_anchor_has_what_others_are_compared_with() -> None:
    run = GOOD["runs"][f"{SERIES}/eager"]
    assert len(steps(run, "generate")) == 2
    assert len(steps(run, "score")) == 1
