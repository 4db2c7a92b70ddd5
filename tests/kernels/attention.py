# SPDX-License-Identifier: Apache-2.0
"""QSA sparse attention problems, the tree's entry point, and a float64 oracle.

R rows (query tokens), Q query heads over H KV heads of size D, W selection columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from .kv_cache import HEAD_SIZE, KVCache, empty_cache

COMPRESS_RATIO = 4
BUDGET = 2048  # selected tokens of a row besides the open group
WIDTH = BUDGET + COMPRESS_RATIO - 1  # 2051, the model's selection width


@dataclass(frozen=True)
class Problem:
    """Everything but the cache."""

    query: torch.Tensor  # bf16 [R, Q, D]
    gate: torch.Tensor  # bf16 [R, Q, D]
    indices: torch.Tensor  # int32 [R, W + 1]: logical tokens, -1 for none; last: the count
    block_table: torch.Tensor  # int32 [requests, pages per request]
    token_to_request: torch.Tensor  # int32 [R]


def attention_oracle(problem: Problem, cache: KVCache, chunk: int = 64) -> torch.Tensor:
    """Dense float64 attention over the selected tokens, times the sigmoid gate; [R, Q, D].

    Rows without a valid token, or of no request, are zero.
    """
    rows, query_heads, size = problem.query.shape
    page_size, heads = cache.data.shape[1:3]
    table = problem.block_table.long()
    output = torch.zeros(rows, query_heads, size, dtype=torch.float64, device=problem.query.device)
    for start in range(0, rows, chunk):
        stop = min(start + chunk, rows)
        logical = problem.indices[start:stop, :-1].long()
        request = problem.token_to_request[start:stop].long()
        page = logical.clamp_min(0) // page_size
        valid = (logical >= 0) & (page < table.shape[1])
        valid &= ((request >= 0) & (request < table.shape[0]))[:, None]
        safe_request = request.clamp(0, table.shape[0] - 1)
        physical = table[safe_request].gather(1, page.clamp_max(table.shape[1] - 1))
        valid &= (physical >= 0) & (physical < cache.data.shape[0])
        physical = torch.where(valid, physical, 0)
        keys, values = cache.rows(physical, logical.clamp_min(0) % page_size)
        query = problem.query[start:stop].double().unflatten(1, (heads, -1))
        scores = torch.einsum("rhgd,rwhd->rhgw", query, keys) * size**-0.5
        scores = scores.masked_fill(~valid[:, None, None], -torch.inf)
        weights = torch.softmax(scores, -1).nan_to_num(0.0)
        output[start:stop] = torch.einsum("rhgw,rwhd->rhgd", weights, values).flatten(1, 2)
    return output * torch.sigmoid(problem.gate.double())


def run_attention(
    problem: Problem, cache: KVCache, use_prefill_config: bool, out: torch.Tensor | None = None
) -> torch.Tensor:
    """The tree's public entry point, with its own tables and launches; bf16 [R, Q, D]."""
    from vllm.models.qwen4_exp.nvidia.ops import qsa

    arguments: dict[str, Any] = cache.attention_arguments()
    result: torch.Tensor = qsa.qsa_sparse_paged_attention(
        problem.query,
        arguments.pop("k_cache"),
        arguments.pop("v_cache"),
        problem.indices,
        problem.block_table,
        problem.token_to_request,
        use_prefill_config,
        out=out,
        output_gate=problem.gate,
        **arguments,
    )
    return result


class _Asked(Exception):
    """Carries the arguments of ``_select_config`` out of the entry point."""


def table_of(kind: str) -> Callable[[int, int, bool], tuple[int, int, int, int]]:
    """The tree's table for one storage kind, as its entry point asks it.

    The result maps rows, KV heads and ``use_prefill_config`` to BLOCK_N, warps, tiles, splits.
    """
    from vllm.models.qwen4_exp.nvidia.ops import qsa

    original = qsa._select_config

    def ask(rows: int, heads: int, prefill: bool, columns: int, *rest: Any, **named: Any) -> None:
        raise _Asked(rest, named)

    qsa._select_config = ask
    try:
        run_attention(random_problem([[0]], [0], 1, 1, 1), empty_cache(kind, 1, 16, 1), True)
    except _Asked as asked:
        rest, named = asked.args
    finally:
        qsa._select_config = original

    def table(rows: int, heads: int, prefill: bool) -> tuple[int, int, int, int]:
        block_n, warps, tiles, splits = original(rows, heads, prefill, WIDTH, *rest, **named)
        return block_n, warps, tiles, splits

    return table


def clear_capability_caches(module: Any) -> None:
    """Forget what the module's ``lru_cache`` functions found out about the device."""
    for value in vars(module).values():
        if callable(getattr(value, "cache_clear", None)):
            value.cache_clear()


@contextmanager
def device_capability(major: int, minor: int) -> Iterator[None]:
    """Let the tree's tables take this process for a GPU of the given capability."""
    from vllm.models.qwen4_exp.nvidia.ops import qsa
    from vllm.platforms import current_platform
    from vllm.platforms.interface import DeviceCapability

    owner: Any = type(current_platform)
    original = owner.__dict__.get("get_device_capability")

    def answer(cls: type, device_id: int = 0) -> DeviceCapability:
        return DeviceCapability(major, minor)

    owner.get_device_capability = classmethod(answer)
    clear_capability_caches(qsa)
    try:
        yield
    finally:
        if original is None:
            del owner.get_device_capability
        else:
            owner.get_device_capability = original
        clear_capability_caches(qsa)


def pack_indices(selections: list[list[int]], width: int = WIDTH) -> torch.Tensor:
    """Packed selection rows: the tokens, -1 up to ``width``, and the count in the last column."""
    packed = torch.full((len(selections), width + 1), -1, dtype=torch.int32)
    for row, tokens in enumerate(selections):
        packed[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        packed[row, width] = len(tokens)
    return packed


def random_problem(
    selections: list[list[int]],
    requests: list[int],
    num_requests: int,
    pages_per_request: int,
    query_heads: int,
    *,
    width: int = WIDTH,
    seed: int = 0,
) -> Problem:
    """Random queries and a random block table over ``num_requests * pages_per_request`` pages."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(selections), query_heads, HEAD_SIZE)
    pages = torch.randperm(num_requests * pages_per_request, generator=generator)
    return Problem(
        query=torch.randn(shape, generator=generator).bfloat16(),
        gate=torch.randn(shape, generator=generator).bfloat16(),
        indices=pack_indices(selections, width),
        block_table=pages.reshape(num_requests, pages_per_request).to(torch.int32),
        token_to_request=torch.tensor(requests, dtype=torch.int32),
    )


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference over the norm of ``expected``."""
    difference = (actual.double() - expected).norm()
    return float(difference / expected.norm().clamp_min(1e-30))
