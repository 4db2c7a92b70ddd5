# SPDX-License-Identifier: Apache-2.0
"""A run: steps one after the other, each result kept as soon as it is there."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from vllm_series import __version__
from vllm_series.bench.client import Client, ServerGoneError
from vllm_series.bench.result import FILE, Measurement, Result
from vllm_series.bench.scenarios import Step
from vllm_series.swap import write_file

#: Told before each step: its number, of how many, and what it is.
Progress = Callable[[int, int, Step], None]


#: What of vLLM's cache settings a result depends on.
_CACHE_KEYS = (
    "block_size",
    "cache_dtype",
    "enable_prefix_caching",
    "gpu_memory_utilization",
    "kv_cache_size_tokens",
    "kv_offloading_backend",
    "kv_offloading_size",
    "num_cpu_blocks",
    "num_gpu_blocks",
)


async def run_steps(
    client: Client, steps: Sequence[Step], result: Result, folder: Path, progress: Progress
) -> None:
    """Run all steps; ``result`` has what there is at any time, and so has the folder.

    Raises:
        ServerGoneError: The server does not answer any more. What was measured is kept.

    """
    result.planned = len(steps)
    keep(result, folder)
    for number, step in enumerate(steps):
        progress(number, len(steps), step)
        made: Measurement = await step.run()
        result.measurements.append(made)
        keep(result, folder)
        if made.problem and not await client.alive():
            raise ServerGoneError(made.problem)
    result.state = "complete"


def keep(result: Result, folder: Path) -> None:
    """Write the result in one step."""
    write_file(folder / FILE, json.dumps(result.document(), indent=1).encode() + b"\n")


async def describe_environment(http: httpx.AsyncClient, url: str, model: dict[str, Any]) -> dict[str, Any]:
    """What the result depends on, as far as the server and this machine tell."""
    found: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "tool": __version__,
        "client": f"Python {platform.python_version()}, {platform.system()} {platform.machine()}",
        "model": model["id"],
        "max_model_len": model.get("max_model_len"),
        "server": await _version(http, url),
    }
    cache = await _cache_config(http, url)
    if cache:
        found["cache"] = cache
    if urlsplit(url).hostname in ("127.0.0.1", "::1", "localhost"):
        found["gpus"] = _gpus()
    return found


async def _version(http: httpx.AsyncClient, url: str) -> str | None:
    try:
        answer = await http.get(f"{url}/version")
        return f"vLLM {answer.json()['version']}"
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return None


async def _cache_config(http: httpx.AsyncClient, url: str) -> dict[str, str]:
    """The settings of vLLM's KV cache, which it states among its metrics."""
    try:
        text = (await http.get(f"{url}/metrics")).text
    except httpx.HTTPError:
        return {}
    match = re.search(r"^vllm:cache_config_info\{(.*)\}", text, re.MULTILINE)
    found = dict(re.findall(r'(\w+)="([^"]*)"', match[1])) if match else {}
    return {key: found[key] for key in _CACHE_KEYS if key in found}


def cache_tokens(environment: dict[str, Any]) -> int:
    """How many tokens the server's KV cache holds, 0 if it does not say."""
    cache = environment.get("cache", {})
    try:
        if "kv_cache_size_tokens" in cache:
            return int(cache["kv_cache_size_tokens"])
        return int(cache["num_gpu_blocks"]) * int(cache["block_size"])
    except (KeyError, ValueError):
        return 0


def _gpus() -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    return done.stdout.strip().splitlines() if done.returncode == 0 else []
