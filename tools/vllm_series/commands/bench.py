# SPDX-License-Identifier: Apache-2.0
"""``vllm-series bench``."""

from __future__ import annotations

import asyncio
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_series.errors import (
    EXIT_ENVIRONMENT,
    EXIT_INTERRUPTED,
    EXIT_NO,
    EXIT_OK,
    EnvironmentFaultError,
    PreconditionError,
    UsageError,
)
from vllm_series.output import Output, plural

if TYPE_CHECKING:
    from vllm_series.bench.result import Result
    from vllm_series.bench.scenarios import Settings, Step
    from vllm_series.bench.session import Progress

KEY_VARIABLE = "OPENAI_API_KEY"


@dataclass(frozen=True)
class BenchOptions:
    """The arguments of ``bench``, as documented on the command line."""

    url: str
    model: str | None = None
    tokenizer: Path | None = None
    into: Path | None = None
    only: tuple[str, ...] = ()
    contexts: tuple[int, ...] = ()
    users: tuple[int, ...] = ()
    tokens: int = 128
    repeat: int = 3
    burst: int = 7
    evict: int | None = None
    seed: int = 0
    timeout: float = 600.0


def bench(out: Output, options: BenchOptions) -> int:
    """Measure a running server, and write result, report and plots."""
    _require_extra()
    from vllm_series.bench.client import ServerGoneError
    from vllm_series.bench.result import Result

    folder = (options.into or Path(f"bench-{datetime.now():%Y%m%d-%H%M%S}")).absolute()
    if folder.exists() and (folder.is_file() or any(folder.iterdir())):
        raise PreconditionError(f"{folder} is there already", hint="name a new folder with --into")
    result = Result({}, {})
    code, gone = EXIT_OK, ""
    try:
        asyncio.run(_measure(out, options, folder, result))
    except KeyboardInterrupt:
        if not result.measurements:
            raise
        result.state, code = "interrupted", EXIT_INTERRUPTED
    except ServerGoneError as error:
        result.state, code, gone = "stopped", EXIT_ENVIRONMENT, str(error)
    return _finish(out, folder, result, code, gone)


def _require_extra() -> None:
    try:
        import httpx  # noqa: F401
    except ImportError:
        raise EnvironmentFaultError(
            "bench needs the httpx package", hint="install it with: pip install 'vllm-ampere-multigpu[bench]'"
        ) from None


def _require_address(options: BenchOptions) -> None:
    import httpx

    try:
        url = httpx.URL(options.url)
    except httpx.InvalidURL as error:
        raise UsageError(f"--url {options.url}: {error}") from None
    if url.scheme not in ("http", "https") or not url.host or not 0 < (url.port or 80) < 65536:
        raise UsageError(
            f"--url {options.url} is no address of a server", hint="write it as in http://127.0.0.1:8000"
        )
    if not math.isfinite(options.timeout):
        raise UsageError(f"--timeout {options.timeout} is no number of seconds")


async def _measure(out: Output, options: BenchOptions, folder: Path, result: Result) -> None:
    import httpx

    from vllm_series.bench.client import Client, first_model
    from vllm_series.bench.prompts import Writer
    from vllm_series.bench.scenarios import EVICT_FACTOR, SCENARIOS, Bench
    from vllm_series.bench.session import cache_tokens, describe_environment, run_steps

    for name in options.only:
        if name not in SCENARIOS:
            raise UsageError(f"there is no measurement {name}", hint=f"there are: {', '.join(SCENARIOS)}")
    _require_address(options)
    url = options.url.rstrip("/").removesuffix("/v1")
    key = os.environ.get(KEY_VARIABLE)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(
        timeout=httpx.Timeout(options.timeout, connect=min(options.timeout, 10.0)),
        limits=limits,
        trust_env=False,  # A proxy would be measured as well.
        headers={"Authorization": f"Bearer {key}"} if key else {},
    ) as http:
        model = await first_model(http, url, options.model)
        writer = Writer(_tokenizer(options, model), options.seed)
        client = Client(url, model["id"], http, lambda text: len(writer.encode(text)))
        environment = await describe_environment(http, url, model)
        evict = options.evict
        if evict is None:
            evict = round(cache_tokens(environment) * EVICT_FACTOR)
        settings = _settings(options, evict, model.get("max_model_len"), result.skipped)
        await client.find_form(writer.filler("form", 16))
        bench = Bench(client, writer, settings)
        steps: list[Step] = []
        for name in options.only or SCENARIOS:
            if name == "tier" and not evict:
                result.skipped.append(
                    "tier: the size of the server's KV cache is not known; use --evict-tokens"
                )
                continue
            if name == "needle":
                short = [c for c in settings.contexts if not writer.has_room_for_needle(c)]
                result.skipped += [f"needle: {context} tokens have no room for one" for context in short]
            steps += SCENARIOS[name](bench)
        result.settings = {
            **asdict(settings),
            "url": url,
            "tokenizer": f"sha256 {writer.digest[:16]}",
            "form": "token ids" if client.extended else "text",
        }
        result.environment = environment
        folder.mkdir(parents=True, exist_ok=True)
        with _progress() as progress:
            await run_steps(client, steps, result, folder, progress)


