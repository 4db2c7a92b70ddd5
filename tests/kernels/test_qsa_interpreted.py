# SPDX-License-Identifier: Apache-2.0
"""QSA sparse attention of the tree under the interpreter, against a float64 oracle.

The kernels, their launches and their configuration tables are the tree's. Every test runs
for each storage kind; ``-k int8`` and the like select one. A tree without int8 fails those
tests with :class:`~kernels.kv_cache.TreeLacksInt8`; vLLM 0.32.0 fails ``e4m3_bytes``.
"""

from __future__ import annotations

from typing import Any, Protocol

import pytest
import torch

from . import attention
from .attention import COMPRESS_RATIO, WIDTH, Problem
from .kv_cache import HEAD_SIZE, KINDS, KVCache, empty_cache, fill

RTOL = ATOL = 2e-2  # upstream's, tests/models/qwen4_exp/test_qsa_reference.py
#: Relative norm against the oracle on the same cache. Output rounding alone is 1.7e-3; bf16
#: probabilities bring 3.0e-3 (measured); a dropped scale or tile is far beyond.
SAME_CACHE = 4.5e-3

ROWS_KEPT = 4  # a row of 24 heads costs 1 s of CPU here; the table still sees the full count


class Pin(Protocol):
    """Pin the row count that ``_select_config`` sees, or what it answers."""

    def __call__(self, *, rows: int | None = None, block_n: int | None = None, splits: int = 1) -> None: ...


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Pin:
    from vllm.models.qwen4_exp.nvidia.ops import qsa

    original = qsa._select_config

    def pin(*, rows: int | None = None, block_n: int | None = None, splits: int = 1) -> None:
        def select(
            num_rows: int, heads: int, prefill: bool, columns: int, *rest: Any, **named: Any
        ) -> tuple[int, ...]:
            if block_n is None:
                return tuple(original(rows or num_rows, heads, prefill, columns, *rest, **named))
            tiles = -(-columns // block_n)
            return block_n, 4, tiles, min(splits, tiles)

        monkeypatch.setattr(qsa, "_select_config", select)

    return pin


def _filled(
    kind: str,
    num_pages: int,
    page_size: int,
    heads: int,
    *,
    seed: int = 1,
    spread: torch.Tensor | None = None,
    **layout: object,
) -> KVCache:
    """Gaussian K and V; ``spread``: exponents of two ``[B, N, H]`` that multiply V's rows."""
    cache = empty_cache(kind, num_pages, page_size, heads, **layout)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(seed)
    shape = (num_pages, page_size, heads, HEAD_SIZE)
    keys, values = (torch.randn(shape, generator=generator).bfloat16() for _ in range(2))
    if spread is not None:
        values = (values.float() * torch.exp2(spread)[..., None]).bfloat16()
    fill(cache, keys, values)
    return cache


def _check(
    problem: Problem, cache: KVCache, *, prefill: bool = True, bound: float = SAME_CACHE
) -> torch.Tensor:
    out = torch.full_like(problem.query, float("nan"))  # every element must be written
    actual = attention.run_attention(problem, cache, prefill, out=out)
    expected = attention.attention_oracle(problem, cache)
    assert bool(actual.isfinite().all())
    scale = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(actual.double(), expected, rtol=RTOL, atol=ATOL * scale)
    assert attention.relative_error(actual, expected) < bound
    return actual


# rows, query heads, KV heads, page size, use_prefill_config: all geometries of upstream's
# test_qsa_sparse_paged_attention_correctness.
GEOMETRIES = {
    "tp1_r1": (1, 24, 2, 1600, True),
    "tp2_r16": (16, 12, 1, 1600, True),
    "tp4_r32": (32, 6, 1, 800, True),
    "tp1_r128": (128, 24, 2, 1568, True),
    "tp4_r257": (257, 6, 1, 800, True),
    "tp4_r513": (513, 6, 1, 784, True),
    "tp4_r700": (700, 6, 1, 800, True),
    "tp1_r1024": (1024, 24, 2, 1600, True),
    "tp1_r2048_prefill": (2048, 24, 2, 1600, True),
    "tp1_r2048_uniform": (2048, 24, 2, 1600, False),
}


def _geometry_problem(rows: int, query_heads: int, page_size: int) -> Problem:
    """Upstream's selection: 512 groups over 8 pages, row by row shifted; one short request."""
    pages, requests = 9, min(rows, 3)
    context = [pages * page_size - 1] * requests
    if requests > 1:
        context[1] = rows // requests + 8
    selections, owners = [], []
    per_page = page_size // COMPRESS_RATIO
    for row in range(rows):
        owner = min(row * requests // rows, requests - 1)
        position = context[owner] - 1 - row % max(1, rows // requests)
        groups = [(group % 8) * per_page + (group // 8 + 2 * row) % per_page for group in range(512)]
        whole = (position + 1) // COMPRESS_RATIO
        tokens = [
            group * COMPRESS_RATIO + member
            for group in groups
            if group < whole
            for member in range(COMPRESS_RATIO)
        ]
        tokens += range(whole * COMPRESS_RATIO, position + 1)  # the open group
        selections.append(tokens)
        owners.append(owner)
    return attention.random_problem(selections, owners, requests, pages, query_heads)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "geometry",
    [
        pytest.param(value, id=name if value[0] <= ROWS_KEPT else f"{name}_cut_to_{ROWS_KEPT}_rows")
        for name, value in GEOMETRIES.items()
    ],
)
def test_upstream_geometry(kind: str, geometry: tuple[int, int, int, int, bool], choose: Pin) -> None:
    rows, query_heads, heads, page_size, prefill = geometry
    problem = _geometry_problem(min(rows, ROWS_KEPT), query_heads, page_size)
    cache = _filled(kind, problem.block_table.numel(), page_size, heads)
    choose(rows=rows)
    with attention.device_capability(8, 6):
        _check(problem, cache, prefill=prefill)


CAPABILITIES = ((8, 0), (8, 6), (8, 9), (9, 0), (12, 0))


def _table_entries(kind: str) -> list[tuple[int, int]]:
    """Every (BLOCK_N, splits) that some row count gets on some GPU; warps make no difference."""
    table = attention.table_of(kind)
    entries = set()
    for capability in CAPABILITIES:
        with attention.device_capability(*capability):
            for rows in range(1, 2100):
                for prefill in (False, True):
                    block_n, _, _, splits = table(rows, 1, prefill)
                    entries.add((block_n, splits))
    return sorted(entries)


@pytest.mark.parametrize("kind", KINDS)
def test_every_table_entry(kind: str, choose: Pin) -> None:
    problem = _geometry_problem(1, 6, 64)
    cache = _filled(kind, problem.block_table.numel(), 64, 1)
    with attention.device_capability(8, 6):
        for block_n, splits in _table_entries(kind):
            choose(block_n=block_n, splits=splits)
            _check(problem, cache)


PAGE = 16
PAGES = 140  # 2240 tokens, more than a selection
SPLITS = [(32, 1), (64, 1), (32, 64), (64, 3), (128, 17)]
SPLIT_IDS = [f"block{block_n}_split{splits}" for block_n, splits in SPLITS]


def _ragged_problem(query_heads: int) -> Problem:
    """Empty rows, counts around the tile sizes, -1 inside and behind, short contexts, strays."""
    generator = torch.Generator().manual_seed(7)
    selections = []
    for count in (0, 1, 5, 31, 33, 64, 129, WIDTH):
        selections.append(torch.randperm(PAGE * PAGES, generator=generator)[:count].tolist())
    holes = torch.randperm(PAGE * PAGES, generator=generator)[:300]
    holes[1:300:3] = -1
    first_tile_empty = [-1] * 40 + list(range(20))
    only_holes = [-1] * 70
    beyond_the_table = [3, PAGE * PAGES + 5, 4]
    selections += [holes.tolist(), first_tile_empty, only_holes, beyond_the_table]
    requests = [row % 2 for row in range(len(selections))]
    selections += [[1, 2, 3], [4, 5, 6]]
    requests += [-1, 2]  # rows of no request, as in padded CUDA graphs
    return attention.random_problem(selections, requests, 2, PAGES, query_heads)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("block_n", "splits"), SPLITS, ids=SPLIT_IDS)
@pytest.mark.parametrize("heads", [1, 2], ids=["one_kv_head", "two_kv_heads"])
def test_ragged_selections(kind: str, block_n: int, splits: int, heads: int, choose: Pin) -> None:
    problem = _ragged_problem(6 * heads)
    cache = _filled(kind, 2 * PAGES, PAGE, heads)
    choose(block_n=block_n, splits=splits)
    actual = _check(problem, cache)
    empty = [0, 10, 12, 13]
    assert torch.equal(actual[empty], torch.zeros_like(actual[empty]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head_major", [False, True], ids=["BLNHC", "BLHNC"])
def test_layouts_with_padded_blocks(kind: str, head_major: bool, choose: Pin) -> None:
    problem = _ragged_problem(12)
    cache = _filled(kind, 2 * PAGES, PAGE, 2, head_major=head_major, page_padding=256)
    choose(block_n=64, splits=3)
    _check(problem, cache)


def _spread(name: str) -> torch.Tensor:
    """log2 of the factor of each V row, ``[B, N, H]``, within 2**-6 .. 2**6."""
    shape = (2 * PAGES, PAGE, 2)
    if name == "random":
        return torch.randint(-6, 7, shape, generator=torch.Generator().manual_seed(9)).float()
    ramp = torch.linspace(-6, 6, shape[0] * shape[1]).reshape(*shape[:2], 1).expand(shape)
    return ramp if name == "rising" else -ramp


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("block_n", "splits"), [(32, 1), (64, 3)], ids=["one", "three_splits"])
@pytest.mark.parametrize("spread", ["random", "rising", "falling"])
def test_value_scale_spread(kind: str, block_n: int, splits: int, spread: str, choose: Pin) -> None:
    # In table order, so that rising and falling rows meet a running reference both ways.
    selections = [list(range(WIDTH)), list(range(WIDTH - 1, -1, -1)), list(range(100))]
    problem = attention.random_problem(selections, [0, 1, 0], 2, PAGES, 12)
    problem.block_table.copy_(torch.arange(2 * PAGES).reshape(2, PAGES))
    cache = _filled(kind, 2 * PAGES, PAGE, 2, spread=_spread(spread))
    choose(block_n=block_n, splits=splits)
    _check(problem, cache)


@pytest.mark.parametrize("kind", KINDS)
def test_zero_rows_stay_zero(kind: str) -> None:
    """A row of zeros has the smallest scale and must not become noise or NaN."""
    problem = attention.random_problem([list(range(PAGE))], [0], 1, PAGES, 12)
    cache = empty_cache(kind, PAGES, PAGE, 2)
    zeros = torch.zeros(PAGES, PAGE, 2, HEAD_SIZE, dtype=torch.bfloat16)
    fill(cache, zeros, zeros)
    actual = attention.run_attention(problem, cache, True)
    assert torch.equal(actual, torch.zeros_like(actual))


@pytest.mark.parametrize("kind", ["e4m3_bytes", "e4m3_native", "int8"])
def test_every_code_in_every_position(kind: str, choose: Pin) -> None:
    """One selected token per row returns its V row; 256 rows put each code everywhere."""
    codes = torch.arange(256)
    if kind != "int8":
        codes = codes[(codes & 0x7F) != 0x7F]  # no NaN codes: the writer never stores them
    count = len(codes)
    pages = -(-count // PAGE)
    cache = empty_cache(kind, pages, PAGE, 1)
    positions = (torch.arange(pages * PAGE)[:, None] + torch.arange(HEAD_SIZE)) % count
    rows = codes[positions].to(torch.uint8).view(cache.data.dtype)
    bytes_of = cache.data.view(torch.uint8)
    shape = (pages, PAGE, 1, HEAD_SIZE)
    bytes_of[..., HEAD_SIZE:] = rows.view(torch.uint8).reshape(shape)
    bytes_of[..., :HEAD_SIZE] = rows.view(torch.uint8).flip(0).reshape(shape)
    if cache.scales is not None:
        cache.scales.fill_(0.5)
    selections = [[token, (token + 1) % count] for token in range(0, count, 2)]
    problem = attention.random_problem(selections, [0] * len(selections), 1, pages, 6, width=2)
    choose(block_n=32)
    _check(problem, cache)


def test_int8_page_is_planar() -> None:
    """The byte order that the design fixes: K and V codes of all tokens, then the scales."""
    pages, page_size, heads, size = 3, 4, 2, HEAD_SIZE
    for head_major in (False, True):
        cache = empty_cache("int8", pages, page_size, heads, head_major=head_major, page_padding=128)
        storage = cache.storage
        assert storage.shape == (pages, heads, page_size, 2 * size + 8)
        page = torch.as_strided(storage, (pages, storage[0].numel()), (storage.stride(0), 1))
        page.copy_(torch.randint(-128, 128, page.shape, dtype=torch.int8))
        data_bytes = page_size * heads * 2 * size
        data = page[:, :data_bytes].reshape(pages, page_size, heads, 2 * size)
        scales = page[:, data_bytes:].contiguous().view(torch.int32)
        assert torch.equal(cache.data, data)
        assert cache.scales is not None
        expected = scales.reshape(pages, page_size, heads, 2)
        assert torch.equal(cache.scales.view(torch.int32), expected)
        assert cache.data.data_ptr() == storage.data_ptr()
        assert all(stride % 16 == 0 for stride in cache.data.stride()[:3])


def test_error_of_the_int8_cache_itself() -> None:
    """Against unquantised K and V on gaussian data: 0.9 to 1.0 % measured."""
    problem = _ragged_problem(12)
    bf16 = _filled("bf16", 2 * PAGES, PAGE, 2)
    actual = attention.run_attention(problem, _filled("int8", 2 * PAGES, PAGE, 2), True)
    expected = attention.attention_oracle(problem, bf16)
    assert attention.relative_error(actual, expected) < 1.5e-2
