# SPDX-License-Identifier: Apache-2.0
"""Print what the results come to, one line per scenario: ``python -m engine.table RESULTS.json``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from engine.checks import CHECKS
from engine.results import FailedError, NotRunError, Results, cause
from engine.scenarios import SCENARIOS


def rows(results: Results) -> Iterator[tuple[str, str, str]]:
    """Scenario, answer, and what was measured or why not."""
    for scenario in SCENARIOS:
        if not scenario.fails:
            yield scenario.name, *_answer(results, scenario.name)
    for key, run in results.document["runs"].items():
        role = run.get("role", "")
        if role.startswith("without "):
            failed = run["outcome"] != "finished"
            said = cause(run)[:110] if failed else "ran to its end; vllm-series test judges what came out"
            yield f"{key.partition('/')[2]} {role}", "fails" if failed else "ran", said


def _answer(results: Results, name: str) -> tuple[str, str]:
    said = []
    for check in CHECKS:
        if check.scenario == name:
            try:
                said.append(f"{check.claim.__name__}: {check.claim(results, name)}")
            except NotRunError as error:
                return "not run", str(error)
            except FailedError as error:
                return "FAILED", str(error)[:150]
            except AssertionError as error:
                return "NO", f"{check.claim.__name__}: {error}"
    return "ok", "; ".join(said)


def main() -> int:
    """Print the table; exit 1 if an answer is no, 6 if something was not run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    args = parser.parse_args()
    results = Results.read(args.results)
    found = list(rows(results))
    machine = results.document["machine"]
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    width = max(len(name) for name, _, _ in found)
    for name, answer, said in found:
        print(f"{name:{width}}  {answer:7}  {said}")
    answers = {answer for _, answer, _ in found}
    return 1 if answers & {"FAILED", "NO"} else 6 if "not run" in answers else 0


if __name__ == "__main__":
    sys.exit(main())
