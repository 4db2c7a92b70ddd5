# SPDX-License-Identifier: Apache-2.0
"""Compiles the QSA attention kernel of a vLLM tree for GPUs that are not there.

::

    PYTHONPATH=tests python -m kernels.aot --tree TREE [--base-tree TREE] [--markdown | --json]
                                [--arch 86 …] [--kind int8 …] [--shapes prefill …]

The tree's public entry point runs on CPU tensors with the production strides, under its own
tables for the wanted GPU; the launch of a kernel is caught and the kernel compiled for that
GPU with exactly the specialisation that the launch would have (types, divisibility by 16,
constants, warps, stages). So a change of the kernel's signature needs no change here.

Each tree is compiled in a process of its own, because vLLM comes from ``PYTHONPATH``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .checkout import metadata_entry

ROOT = Path(__file__).resolve().parents[1]

ARCHES = (80, 86, 89, 90, 120)
#: Shared memory that one block may take, KiB (CUDA C programming guide, table of technical
#: specifications per compute capability).
SHARED_KIB = {80: 163, 86: 99, 89: 99, 90: 227, 120: 99}
NATIVE_E4M3 = 89
KINDS = ("bf16", "e4m3_bytes", "e4m3_native", "int8")
QUERY_HEADS, KV_HEADS, PAGE_SIZE = 24, 2, 1600  # TP1, the production page
SHAPES = {  # rows, use_prefill_config
    "prefill": (2048, True),
    "decode_1": (1, False),
    "decode_7": (7, False),
    "decode_32": (32, False),
}


@dataclass(frozen=True)
class Request:
    arch: int
    kind: str
    rows: int
    prefill: bool


@dataclass(frozen=True)
class Compiled:
    """One attention kernel, or the error that its compilation ended with."""

    arch: int
    kind: str
    rows: int
    prefill: bool
    error: str = ""
    block_n: int = 0
    splits: int = 0
    warps: int = 0
    stages: int = 0
    registers: int = 0
    stack: int = 0  # bytes per thread
    shared: int = 0  # bytes per block
    looped: bool = True  # else one tile per program, and the counts are of the whole kernel
    total: int = 0  # and what follows: instructions of the main loop, see sass.LoopCounts
    hmma: int = 0
    imma: int = 0
    wide_loads: int = 0
    narrow_loads: int = 0
    sub_word_loads: int = 0
    shared_accesses: int = 0
    convert: int = 0
    local: int = 0

    @property
    def expected_wide_loads(self) -> int:
        """16-byte loads per thread that move one tile of K and V."""
        itemsize = 2 if self.kind == "bf16" else 1
        return 2 * self.block_n * 256 * itemsize // (16 * 32 * self.warps)


class _Caught(Exception):
    """Carries a launch out of the tree's entry point."""


@contextmanager
def _catch_launches(arch: int) -> Iterator[None]:
    """Every launch compiles for ``arch`` and raises :class:`_Caught` instead of running."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend
    from triton.compiler import compile as compile_source
    from triton.runtime import jit

    backend = make_backend(GPUTarget("cuda", arch, 32))
    original = jit.JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        binder = jit.create_function_from_signature(self.signature, self.params, backend)
        bound, specialization, options = binder(*args, **kwargs)
        options, signature, constants, attributes = self._pack_args(
            backend, kwargs, bound, specialization, options
        )
        source = ASTSource(self, signature, constants, attributes)
        kernel = compile_source(source, target=backend.target, options=options.__dict__)
        raise _Caught(kernel, bound)

    jit.JITFunction.run = run
    try:
        yield
    finally:
        jit.JITFunction.run = original


def _launch(request: Request) -> tuple[Any, dict[str, Any]]:
    import torch

    from .attention import WIDTH, Problem, device_capability, run_attention
    from .kv_cache import empty_cache

    # Three pages: no multiple of 16 and not 1, as nearly every real cache.
    cache = empty_cache(request.kind, 3, PAGE_SIZE, KV_HEADS)
    query = torch.zeros(request.rows, QUERY_HEADS, 256, dtype=torch.bfloat16)
    problem = Problem(
        query=query,
        gate=torch.zeros_like(query),
        indices=torch.zeros(request.rows, WIDTH + 1, dtype=torch.int32),
        block_table=torch.zeros(3, 165, dtype=torch.int32),
        token_to_request=torch.zeros(request.rows, dtype=torch.int32),
    )
    with device_capability(*divmod(request.arch, 10)), _catch_launches(request.arch):
        try:
            run_attention(problem, cache, request.prefill)
        except _Caught as caught:
            kernel, bound = caught.args
            return kernel, bound
    raise RuntimeError("the entry point launched no kernel")


def compile_one(request: Request) -> Compiled:
    """Compile what the tree in this process would launch; errors become data."""
    from . import sass

    try:
        kernel, bound = _launch(request)
    except Exception as error:
        causes = [str(error)]
        while error.__cause__ is not None:
            error = error.__cause__  # type: ignore[assignment]
            causes.append(str(error))
        text = " ".join(causes).split("\n")
        return Compiled(**asdict(request), error=f"{type(error).__name__}: {' '.join(text)[-600:]}")
    cubin = kernel.asm["cubin"]
    usage = sass.usage(cubin)
    body, looped = sass.main_loop(sass.disassemble(cubin))
    loop = asdict(sass.count(body))
    loop["shared_accesses"] = loop.pop("shared")
    return Compiled(
        **asdict(request),
        block_n=bound["BLOCK_N"],
        splits=bound["NUM_SPLITS"],
        warps=kernel.metadata.num_warps,
        stages=kernel.metadata.num_stages,
        registers=usage.registers,
        stack=usage.stack,
        shared=kernel.metadata.shared,
        looped=looped,
        **loop,
    )


def table_requests(arch: int, kind: str) -> list[Request]:
    """One request for each distinct kernel that the tree's table picks for a GPU and kind."""
    from .attention import device_capability, table_of
    from .kv_cache import TreeLacksInt8

    try:
        table = table_of(kind)
    except TreeLacksInt8:
        return [Request(arch, kind, *SHAPES["prefill"])]  # whose result says so
    chosen: dict[tuple[int, ...], Request] = {}
    with device_capability(*divmod(arch, 10)):
        for rows in [*range(1, 1100), *range(1100, 4200, 50)]:
            for prefill in (False, True):
                block_n, warps, _, splits = table(rows, KV_HEADS, prefill)
                # One split or several is what changes the kernel; the number only its stride.
                key = (block_n, warps, min(splits, 2))
                chosen.setdefault(key, Request(arch, kind, rows, prefill))
    return list(chosen.values())