def _settings(options: BenchOptions, evict: int, longest: int | None, skipped: list[str]) -> Settings:
    """The settings, without what does not fit into the model's context."""
    from vllm_series.bench.scenarios import Settings

    default = Settings()
    contexts = options.contexts or default.contexts
    fitting = tuple(c for c in contexts if longest is None or c + options.tokens <= longest)
    for context in contexts:
        if context not in fitting:
            skipped.append(f"context {context}: with {options.tokens} tokens more than the model's {longest}")
    if not fitting:
        raise UsageError(
            f"no context fits: the model takes {longest} tokens, {options.tokens} of them for the answer",
            hint="name shorter ones with --context",
        )
    return Settings(
        tuple(sorted(set(fitting))),
        tuple(sorted(set(options.users or default.users))),
        options.tokens,
        options.repeat,
        options.burst,
        evict,
        options.seed,
    )


def _tokenizer(options: BenchOptions, model: dict[str, Any]) -> Path:
    if options.tokenizer is not None:
        return options.tokenizer
    # vLLM states where it has loaded the model from, which helps on the same machine.
    root = Path(str(model.get("root") or ""))
    if (root / "tokenizer.json").is_file():
        return root.absolute()
    raise UsageError(
        "the model's tokenizer is needed to write prompts of an exact length",
        hint="name the folder of the checkpoint, or its tokenizer.json, with --tokenizer",
    )


@contextmanager
def _progress() -> Iterator[Progress]:
    if not sys.stderr.isatty():
        yield lambda number, total, step: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(number: int, total: int, step: Step) -> None:
            words = " ".join(f"{key} {value}" for key, value in step.params.items())
            bar.update(task, completed=number, total=total, description=f"{step.scenario} {words}")

        yield show


def _finish(out: Output, folder: Path, result: Result, code: int, gone: str) -> int:
    from vllm_series.bench.plots import plot
    from vllm_series.bench.report import bad_answers, failures, markdown, number, rows_of
    from vllm_series.bench.session import keep
    from vllm_series.swap import write_file

    keep(result, folder)
    write_file(folder / "report.md", markdown(result).encode())
    plots: list[str] = []
    try:
        plots = plot(result, folder)
    except EnvironmentFaultError as error:
        out.warn(f"{error.message}; {error.hint}")
    out.table(
        ("measurement", "with", "median", "unit", "runs"),
        [(r.name, r.with_what, number(r.median), r.unit, str(len(r.values))) for r in rows_of(result)],
    )
    failed, bad = failures(result), bad_answers(result)
    for made in failed:
        words = " ".join(f"{key} {value}" for key, value in made.params.items())
        out.warn(f"{made.scenario} {words}: {made.problem}")
    for text in bad:
        out.warn(text)
    for text in result.skipped:
        out.note(f"not tried: {text}")
    count = f"{len(result.measurements)} of {plural(result.planned, 'measurement')}"
    if result.state == "interrupted":
        out.note(f"vllm-series: interrupted; {count} are kept in {folder}")
    elif result.state == "stopped":
        out.note(f"vllm-series: error: the server has gone ({gone}); {count} are kept in {folder}")
    else:
        out.say(f"{'ok' if not failed and not bad else 'done'}: {count} in {folder}")
    if code == EXIT_OK and (failed or bad):
        code = EXIT_NO
    return out.finish(
        code,
        folder=str(folder),
        files=["result.json", "report.md", *plots],
        state=result.state,
        failed=len(failed),
        bad_answers=bad,
        result=result.document(),
    )


def compare(out: Output, first: Path, second: Path) -> int:
    """Two runs side by side."""
    from vllm_series.bench.report import compare as compare_results
    from vllm_series.bench.report import number
    from vllm_series.bench.result import read_result

    pairs, doubts = compare_results(read_result(first), read_result(second))
    for doubt in doubts:
        out.warn(doubt)
    if not pairs:
        raise PreconditionError("the two runs have no measurement in common")
    out.table(
        ("measurement", "with", "unit", "first", "second", "ratio", "apart"),
        [
            (
                pair.row.name,
                pair.row.with_what,
                pair.row.unit,
                number(pair.row.median),
                number(pair.other.median),
                "" if pair.ratio is None else f"{pair.ratio:.3f}",
                "yes" if pair.clear else "",
            )
            for pair in pairs
        ],
    )
    out.note("apart: the lowest of one run is above the highest of the other")
    return out.finish(
        EXIT_OK,
        pairs=[
            {
                "scenario": pair.row.scenario,
                "params": dict(pair.row.params),
                "value": pair.row.key,
                "first": pair.row.median,
                "second": pair.other.median,
                "ratio": pair.ratio,
                "more_is_better": pair.row.more_is_better,
                "apart": pair.clear,
            }
            for pair in pairs
        ],
    )
