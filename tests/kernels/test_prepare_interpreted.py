# SPDX-License-Identifier: Apache-2.0
"""The fused QSA prepare kernel of the tree under the interpreter, in two prefill chunks.

``-k`` selects a storage kind. Upstream writes bf16 and native e4m3; a tree without the
patches fails ``e4m3_bytes`` (it stores numbers, not e4m3 codes) and ``int8``.
"""

from __future__ import annotations

import functools

import pytest
import torch

from . import attention
from .kv_cache import (
    HEAD_SIZE,
    KINDS,
    KVCache,
    empty_cache,
    quantise_e4m3,
    quantise_int8,
)
from .prepare import VARIANTS, PreparedCaches, Variant, prepare_oracle, random_batch

RTOL, ATOL = 1.6e-2, 1e-2  # upstream's, tests/models/qwen4_exp/test_qsa_prepare.py
PAGE, PAGES = 16, 9
LENGTHS = (27, 14, 6)
FIRST = (15, 6, 5)  # chunks end inside a group of 4; the last chunk of the last is one token
HEADS = {"tp1": (24, 2), "tp2": (12, 1), "tp4": (6, 1), "two_kv_heads": (6, 2)}

Run = tuple[PreparedCaches, dict[str, torch.Tensor]]


def _empty(kind: str, heads: tuple[int, int], padded: bool) -> KVCache:
    """BLNHC pages back to back, or BLHNC pages with other bytes in between."""
    padding = 128 if padded else 0
    return empty_cache(kind, PAGES, PAGE, heads[1], head_major=padded, page_padding=padding)


@functools.cache  # read-only for the tests; a run costs seconds
def _run(kind: str, variant: Variant, heads: tuple[int, int], padded: bool = False) -> Run:
    """Both chunks; outputs in the batch's row order. The last token of all is not stored."""
    batch = random_batch(LENGTHS, *heads, seed=3)
    main = _empty(kind, heads, padded)
    caches = PreparedCaches(batch, variant, main)
    rows, results = [], []
    for begin, end in (((0, 0, 0), FIRST), (FIRST, LENGTHS)):
        rows.append(caches.rows_of(begin, end))
        last = (len(rows[-1]) - 1,) if end == LENGTHS else ()
        results.append(caches.step(begin, end, unstored=last))
    inverse = torch.cat(rows).argsort()
    names = ("index_query", "query", "gate")
    joined = (torch.cat(parts)[inverse] for parts in zip(*results, strict=True))
    return caches, dict(zip(names, joined, strict=True))


def _stored(caches: PreparedCaches) -> tuple[torch.Tensor, torch.Tensor]:
    """Page and offset of every token in the batch's row order."""
    slots = torch.cat([caches.slots(i, torch.arange(n), PAGE) for i, n in enumerate(caches.batch.lengths)])
    return slots // PAGE, slots % PAGE


