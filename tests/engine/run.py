# SPDX-License-Identifier: Apache-2.0
"""Run one scenario in a real vLLM engine and write what came out of it.

``python -m engine.run SCENARIO.json CHECKPOINT RESULT.json``

A scenario is a JSON object: ``engine`` holds arguments of ``LLM``, ``engram`` those of its ``EngramConfig``,
and ``steps`` what to do with the engine, in order:

* ``{"do": "score", "prompts": SET}``: log-probabilities of the prompts' own tokens.
* ``{"do": "generate", "prompts": SET, "tokens": N}``: greedy tokens with their log-probabilities, how many
  prompt tokens came from a cache, and how many of them from outside the GPU.
* ``{"do": "rescore"}``: log-probabilities of the last generated tokens when they are read as a prompt.
* ``{"do": "soak", "seconds": S}``: batches of mixed prompts until the time is over.
* ``{"do": "rate", "prompts": SET, "users": [N, ...], "tokens": T}``: tokens per second of N users at once.

Instead of steps, ``partitions`` asks whether an engine of that partition would start, without starting it.
The result says "finished", or "failed" with the error; it is written in any case.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.prompts import mixed, prompts

_KEYS = {"name", "engine", "engram", "steps", "partitions"}
_COUNTERS = {
    "vllm:prefix_cache_hits": "hits",
    "vllm:external_prefix_cache_hits": "external_hits",
    "vllm:spec_decode_num_draft_tokens": "draft_tokens",
    "vllm:spec_decode_num_accepted_tokens": "accepted_tokens",
}
#: Of a log-probability that are kept.
_DIGITS = 5
Result = dict[str, Any]


class ScenarioError(Exception):
    """A scenario that cannot be understood."""


def main() -> int:
    """Run the scenario; exit 1 if it failed, 2 if there is no such thing to run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scenario", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("result", type=Path)
    args = parser.parse_args()
    try:
        scenario = read_scenario(args.scenario.read_text("utf-8"))
    except (OSError, ScenarioError) as error:
        print(f"{args.scenario}: {error}", file=sys.stderr)
        return 2
    started = time.monotonic()
    result: Result = {"outcome": "failed", "error": "", "steps": [], "seconds": {}}
    try:
        run(scenario, args.checkpoint, result, args.result)
        result["outcome"] = "finished"
    except BaseException as error:
        traceback.print_exc()
        result["error"] = f"{type(error).__name__}: {error}"
    result["seconds"]["all"] = round(time.monotonic() - started, 1)
    write(args.result, result)
    sys.stdout.flush()
    sys.stderr.flush()
    # An engine that failed may leave threads which would keep this process.
    os._exit(0 if result["outcome"] == "finished" else 1)


def read_scenario(text: str) -> dict[str, Any]:
    """A scenario from JSON.

    Raises:
        ScenarioError: It is none.

    """
    try:
        scenario = json.loads(text)
    except ValueError as error:
        raise ScenarioError(f"not JSON: {error}") from None
    if not isinstance(scenario, dict):
        raise ScenarioError("no JSON object")
    unknown = sorted(scenario.keys() - _KEYS)
    if unknown:
        raise ScenarioError(f"unknown key {unknown[0]!r} (known: {', '.join(sorted(_KEYS))})")
    if ("steps" in scenario) == ("partitions" in scenario):
        raise ScenarioError("it needs either steps or partitions")
    for step in scenario.get("steps", []):
        if not isinstance(step, dict) or step.get("do") not in _STEPS:
            raise ScenarioError(f"unknown step {step!r} (known: {', '.join(_STEPS)})")
    return scenario


def write(path: Path, result: Result) -> None:
    """Write the result in one move."""
    path.with_suffix(".new").write_text(json.dumps(result))
    path.with_suffix(".new").replace(path)


def run(scenario: dict[str, Any], checkpoint: Path, result: Result, path: Path) -> None:
    """Start the engine and do the steps; what is known is written after each."""
    from vllm.config.engram import EngramConfig

    arguments = {
        "model": str(checkpoint),
        **scenario.get("engine", {}),
        "engram_config": EngramConfig(**{"cpu_offload": False, **scenario.get("engram", {})}),
    }
    if "partitions" in scenario:
        result["partitions"] = [ask(partition, arguments) for partition in scenario["partitions"]]
        return
    from vllm import LLM

    started = time.monotonic()
    llm = LLM(**arguments)
    result["seconds"]["start"] = round(time.monotonic() - started, 1)
    result["capability"] = _capability()
    for step in scenario["steps"]:
        started = time.monotonic()
        before = _counters(llm)
        found = _STEPS[step["do"]](llm, step, result["steps"])
        found["counters"] = {key: value - before[key] for key, value in _counters(llm).items()}
        found["seconds"] = round(time.monotonic() - started, 2)
        result["steps"].append({**step, **found})
        print(f"step {step} took {found['seconds']} s", flush=True)
        write(path, result)
    llm.llm_engine.engine_core.shutdown()


