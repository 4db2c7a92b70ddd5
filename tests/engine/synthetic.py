# SPDX-License-Identifier: Apache-2.0
"""Results as a good machine would write them, made up: for tests of the judges, and of nothing else."""

from __future__ import annotations

import random
from typing import Any

from engine.prompts import prompts
from engine.results import REFERENCE
from engine.scenarios import ACCEPTED, SCENARIOS, SERIES, Scenario

#: What two good runs are apart from the truth.
ROUNDING = 0.04


def document(*, apart: float = ROUNDING) -> dict[str, Any]:
    """The results of every scenario on the whole series; no control was run."""
    runs = {
        f"{SERIES}/{scenario.name}": {**good_run(scenario, apart), "role": SERIES}
        for scenario in SCENARIOS
        if not scenario.fails
    }
    given = prompts("standard")
    logprobs = [_truth("score", i, len(p) - 1) for i, p in enumerate(given)]
    reference = {"logprobs": logprobs, "rounding": [ROUNDING] * len(given), "context": [3.0] * len(given)}
    runs[f"{SERIES}/{REFERENCE}"] = {
        "outcome": "finished", "error": "", "steps": [], "reference": reference, "seconds": {"whole": 1.0},
    }  # fmt: skip
    machine = {"gpus": 1, "gpu": "none", "capability": "9.0", "torch": "0"}
    date = "2026-01-02T03:04:05Z"
    return {"schema": 1, "date": date, "release": "v0.33.0", "machine": machine, "runs": runs}


def good_run(scenario: Scenario, apart: float = ROUNDING) -> dict[str, Any]:
    """What ``run.py`` would write for a scenario."""
    noise = random.Random(scenario.name)
    run: dict[str, Any] = {"outcome": "finished", "error": "", "causes": [], "seconds": {"whole": 1.0}}
    if scenario.partitions:
        rows = [
            {"partition": p, "accepted": p in ACCEPTED, "error": "" if p in ACCEPTED else "no such stage"}
            for p in scenario.partitions
        ]
        return {**run, "steps": [], "partitions": rows}
    if scenario.tests:
        return {**run, "steps": [], "tests": {"a::b": "passed"}}
    done: list[dict[str, Any]] = []
    for step in scenario.steps:
        done.append({**step, **_step(dict(step), done, noise, apart)})
    return {**run, "steps": done}


def _step(
    step: dict[str, Any], done: list[dict[str, Any]], noise: random.Random, apart: float
) -> dict[str, Any]:
    again = any(row["do"] == "generate" and row["prompts"] == step.get("prompts") for row in done)
    counters = {
        "hits": 1000 if again else 0,
        "external_hits": 1000 if again else 0,
        "draft_tokens": 10,
        "accepted_tokens": 1,
    }
    if step["do"] == "soak":
        return {"batches": 3, "requests": 9, "tokens_made": 216, "finite": True, "counters": counters}
    if step["do"] == "rate":
        return {"rates": {str(users): 100.0 * users for users in step["users"]}, "counters": counters}
    if step["do"] == "score":
        given = prompts(step["prompts"])
        rows = [_near(_truth("score", i, len(p) - 1), noise, apart) for i, p in enumerate(given)]
        return {"logprobs": rows, "counters": counters}
    name = step.get("prompts") or next(row["prompts"] for row in reversed(done) if row["do"] == "generate")
    count = len(prompts(name))
    length = step.get("tokens") or next(row["tokens"] for row in reversed(done) if row["do"] == "generate")
    rows = [_near(_truth(name, i, length), noise, apart) for i in range(count)]
    found = {"prompts": name, "logprobs": rows, "counters": counters}
    if step["do"] == "generate":
        tokens = [
            [random.Random(f"{name} {i} {k}").randrange(2, 512) for k in range(length)] for i in range(count)
        ]
        found |= {"tokens_out": tokens, "cached": [0 if not again else 272] * count}
    return found


def _truth(name: str, number: int, length: int) -> list[float]:
    generator = random.Random(f"{name} {number}")
    return [-5 * generator.random() for _ in range(length)]


def _near(values: list[float], noise: random.Random, apart: float) -> list[float]:
    return [value + noise.uniform(-2 * apart, 2 * apart) for value in values]