def _close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual.double(), expected.double(), rtol=RTOL, atol=ATOL)


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_outputs_and_side_caches(variant: Variant) -> None:
    """Everything that does not depend on the main cache's kind, with a bf16 main cache."""
    caches, outputs = _run("bf16", variant, HEADS["two_kv_heads"])
    expected = prepare_oracle(caches.batch, variant)
    _close(outputs["index_query"], expected.index_query)
    _close(outputs["query"], expected.query)
    assert torch.equal(outputs["gate"], expected.gate)
    for request, length in enumerate(LENGTHS):
        _close(caches.compressed_rows(request), expected.compressed[request])
        keys, positions = caches.ring_rows(request, length)
        start = caches.batch.starts()[request]
        kept = torch.arange(max(0, length - variant.ring), length)
        assert torch.equal(keys, caches.batch.index_key[start + kept])
        if positions is not None:
            axes = (kept, kept // 7 + 3, kept // 13 + 11) if variant.positions_2d else (kept,) * 3
            assert torch.equal(positions, torch.stack(axes, dim=1))


@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
def test_bf16_main_cache(heads: tuple[int, int]) -> None:
    variant = VARIANTS["mrope"]
    caches, outputs = _run("bf16", variant, heads)
    expected = prepare_oracle(caches.batch, variant)
    _close(outputs["query"], expected.query)
    pages, offsets = _stored(caches)
    keys, values = caches.main.rows(pages, offsets)
    _close(keys[:-1], expected.keys[:-1])
    assert torch.equal(values[:-1], expected.values[:-1])
    assert not caches.main.data[pages[-1], offsets[-1]].any()  # slot -1


@pytest.mark.parametrize("kind", ["e4m3_bytes", "e4m3_native", "int8"])
@pytest.mark.parametrize("name", ["tp1", "two_kv_heads"])
def test_quantised_main_cache(kind: str, name: str) -> None:
    """The bytes are those of the bf16 cache, quantised; nothing else is written."""
    variant, heads = VARIANTS["mrope"], HEADS[name]
    caches, outputs = _run(kind, variant, heads, padded=True)
    reference, plain = _run("bf16", variant, heads)
    for output, rows in outputs.items():
        assert torch.equal(rows, plain[output]), output
    pages, offsets = _stored(reference)
    keys, values = reference.main.data[pages, offsets].split(HEAD_SIZE, dim=-1)
    wanted = _empty(kind, heads, padded=True)
    for row in range(len(pages) - 1):
        page, offset = pages[row], offsets[row]
        for index, source in enumerate((keys[row], values[row])):
            part = slice(index * HEAD_SIZE, (index + 1) * HEAD_SIZE)
            if kind == "int8":
                assert wanted.scales is not None
                codes, scale = quantise_int8(source)
                wanted.data[page, offset, :, part] = codes
                wanted.scales[page, offset, :, index] = scale
            else:
                codes = quantise_e4m3(source, (wanted.k_scale, wanted.v_scale)[index])
                wanted.data.view(torch.uint8)[page, offset, :, part] = codes
    for number in range(PAGES):
        actual = caches.main.storage[number].view(torch.uint8)
        assert torch.equal(actual, wanted.storage[number].view(torch.uint8)), f"page {number}"


def test_int8_bytes_are_those_of_the_unified_kernel() -> None:
    from vllm.v1.attention.ops.triton_reshape_and_cache_flash import (
        triton_reshape_and_cache_flash_per_token_head_quant,
    )
    from vllm.v1.kv_cache_interface import KVQuantMode

    variant, heads = VARIANTS["mrope"], HEADS["two_kv_heads"]
    caches, _ = _run("int8", variant, heads)
    reference, _ = _run("bf16", variant, heads)
    pages, offsets = _stored(reference)
    keys, values = reference.main.data[pages, offsets].split(HEAD_SIZE, dim=-1)
    unified = empty_cache("int8", PAGES, PAGE, heads[1])
    assert unified.scales is not None
    slots = pages * PAGE + offsets
    slots[-1] = -1
    triton_reshape_and_cache_flash_per_token_head_quant(
        keys.contiguous(),
        values.contiguous(),
        unified.keys,
        unified.values,
        unified.scales[..., 0],
        unified.scales[..., 1],
        slots,
        KVQuantMode.INT8_PER_TOKEN_HEAD,
    )
    assert torch.equal(caches.main.storage, unified.storage)


@pytest.mark.parametrize("kind", KINDS)
def test_second_chunk_attends_to_the_first(kind: str) -> None:
    """Attention for the second chunk's queries over what both chunks have written."""
    variant, heads = VARIANTS["mrope"], HEADS["two_kv_heads"]
    caches, outputs = _run(kind, variant, heads)
    selections, owners, rows = [], [], []
    for request, (begin, end) in enumerate(zip(FIRST, LENGTHS, strict=True)):
        for position in range(begin, end):
            if (request, position) == (len(LENGTHS) - 1, LENGTHS[-1] - 1):
                continue  # the token that was not stored
            selections.append(list(range(position + 1)))
            owners.append(request)
            rows.append(caches.batch.starts()[request] + position)
    problem = attention.Problem(
        query=outputs["query"][rows],
        gate=outputs["gate"][rows].contiguous(),
        indices=attention.pack_indices(selections),
        block_table=caches.table,
        token_to_request=torch.tensor(owners, dtype=torch.int32),
    )
    actual = attention.run_attention(problem, caches.main, True)
    assert attention.relative_error(actual, attention.attention_oracle(problem, caches.main)) < 5e-3
    # And against the unquantised keys and values of the oracle: nothing was lost on the way.
    expected = prepare_oracle(caches.batch, variant)
    ideal = empty_cache("bf16", PAGES, PAGE, heads[1])
    pages, offsets = _stored(caches)
    both = torch.cat([expected.keys, expected.values], dim=-1)
    ideal.data[pages, offsets] = both.float().bfloat16()
    bound = {"bf16": 1e-2, "int8": 4e-2}.get(kind, 1e-1)
    kept = [i for i, owner in enumerate(owners) if owner]  # the first sequence holds an x300 row
    error = attention.relative_error(actual[kept], attention.attention_oracle(problem, ideal)[kept])
    assert error < bound