def environment(tree: Path) -> dict[str, str]:
    """For a process that compiles the tree's kernels; ``PYTHONPATH`` keeps its other entries."""
    inherited = [
        entry
        for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if entry and not (Path(entry) / "vllm").is_dir()
    ]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tree), *metadata_entry(tree), *inherited]),
        "TRITON_INTERPRET": "0",
        "CUDA_VISIBLE_DEVICES": "",
        "VLLM_TARGET_DEVICE": "cpu",
    }


def compile_tree(
    tree: Path, requests: Sequence[Request] | None, tables: Sequence[tuple[int, str]]
) -> list[Compiled]:
    """Compile ``requests``, and all table entries of the given (arch, kind) pairs."""
    order = {"requests": [asdict(r) for r in requests or ()], "tables": list(tables)}
    done = subprocess.run(
        [sys.executable, "-m", "kernels.aot", "--worker"],
        input=json.dumps(order),
        cwd=ROOT,
        env=environment(tree.resolve()),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [Compiled(**item) for item in json.loads(done.stdout.splitlines()[-1])]


def _work() -> None:
    order = json.load(sys.stdin)
    # model before qsa: vLLM's modules import each other in a circle.
    import vllm.models.qwen4_exp.nvidia.model  # noqa: F401
    from vllm.triton_utils import HAS_TRITON

    if not HAS_TRITON:
        raise RuntimeError("vLLM has switched Triton off; its log says why")

    requests = [Request(**item) for item in order["requests"]]
    for arch, kind in order["tables"]:
        requests += table_requests(arch, kind)
    print(json.dumps([asdict(compile_one(request)) for request in requests]))


_COLUMNS = ("arch", "shape", "kind", "tree", "N/splits/warps", "reg", "spill B", "shared B", "loop",
            "MMA H+I", "16 B loads", "other loads", "shared mem", "convert")  # fmt: skip


def _row(name: str, shape: str, item: Compiled) -> list[str]:
    head = [f"sm_{item.arch}", shape, item.kind, name]
    if item.error:
        return [*head, f"fails: {item.error[:90]}", *[""] * (len(_COLUMNS) - 5)]
    config = f"{item.block_n}/{item.splits}/{item.warps}"
    mma = f"{item.hmma}+{item.imma}"
    total = f"{item.total}" if item.looped else f"none, {item.total}"
    numbers = (item.registers, item.stack, item.shared, total, mma, item.wide_loads,
               item.narrow_loads, item.shared_accesses, item.convert)  # fmt: skip
    return [*head, config, *map(str, numbers)]


def markdown(results: dict[str, list[Compiled]]) -> str:
    """A table of all results, one shape and kind of all trees next to each other."""
    shapes = {shape: name for name, shape in SHAPES.items()}
    rows = [
        _row(tree, shapes[item.rows, item.prefill], item) for tree, items in results.items() for item in items
    ]
    order = {kind: index for index, kind in enumerate(KINDS)}
    rows.sort(key=lambda row: (int(row[0][3:]), list(SHAPES).index(row[1]), order[row[2]]))
    lines = [_COLUMNS, ["---"] * len(_COLUMNS), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.aot", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--tree", type=Path)
    parser.add_argument("--base-tree", type=Path, help="an unpatched tree to print next to it")
    parser.add_argument("--arch", type=int, nargs="+", choices=ARCHES, default=list(ARCHES))
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="print a table (default)")
    form.add_argument("--json", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        _work()
        return 0
    if options.tree is None:
        parser.error("--tree is required")
    requests = [
        Request(arch, kind, *SHAPES[shape])
        for arch in options.arch
        for kind in options.kind
        if kind != "e4m3_native" or arch >= NATIVE_E4M3
        for shape in options.shapes
    ]
    trees = {"patched": options.tree}
    if options.base_tree is not None:
        trees["base"] = options.base_tree
    results = {name: compile_tree(tree, requests, []) for name, tree in trees.items()}
    if options.json:
        print(json.dumps({name: [asdict(c) for c in items] for name, items in results.items()}))
    else:
        print(markdown(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
