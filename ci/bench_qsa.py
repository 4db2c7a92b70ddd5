# SPDX-License-Identifier: Apache-2.0
"""Times QSA attention of a vLLM tree on a GPU, each cache kind against bf16.

::

    python ci/bench_qsa.py --tree TREE [--base-tree TREE] [--json FILE]

Through the tree's own entry point, launches and tables. Two comparisons: ``/bf16`` is bf16
with the table's own choice, ``/best bf16`` is bf16 with the best of all configurations
tried. The floor is the bytes that the selection makes the kernel move, over the rate of a
plain copy on the same card; a time below it means that the L2 cache served part of them.

* prefill: 2048 rows of one request, random and overlapping selections, do_bench median;
* decode: 1, 7 and 32 requests of one row each, median of CUDA-graph replays over several
  selections, so that keys and values are cold; merging the splits is included.

``e4m3_bytes`` forces the software decode of e4m3 on any card. ``--sm86-codegen`` compiles for
sm_86 on a Hopper card: TTGIR, LLVM and PTX are Ampere's, only the SASS is Hopper's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1] / "tests"
sys.path.insert(0, str(ROOT))

from kernels.checkout import metadata_entry  # noqa: E402

KINDS = ("bf16", "e4m3_bytes", "e4m3_native", "int8")
PAGE_SIZE = 1568
QUERY_HEADS, KV_HEADS, HEAD_SIZE = 24, 2, 256
CONTEXT = 262_144
PREFILL_ROWS = 2048
#: rows -> selections that a CUDA graph goes through, enough to leave any L2 cache cold
DECODE = {1: 32, 7: 8, 32: 4}
SECTIONS = ("prefill_random", "prefill_overlapping", *(f"decode_{rows}" for rows in DECODE))
#: (BLOCK_N, splits, warps) to try besides the table's own choice
PREFILL_SWEEP = ((32, 1, 1), (64, 1, 2), (64, 1, 4), (128, 1, 4))
DECODE_SWEEP = ((32, 64, 4), (64, 64, 2), (64, 16, 2), (128, 17, 4), (32, 16, 1), (32, 8, 1))
MEMORY_SHARE = 0.6  # of the free memory that a cache may take
MAX_ERROR = 5e-3  # relative, against the float64 oracle on the same cache

Config = tuple[int, int, int]


@dataclass(frozen=True)
class Timing:
    """One kind and configuration; ``config`` is ``None`` for the table's own choice."""

    tree: str
    section: str
    kind: str
    config: Config | None
    microseconds: float | None
    floor: float
    context: int  # tokens per request, less than asked for where the cache would not fit
    relative_error: float | None = None
    failure: str = ""


def row_bytes(kind: str) -> int:
    """Bytes that one selected token of one KV head makes the kernel read."""
    return 2 * HEAD_SIZE * (2 if kind == "bf16" else 1) + (8 if kind == "int8" else 0)


def moved_bytes(kind: str, rows: int, width: int) -> int:
    """Least traffic of ``rows``: K, V and scales once per row, indices, Q, gate, output."""
    cache = rows * KV_HEADS * width * row_bytes(kind)
    return cache + rows * (width + 1) * 4 + rows * QUERY_HEADS * HEAD_SIZE * 2 * 3


def fitting_context(kind: str, requests: int, context: int, free_bytes: int) -> int:
    """``context``, or as many whole pages per request as the memory share holds."""
    page = PAGE_SIZE * KV_HEADS * row_bytes(kind)
    pages = int(free_bytes * MEMORY_SHARE) // (page * requests)
    fitting = min(context, pages * PAGE_SIZE)
    if fitting < 4 * PAGE_SIZE:
        raise MemoryError(f"{requests} requests need more than {free_bytes >> 20} MiB")
    return fitting


def _fill_randomly(cache: Any) -> None:
    import torch

    for page in range(0, cache.data.shape[0], 64):
        data = cache.data[page : page + 64]
        if cache.kind == "bf16":
            data.normal_()
        elif cache.kind == "int8":
            data.random_(-127, 128)
            cache.scales[page : page + 64].uniform_(0.01, 0.03)
        else:
            values = torch.randn(data.shape, device=data.device).to(torch.float8_e4m3fn)
            data.view(torch.uint8).copy_(values.view(torch.uint8))


