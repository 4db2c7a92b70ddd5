# SPDX-License-Identifier: Apache-2.0
"""The engine on GPUs, judged by its results.

Nothing is run here: ``VLLM_SERIES_RESULTS`` names the file that :mod:`engine.batch` wrote on a machine with a
GPU, and ``VLLM_SERIES_TREE_ID`` the tree that is judged (default: the whole series). What was not run is
skipped. ``vllm-series test --results FILE`` sets both, for a tree with a patch and for the one without it.
"""

import os
from pathlib import Path

import pytest

from engine.checks import CHECKS, Check
from engine.results import FailedError, NotRunError, Results


@pytest.fixture(scope="module")
def results() -> Results:
    name = os.environ.get("VLLM_SERIES_RESULTS")
    if not name:
        pytest.skip("there are no results of a run on a GPU: ci/gpu.sh makes them")
    return Results.read(Path(name), os.environ.get("VLLM_SERIES_TREE_ID", ""))


def judge(results: Results, check: Check) -> None:
    try:
        print(check.claim(results, check.scenario))
    except NotRunError as error:
        pytest.skip(str(error))
    except FailedError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.mark.parametrize(
    "check", [check for check in CHECKS if check.tier == "gpu"], ids=lambda check: check.id
)
def test_kernels(results: Results, check: Check) -> None:
    judge(results, check)


@pytest.mark.parametrize(
    "check", [check for check in CHECKS if check.tier == "engine"], ids=lambda check: check.id
)
def test_one_stage(results: Results, check: Check) -> None:
    judge(results, check)


@pytest.mark.parametrize(
    "check", [check for check in CHECKS if check.tier == "pp"], ids=lambda check: check.id
)
def test_stages(results: Results, check: Check) -> None:
    judge(results, check)