def ask(partition: str, arguments: dict[str, Any]) -> Result:
    """Whether the engine's configuration accepts a partition."""
    from vllm.engine.arg_utils import EngineArgs

    os.environ["VLLM_PP_LAYER_PARTITION"] = partition
    try:
        EngineArgs(**arguments).create_engine_config()
    except Exception as error:
        return {"partition": partition, "accepted": False, "error": f"{type(error).__name__}: {error}"}
    return {"partition": partition, "accepted": True, "error": ""}


def score(llm: Any, step: Result, _: list[Result]) -> Result:
    """Log-probabilities of the prompts' tokens from the second on."""
    return {"logprobs": _prompt_logprobs(llm, prompts(step["prompts"]))}


def generate(llm: Any, step: Result, _: list[Result]) -> Result:
    """Greedy tokens after each prompt."""
    outputs = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts(step["prompts"])],
        _sampling(max_tokens=step["tokens"], logprobs=1),
        use_tqdm=False,
    )
    return _generated(outputs)


def rescore(llm: Any, step: Result, done: list[Result]) -> Result:
    """The last generated tokens' log-probabilities when prompt and tokens are one prompt."""
    last = next(row for row in reversed(done) if row["do"] == "generate")
    given = prompts(last["prompts"])
    whole = [prompt + tokens for prompt, tokens in zip(given, last["tokens_out"], strict=True)]
    scored = _prompt_logprobs(llm, whole)
    return {
        "prompts": last["prompts"],
        "logprobs": [row[len(prompt) - 1 :] for prompt, row in zip(given, scored, strict=True)],
    }


def soak(llm: Any, step: Result, _: list[Result]) -> Result:
    """Batches of mixed prompts; every one must end with finite numbers."""
    generator = random.Random(3)
    deadline = time.monotonic() + step["seconds"]
    batches = requests = tokens = 0
    finite = True
    while time.monotonic() < deadline:
        outputs = llm.generate(
            [{"prompt_token_ids": prompt} for prompt in mixed(generator)],
            _sampling(max_tokens=24, logprobs=1),
            use_tqdm=False,
        )
        found = _generated(outputs)
        batches += 1
        requests += len(outputs)
        tokens += sum(map(len, found["tokens_out"]))
        finite &= all(math.isfinite(value) for row in found["logprobs"] for value in row)
    return {"batches": batches, "requests": requests, "tokens_made": tokens, "finite": finite}


def rate(llm: Any, step: Result, _: list[Result]) -> Result:
    """Tokens per second of some users at once, by number of users; their first tokens do not count."""
    found = {}
    for users in step["users"]:
        given = [{"prompt_token_ids": prompt} for prompt in prompts(step["prompts"])[:users]]
        seconds = []
        # The first fills the prefix cache, so that the second takes as long as what comes before the
        # decoding in the third.
        for tokens in (8, 1, step["tokens"]):
            started = time.monotonic()
            llm.generate(given, _sampling(max_tokens=tokens), use_tqdm=False)
            seconds.append(time.monotonic() - started)
        found[str(users)] = round(users * (step["tokens"] - 1) / (seconds[2] - seconds[1]), 1)
    return {"rates": found}


_STEPS: dict[str, Callable[[Any, Result, list[Result]], Result]] = {
    "score": score,
    "generate": generate,
    "rescore": rescore,
    "soak": soak,
    "rate": rate,
}


def _sampling(**fields: Any) -> Any:
    from vllm import SamplingParams

    return SamplingParams(temperature=0, ignore_eos=True, detokenize=False, **fields)


def _prompt_logprobs(llm: Any, given: list[list[int]]) -> list[list[float]]:
    outputs = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in given],
        _sampling(max_tokens=1, prompt_logprobs=1),
        use_tqdm=False,
    )
    return [
        [round(output.prompt_logprobs[i][prompt[i]].logprob, _DIGITS) for i in range(1, len(prompt))]
        for prompt, output in zip(given, outputs, strict=True)
    ]


def _generated(outputs: list[Any]) -> Result:
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    logprobs = [
        [round(at[token].logprob, _DIGITS) for token, at in zip(row, output.outputs[0].logprobs, strict=True)]
        for row, output in zip(tokens, outputs, strict=True)
    ]
    cached = [output.num_cached_tokens or 0 for output in outputs]
    return {"tokens_out": tokens, "logprobs": logprobs, "cached": cached}


def _counters(llm: Any) -> dict[str, int]:
    values = dict.fromkeys(_COUNTERS.values(), 0)
    for metric in llm.get_metrics():
        if metric.name in _COUNTERS:
            values[_COUNTERS[metric.name]] += metric.value
    return values


def _capability() -> str:
    from vllm.platforms import current_platform

    found = current_platform.get_device_capability()
    return f"{found.major}.{found.minor}" if found else ""


if __name__ == "__main__":
    sys.exit(main())
