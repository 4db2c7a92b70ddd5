# SPDX-License-Identifier: Apache-2.0
"""Run tests of a vLLM tree that need a GPU and no engine.

``python -m engine.treetests TREE NODE... RESULT.json``

The tree's own ``conftest.py`` imports what a GPU machine without a package index lacks, so it stays out;
the one fixture that these tests take from it is here.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


class Fixtures:
    """What the tests ask for."""

    @pytest.fixture
    def dist_init(self) -> Iterator[None]:
        """A world of one process."""
        from vllm.config import VllmConfig, set_current_vllm_config
        from vllm.distributed import (
            cleanup_dist_env_and_memory,
            init_distributed_environment,
            initialize_model_parallel,
        )

        with tempfile.TemporaryDirectory() as folder, set_current_vllm_config(VllmConfig()):
            method = f"file://{folder}/rendezvous"
            init_distributed_environment(1, 0, method, 0, backend="nccl")
            initialize_model_parallel(1, 1)
            yield
            cleanup_dist_env_and_memory()


class Outcomes:
    """Notes what becomes of each test."""

    def __init__(self) -> None:
        self.tests: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A phase of a test has ended; the worst counts."""
        if report.when == "call" or report.outcome != "passed":
            self.tests[report.nodeid] = report.outcome

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file was collected, or not."""
        if report.failed:
            self.tests[report.nodeid] = "failed"


def main() -> int:
    """Run them; exit 1 if pytest could not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tree", type=Path)
    parser.add_argument("nodes", nargs="+")
    parser.add_argument("result", type=Path)
    args = parser.parse_args()
    started = time.monotonic()
    outcomes = Outcomes()
    result_path = args.result.absolute()
    os.chdir(args.tree)
    config = result_path.with_name("pytest.ini")
    config.write_text("[pytest]\n")
    options = ["--noconftest", "-p", "no:cacheprovider", "--rootdir", str(args.tree), "-c", str(config), "-q"]
    files = [node.split("::-k ")[0] for node in args.nodes]
    words = [node.split("::-k ")[1] for node in args.nodes if "::-k " in node]
    code = pytest.main(
        [*options, *(["-k", " or ".join(words)] if words else []), *files], plugins=[Fixtures(), outcomes]
    )
    ran = code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)
    result: dict[str, Any] = {
        "outcome": "finished" if ran else "failed",
        "error": "" if ran else f"pytest: {pytest.ExitCode(code).name}",
        "steps": [],
        "tests": outcomes.tests,
        "seconds": {"all": round(time.monotonic() - started, 1)},
    }
    result_path.write_text(json.dumps(result))
    return 0 if ran else 1


if __name__ == "__main__":
    sys.exit(main())
