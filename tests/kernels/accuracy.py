# SPDX-License-Identifier: Apache-2.0
"""What storing K and V in 8 bits costs in accuracy, on inputs that are kind and unkind to it.

::

    PYTHONPATH=tests python -m kernels.accuracy --tree TREE [--rows 4]

Every kind of cache is filled from the same bf16 rows. Two relative errors (norm of the difference over the
norm) against float64 attention over those rows are printed: of float64 attention over what the cache holds,
which is the storage's own share, and of the tree's kernel under Triton's interpreter.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from .attention import Problem, attention_oracle, random_problem, relative_error, run_attention
from .checkout import metadata_entry
from .kv_cache import HEAD_SIZE, KVCache, empty_cache, fill

PAGES, PAGE_SIZE, KV_HEADS, QUERY_HEADS = 2, 64, 2, 24
TOKENS = PAGES * PAGE_SIZE
#: The e4m3 caches are read as bytes, as below sm_89; what they hold is the same on any GPU.
CACHES = ("bf16", "int8", "e4m3_bytes")


@dataclass(frozen=True)
class Input:
    """Rows to be cached, bf16 ``[B, N, H, D]``, and what asks for them."""

    problem: Problem
    keys: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True)
class Errors:
    """Relative errors of one kind of cache on one input."""

    storage: float
    kernel: float


def gaussian(rows: int) -> Input:
    """Independent normal entries."""
    generator = torch.Generator().manual_seed(7)
    shape = (PAGES, PAGE_SIZE, KV_HEADS, HEAD_SIZE)
    keys, values = (torch.randn(shape, generator=generator) for _ in range(2))
    problem = random_problem([list(range(TOKENS))] * rows, [0] * rows, 1, PAGES, QUERY_HEADS)
    return Input(problem, keys.bfloat16(), values.bfloat16())


def outlier_channels(rows: int) -> Input:
    """Four channels of K, the same for every token, are thirty times as large as the others."""
    plain = gaussian(rows)
    keys = plain.keys.clone()
    keys[..., ::64] *= 30
    return replace(plain, keys=keys)


def peaked(rows: int) -> Input:
    """Each row's heads point at one token, so that its V is nearly all of the answer."""
    plain = gaussian(rows)
    query = plain.problem.query.clone()
    logical = plain.keys[plain.problem.block_table[0].long()].flatten(0, 1)
    for row in range(rows):
        aim = logical[13 * row + 5].repeat_interleave(QUERY_HEADS // KV_HEADS, 0)
        query[row] = (query[row].float() + aim.float()).bfloat16()
    return replace(plain, problem=replace(plain.problem, query=query))


INPUTS: dict[str, Callable[[int], Input]] = {
    "gaussian": gaussian,
    "outlier channels in K": outlier_channels,
    "peaked": peaked,
}


def cached(kind: str, rows: Input) -> KVCache:
    """A cache of ``kind`` that holds the rows; e4m3 with the scales 1 of an uncalibrated checkpoint."""
    cache = replace(empty_cache(kind, PAGES, PAGE_SIZE, KV_HEADS), k_scale=1.0, v_scale=1.0)
    fill(cache, rows.keys, rows.values)
    return cache


def measure(kind: str, rows: Input) -> Errors:
    """Both errors."""
    expected = attention_oracle(rows.problem, cached("bf16", rows))
    cache = cached(kind, rows)
    return Errors(
        relative_error(attention_oracle(rows.problem, cache), expected),
        relative_error(run_attention(rows.problem, cache, True), expected),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m kernels.accuracy", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--tree", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=4, help="query tokens (default 4)")
    options = parser.parse_args(arguments)
    tree = options.tree.resolve()
    os.environ |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "VLLM_TARGET_DEVICE": "cpu"}
    sys.path[:0] = [str(tree), *metadata_entry(tree)]
    # model before qsa: vLLM's modules import each other in a circle.
    import vllm.models.qwen4_exp.nvidia.model  # noqa: F401

    from . import interpreter

    interpreter.install()

    print("| input | " + " | ".join(f"{kind}: storage, kernel" for kind in CACHES) + " |")
    print("|---" * (len(CACHES) + 1) + "|")
    for name, make in INPUTS.items():
        cells = [measure(kind, make(options.rows)) for kind in CACHES]
        print(f"| {name} | " + " | ".join(f"{c.storage:.1e}, {c.kernel:.1e}" for c in cells) + " |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
