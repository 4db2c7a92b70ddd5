# SPDX-License-Identifier: Apache-2.0
"""Whole sequences for the fused QSA prepare kernel, fed in chunks, and their oracle.

A :class:`Batch` holds what the projections would deliver for a few sequences. A
:class:`PreparedCaches` owns the caches that the kernel fills; :meth:`PreparedCaches.step`
gives one chunk of each sequence to the tree's ``qsa_prepare``. The oracle computes, in
float64 and for the whole sequences at once, what should then stand in outputs and caches.

Sizes (Qwen4Exp): indexer heads 4 of 128 dims, main heads of 256, RoPE over the first 64
dims of both, 4 tokens per compressed key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .kv_cache import HEAD_SIZE, KVCache

INDEX_HEADS = 4
INDEX_SIZE = 128
RATIO = 4
ROTARY = 64
EPS = 1e-6
MROPE_SECTION = (11, 11, 10)
POSITION_ROWS = 12  # three int64 behind each raw key, counted in bf16


@dataclass(frozen=True)
class Variant:
    """How positions reach the kernel."""

    mrope: bool  # interleaved MRoPE, else plain NeoX RoPE
    positions_2d: bool  # ``positions`` is [3, T]
    cached_positions: bool  # the ring of raw keys carries RoPE positions
    ring: int  # rows of that ring


VARIANTS = {
    "mrope": Variant(mrope=True, positions_2d=True, cached_positions=True, ring=4),
    "text": Variant(mrope=False, positions_2d=False, cached_positions=False, ring=4),
    "mrope_1d": Variant(mrope=True, positions_2d=False, cached_positions=True, ring=8),
}


@dataclass(frozen=True)
class Batch:
    """Projections of all tokens of all sequences, ``T`` rows, sequence after sequence."""

    lengths: tuple[int, ...]
    query_heads: int
    kv_heads: int
    index_query: torch.Tensor  # bf16 [T, 4 * 128]
    index_key: torch.Tensor  # bf16 [T, 128]
    qkv: torch.Tensor  # bf16 [T, (2 * query_heads + 2 * kv_heads) * 256]: (q, gate) per head, K, V
    index_weights: torch.Tensor  # bf16 [2, 128]: q, k norm
    main_weights: torch.Tensor  # bf16 [2, 256]
    cos_sin: torch.Tensor  # bf16 [positions, 64]

    def starts(self) -> list[int]:
        return [sum(self.lengths[:i]) for i in range(len(self.lengths))]


def random_batch(lengths: tuple[int, ...], query_heads: int, kv_heads: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    total = sum(lengths)
    qkv = randn(total, 2 * (query_heads + kv_heads) * HEAD_SIZE)
    keys_and_values = qkv[:, 2 * query_heads * HEAD_SIZE :]
    keys_and_values[1] = 0.0  # the smallest int8 scale
    keys_and_values[2] *= 1e-3
    keys_and_values[3] *= 300.0  # beyond e4m3
    frequencies = 1e7 ** -(torch.arange(ROTARY // 2) / (ROTARY // 2))
    angles = torch.arange(4 * max(lengths) + 64)[:, None] * frequencies
    return Batch(
        lengths=lengths,
        query_heads=query_heads,
        kv_heads=kv_heads,
        index_query=randn(total, INDEX_HEADS * INDEX_SIZE).bfloat16(),
        index_key=randn(total, INDEX_SIZE).bfloat16(),
        qkv=qkv.bfloat16(),
        index_weights=(randn(2, INDEX_SIZE) * 0.2).bfloat16(),
        main_weights=(randn(2, HEAD_SIZE) * 0.2).bfloat16(),
        cos_sin=torch.cat([angles.cos(), angles.sin()], dim=1).bfloat16(),
    )


def rope_positions(logical: torch.Tensor, variant: Variant) -> torch.Tensor:
    """Positions ``[3, T]`` of the three MRoPE axes; upstream's test uses the same."""
    if not variant.positions_2d:
        return logical.expand(3, -1)
    return torch.stack([logical, logical // 7 + 3, logical // 13 + 11])


def _normalised(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    double = rows.double()
    inverse = torch.rsqrt(double.pow(2).mean(-1, keepdim=True) + EPS)
    return double * inverse * (1 + weight.double())


def _rotated(rows: torch.Tensor, axes: torch.Tensor, batch: Batch, variant: Variant) -> torch.Tensor:
    """NeoX RoPE of ``[T, heads, size]`` rows at positions ``[3, T]``."""
    half = ROTARY // 2
    pair = torch.arange(half)
    axis = torch.zeros(half, dtype=torch.long)
    if variant.mrope:
        axis[(pair % 3 == 1) & (pair < 3 * MROPE_SECTION[1])] = 1
        axis[(pair % 3 == 2) & (pair < 3 * MROPE_SECTION[2])] = 2
    table = batch.cos_sin.double()
    position = axes[axis].T  # [T, half]
    cos = table[position, pair][:, None]
    sin = table[position, half + pair][:, None]
    first, second = rows[..., :half], rows[..., half:ROTARY]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rows[..., ROTARY:]], dim=-1)


def _bf16(rows: torch.Tensor) -> torch.Tensor:
    return rows.float().bfloat16().double()


@dataclass(frozen=True)
class Expected:
    """float64, for all tokens of all sequences."""

    index_query: torch.Tensor  # [T, 4, 128]
    compressed: list[torch.Tensor]  # per sequence [groups, 128]
    query: torch.Tensor  # [T, query_heads, 256]
    gate: torch.Tensor  # bf16 [T, query_heads, 256]
    keys: torch.Tensor  # [T, kv_heads, 256]
    values: torch.Tensor  # [T, kv_heads, 256]


def prepare_oracle(batch: Batch, variant: Variant) -> Expected:
    logical = torch.cat([torch.arange(length) for length in batch.lengths])
    axes = rope_positions(logical, variant)
    split = [2 * batch.query_heads * HEAD_SIZE] + 2 * [batch.kv_heads * HEAD_SIZE]
    query_gate, keys, values = batch.qkv.split(split, dim=1)
    query, gate = query_gate.unflatten(1, (batch.query_heads, 2, HEAD_SIZE)).unbind(2)
    keys = keys.unflatten(1, (batch.kv_heads, HEAD_SIZE))

    def head(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return _rotated(_bf16(_normalised(rows, weight)), axes, batch, variant)

    compressed = []
    for start, length in zip(batch.starts(), batch.lengths, strict=True):
        groups = length // RATIO
        members = batch.index_key[start : start + groups * RATIO].double()
        pooled = _bf16(members.unflatten(0, (groups, RATIO)).mean(1))
        # Without cached positions a group knows only its logical first position.
        first = axes[:, start : start + groups * RATIO : RATIO]
        if not variant.cached_positions:
            first = logical[start : start + groups * RATIO : RATIO].expand(3, -1)
        rows = _bf16(_normalised(pooled, batch.index_weights[1]))
        compressed.append(_rotated(rows[:, None], first, batch, variant)[:, 0])
    return Expected(
        index_query=head(batch.index_query.unflatten(1, (INDEX_HEADS, INDEX_SIZE)), batch.index_weights[0]),
        compressed=compressed,
        query=head(query, batch.main_weights[0]),
        gate=gate,
        keys=head(keys, batch.main_weights[1]),
        values=values.unflatten(1, (batch.kv_heads, HEAD_SIZE)).double(),
    )


class PreparedCaches:
    """The caches of one layer; pages are handed out in random order, page 0 stays unused."""

    def __init__(self, batch: Batch, variant: Variant, main: KVCache) -> None:
        self.batch, self.variant, self.main = batch, variant, main
        self.page_size = main.data.shape[1]
        self.compressed_page = self.page_size // RATIO
        requests = len(batch.lengths)
        per_request = -(-max(batch.lengths) // self.page_size)
        generator = torch.Generator().manual_seed(5)
        pages = 1 + torch.randperm(main.data.shape[0] - 1, generator=generator)
        self.table = pages[: requests * per_request].reshape(requests, -1).to(torch.int32)
        self.ring_table = torch.arange(1, requests + 1, dtype=torch.int32)[:, None]
        width = INDEX_SIZE + (POSITION_ROWS if variant.cached_positions else 0)
        # Both side caches are padded blocks, as in vLLM's packed pages.
        self.ring = _padded_pages(requests + 1, variant.ring, width)
        self.compressed = _padded_pages(main.data.shape[0], self.compressed_page, INDEX_SIZE)

    def slots(self, request: int, positions: torch.Tensor, page_size: int) -> torch.Tensor:
        pages = self.table[request].long()[positions // page_size]
        return pages * page_size + positions % page_size

    def step(
        self, begin: tuple[int, ...], end: tuple[int, ...], unstored: tuple[int, ...] = ()
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Feed tokens ``begin[i]:end[i]`` of each sequence; returns index q, main q, gate.

        ``unstored`` rows of the chunk get main slot -1.
        """
        from vllm.models.qwen4_exp.common.qsa_cache import (
            circular_qsa_slot_mapping,
            compressed_qsa_slot_mapping,
        )
        from vllm.models.qwen4_exp.nvidia.ops.qsa_prepare import qsa_prepare

        batch, variant = self.batch, self.variant
        spans = list(zip(begin, end, strict=True))
        rows = self.rows_of(begin, end)
        logical = torch.cat([torch.arange(a, b) for a, b in spans])
        owner = torch.cat([torch.full((b - a,), i, dtype=torch.int32) for i, (a, b) in enumerate(spans)])
        query_start = torch.tensor([0, *(b - a for a, b in spans)]).cumsum(0).to(torch.int32)
        work = [(i, j) for i, (a, b) in enumerate(spans) for j in range(max(1, b // RATIO - a // RATIO))]
        work += [(-1, -1)] * 2  # the buffer is larger than the work, as under CUDA graphs
        slots = torch.cat(
            [self.slots(i, torch.arange(a, b), self.page_size) for i, (a, b) in enumerate(spans)]
        )
        slots[list(unstored)] = -1
        axes = rope_positions(logical, variant)
        index_query = torch.empty(len(rows), INDEX_HEADS, INDEX_SIZE, dtype=torch.bfloat16)
        arguments: dict[str, Any] = self.main.prepare_arguments()
        query, gate = qsa_prepare(
            batch.index_query[rows],
            batch.index_key[rows],
            axes if variant.positions_2d else logical,
            batch.cos_sin,
            batch.index_weights[0],
            batch.index_weights[1],
            EPS,
            index_query,
            self.ring,
            circular_qsa_slot_mapping(self.ring_table, owner, logical, variant.ring, query_start),
            self.ring_table,
            query_start,
            logical,
            self.compressed,
            compressed_qsa_slot_mapping(self.table, owner, logical, self.compressed_page, RATIO),
            torch.tensor(work, dtype=torch.int32),
            compress_ratio=RATIO,
            mrope_section=MROPE_SECTION if variant.mrope else None,
            rope_pos_offset=INDEX_SIZE if variant.cached_positions else None,
            main_qkv=batch.qkv[rows],
            main_q_norm_weight=batch.main_weights[0],
            main_k_norm_weight=batch.main_weights[1],
            main_eps=EPS,
            main_slot_mapping=slots,
            **arguments,
        )
        return index_query, query, gate

    def rows_of(self, begin: tuple[int, ...], end: tuple[int, ...]) -> torch.Tensor:
        """Rows of the batch that a chunk takes."""
        spans = zip(self.batch.starts(), begin, end, strict=True)
        return torch.cat([torch.arange(start + a, start + b) for start, a, b in spans])

    def compressed_rows(self, request: int) -> torch.Tensor:
        """The compressed keys of one sequence, bf16 ``[groups, 128]``."""
        groups = torch.arange(self.batch.lengths[request] // RATIO)
        slots = self.slots(request, groups, self.compressed_page)
        page = self.compressed_page
        return self.compressed[slots // page, slots % page, 0]

    def ring_rows(self, request: int, end: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Raw keys of the last tokens before ``end`` and their positions ``[n, 3]``."""
        kept = torch.arange(max(0, end - self.variant.ring), end)
        rows = self.ring[int(self.ring_table[request, 0]), kept % self.variant.ring, 0]
        if not self.variant.cached_positions:
            return rows, None
        return rows[:, :INDEX_SIZE], rows[:, INDEX_SIZE:].contiguous().view(torch.int64)


def _padded_pages(pages: int, rows: int, width: int) -> torch.Tensor:
    storage = torch.zeros(pages, rows * width + 16, dtype=torch.bfloat16)
    return storage[:, : rows * width].view(pages, rows, 1, width)