@contextmanager
def pinned(config: Config | None) -> Iterator[None]:
    """Let ``_select_config`` answer ``config``; ``None`` leaves the table alone."""
    from vllm.models.qwen4_exp.nvidia.ops import qsa

    original = qsa._select_config
    if config is not None:
        block_n, splits, warps = config

        def select(rows: int, heads: int, prefill: bool, columns: int, *rest: Any, **named: Any) -> Any:
            tiles = -(-columns // block_n)
            return block_n, warps, tiles, min(splits, tiles)

        qsa._select_config = select
    try:
        yield
    finally:
        qsa._select_config = original


def sm86_codegen() -> None:
    """Compile for sm_86 in this process, assembled for the Hopper card that runs it."""
    import torch
    import triton
    from triton.backends.nvidia.compiler import CUDABackend

    if torch.cuda.get_device_capability() != (9, 0):
        raise RuntimeError("--sm86-codegen needs an sm_90 card: it assembles sm_86 PTX for sm_90")
    triton.knobs.runtime.override_arch = "sm86"
    original = CUDABackend.make_cubin

    def make_cubin(self: Any, src: Any, metadata: Any, opt: Any, capability: int) -> Any:
        return original(self, src, metadata, opt, 90)

    CUDABackend.make_cubin = make_cubin


def copy_rate() -> float:
    """Bytes per second, read plus written, of a 2 GiB copy."""
    import torch
    import triton

    source = torch.empty(1 << 31, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    milliseconds: float = triton.testing.do_bench(lambda: target.copy_(source), return_mode="median")
    return 2 * source.numel() / (milliseconds * 1e-3)


def graph_microseconds(calls: Sequence[Callable[[], object]], replays: int = 15) -> float:
    """Median time of one call, replayed as one CUDA graph of all calls."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:  # compiles, and fills the allocator
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    times: list[float] = []
    for _ in range(replays):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1e3 / len(calls))
    return statistics.median(times)


def _problems(section: str, context: int) -> list[Any]:
    """One problem per selection; decode rotates through several."""
    import torch
    from kernels import attention, selections

    prefill = section.startswith("prefill")
    rows = PREFILL_ROWS if prefill else int(section.split("_")[1])
    requests = 1 if prefill else rows
    generator = torch.Generator("cuda").manual_seed(1)
    pages = -(-context // PAGE_SIZE)
    pick = (
        selections.overlapping_selection if section == "prefill_overlapping" else selections.random_selection
    )
    shape = (rows, QUERY_HEADS, HEAD_SIZE)
    query, gate = (torch.randn(shape, device="cuda", generator=generator).bfloat16() for _ in range(2))
    table = torch.randperm(requests * pages, device="cuda", generator=generator)
    owners = torch.arange(rows, device="cuda") if not prefill else torch.zeros(rows, device="cuda")
    return [
        attention.Problem(
            query=query,
            gate=gate,
            indices=pick(rows, context, generator),
            block_table=table.reshape(requests, pages).to(torch.int32),
            token_to_request=owners.to(torch.int32),
        )
        for _ in range(1 if prefill else DECODE[rows])
    ]


def _error(problem: Any, cache: Any, prefill: bool) -> float:
    """Relative error of the first rows against the float64 oracle on the same cache."""
    import torch
    from kernels import attention

    out = torch.full_like(problem.query, float("nan"))
    actual = attention.run_attention(problem, cache, prefill, out=out)[:8]
    first = attention.Problem(
        problem.query[:8],
        problem.gate[:8],
        problem.indices[:8],
        problem.block_table,
        problem.token_to_request[:8],
    )
    return attention.relative_error(actual, attention.attention_oracle(first, cache, chunk=8))


def _time_section(
    tree: str, section: str, kind: str, rate: float, context: int, sweep: bool
) -> Iterator[Timing]:
    import torch
    import triton
    from kernels import attention, kv_cache

    prefill = section.startswith("prefill")
    rows = PREFILL_ROWS if prefill else int(section.split("_")[1])
    requests = 1 if prefill else rows
    # bf16 decides, so that all kinds are compared at one context.
    context = fitting_context("bf16", requests, context, torch.cuda.mem_get_info()[0])
    floor = moved_bytes(kind, rows, attention.WIDTH) / rate * 1e6
    problems = _problems(section, context)
    pages = problems[0].block_table.numel() + 1
    pages += pages % 16 == 0  # a multiple of 16 would specialise the kernel differently
    cache = kv_cache.empty_cache(kind, pages, PAGE_SIZE, KV_HEADS, device="cuda")
    _fill_randomly(cache)
    configs: list[Config | None] = [None]
    if sweep:
        configs += PREFILL_SWEEP if prefill else DECODE_SWEEP
    for config in configs:
        common = (tree, section, kind, config)
        try:
            with pinned(config):
                error = _error(problems[0], cache, prefill)
                calls = [lambda p=problem: attention.run_attention(p, cache, prefill) for problem in problems]
                if prefill:
                    microseconds = 1e3 * triton.testing.do_bench(
                        calls[0], warmup=8, rep=40, return_mode="median"
                    )
                else:
                    microseconds = graph_microseconds(calls)
        except Exception as failure:  # too much shared memory, for one; the rest goes on
            text = f"{type(failure).__name__}: {failure}".splitlines()[0][:200]
            yield Timing(*common, None, floor, context, failure=text)
            continue
        wrong = "" if error < MAX_ERROR else f"relative error {error:.1e}"
        yield Timing(*common, microseconds, floor, context, error, wrong)


def _work(options: argparse.Namespace) -> None:
    import torch
    import vllm.models.qwen4_exp.nvidia.model  # noqa: F401 - before qsa, which imports it back
    from kernels import attention

    if options.sm86_codegen:
        sm86_codegen()
    native = torch.cuda.get_device_capability() >= (8, 9) and not options.sm86_codegen
    table = "8.6" if options.sm86_codegen and not options.table else options.table
    pretend = attention.device_capability(*map(int, table.split("."))) if table else nullcontext()
    rate = copy_rate()
    timings: list[Timing] = []
    with pretend:
        for section in options.section:
            for kind in options.kind:
                if kind == "e4m3_native" and not native:
                    continue
                try:
                    timings += _time_section(
                        options.name, section, kind, rate, options.context, options.sweep
                    )
                except AssertionError as lacking:  # TreeLacksInt8: an unpatched tree
                    print(f"{options.name}: {section} {kind}: {lacking}", file=sys.stderr)
                torch.cuda.empty_cache()
    header = {
        "tree": options.name,
        "device": torch.cuda.get_device_name(),
        "codegen": "sm_86" if options.sm86_codegen else "native",
        "table": table or "the device's own",
        "copy_rate": rate,
        "torch": torch.__version__,
    }
    print(json.dumps({"header": header, "timings": [asdict(timing) for timing in timings]}))


def report(timings: Sequence[Timing]) -> str:
    """A markdown table: each kind with the table's choice and with its best configuration."""
    lines = [
        "| section | tree | kind | table us | /bf16 | /best bf16 | best us | at | /best bf16 | "
        "floor us | error |",
        "|" + " --- |" * 11,
    ]
    groups: dict[tuple[str, str, str], list[Timing]] = {}
    for timing in timings:
        groups.setdefault((timing.section, timing.tree, timing.kind), []).append(timing)

    def best(section: str, tree: str, kind: str) -> Timing | None:
        valid = [t for t in groups.get((section, tree, kind), ()) if t.microseconds and not t.failure]
        return min(valid, key=lambda t: t.microseconds or 0.0, default=None)

    def own(section: str, tree: str, kind: str) -> Timing | None:
        found = [t for t in groups.get((section, tree, kind), ()) if t.config is None]
        return found[0] if found and found[0].microseconds else None

    def ratio(timing: Timing | None, reference: Timing | None) -> str:
        if timing is None or reference is None or not reference.microseconds:
            return "-"
        return f"{(timing.microseconds or 0.0) / reference.microseconds:.2f}"

    for section, tree, kind in groups:
        table, fastest = own(section, tree, kind), best(section, tree, kind)
        bf16, best_bf16 = own(section, tree, "bf16"), best(section, tree, "bf16")
        first = groups[section, tree, kind][0]
        config = "-" if fastest is None else str(fastest.config or "table").replace(" ", "")
        cells = [
            section,
            tree,
            kind,
            first.failure or f"{first.microseconds:.1f}",
            ratio(table, bf16),
            ratio(table, best_bf16),
            "-" if fastest is None else f"{fastest.microseconds:.1f}",
            config,
            ratio(fastest, best_bf16),
            f"{first.floor:.1f}",
            "-" if first.relative_error is None else f"{first.relative_error:.1e}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=Path, required=True)
    parser.add_argument("--base-tree", type=Path, help="an unpatched tree to time as well")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all timings there")
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--section", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--context", type=int, default=CONTEXT, help="tokens per request")
    parser.add_argument("--table", metavar="X.Y", default="", help="use the table of that GPU")
    parser.add_argument("--sm86-codegen", action="store_true", help="on a Hopper card only")
    parser.add_argument("--no-sweep", dest="sweep", action="store_false", help="only what the table chooses")
    parser.add_argument("--name", default="", help=argparse.SUPPRESS)  # a worker of this script
    options = parser.parse_args(arguments)
    if "bf16" not in options.kind:
        options.kind.insert(0, "bf16")  # every ratio needs it
    options.kind.sort(key=KINDS.index)
    if options.context < 4 * PAGE_SIZE:
        parser.error(f"--context {options.context}: at least {4 * PAGE_SIZE} tokens")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Time what the command line names."""
    options = parse(arguments)
    if options.name:
        _work(options)
        return 0
    trees = {"patched": options.tree}
    if options.base_tree is not None:
        trees["base"] = options.base_tree
    results = []
    for name, tree in trees.items():
        entries = [str(tree.resolve()), *metadata_entry(tree.resolve())]
        path = os.pathsep.join([*entries, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        passed = sys.argv[1:] if arguments is None else list(arguments)
        done = subprocess.run(
            [sys.executable, __file__, *passed, "--name", name],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        results.append(json.loads(done.stdout.splitlines()[-1]))
        header = results[-1]["header"]
        print(
            f"{name}: {header['device']}, code {header['codegen']}, table {header['table']}, "
            f"copy {header['copy_rate'] / 1e12:.2f} TB/s"
        )
    timings = [Timing(**item) for result in results for item in result["timings"]]
    print(report(timings))
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 1 if any("relative error" in timing.failure for timing in timings) else 0


if __name__ == "__main__":
    sys.exit(main())
