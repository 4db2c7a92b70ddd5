# SPDX-License-Identifier: Apache-2.0
"""What ``ci/bench_qsa.py`` can show without a GPU: selections, floors, oracle, report."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from ci import bench_qsa as bench

from . import attention, selections
from .kv_cache import HEAD_SIZE, KINDS, empty_cache, fill

CONTEXT = 20_000


@pytest.mark.parametrize("pick", [selections.random_selection, selections.overlapping_selection])
def test_selection_is_packed_and_distinct(pick) -> None:  # type: ignore[no-untyped-def]
    packed = pick(20, CONTEXT, torch.Generator().manual_seed(0))
    assert packed.shape == (20, attention.WIDTH + 1)
    assert packed.dtype == torch.int32
    assert packed[:, -1].tolist() == [attention.WIDTH] * 20
    for row in packed[:, :-1]:
        assert len(set(row.tolist())) == attention.WIDTH
        assert int(row.min()) >= 0
        assert int(row.max()) == CONTEXT - 1
        groups = row[: attention.BUDGET].reshape(-1, 4)
        assert torch.equal(groups, groups[:, :1] // 4 * 4 + torch.arange(4, dtype=torch.int32))


def test_overlapping_rows_share_504_groups() -> None:
    packed = selections.overlapping_selection(30, CONTEXT, torch.Generator().manual_seed(0))
    groups = [set((row[: attention.BUDGET : 4] // 4).tolist()) for row in packed]
    shared = [len(a & b) for a, b in pairwise(groups)]
    assert shared == [504] * 29


def test_random_rows_share_little() -> None:
    packed = selections.random_selection(5, 200_000, torch.Generator().manual_seed(0))
    groups = [set(row[: attention.BUDGET].tolist()) for row in packed]
    assert all(len(a & b) < 100 for a, b in pairwise(groups))


def test_too_short_a_context_is_an_error() -> None:
    with pytest.raises(ValueError, match="2000 tokens"):
        selections.random_selection(1, 2000, torch.Generator())


def test_oracle_agrees_with_plain_attention() -> None:
    """One row, one head at a time, in numbers that are easy to follow."""
    problem = attention.random_problem([[5, 17, 3], [], [30, 2]], [0, 0, 1], 2, 2, 4, width=3)
    cache = empty_cache("bf16", 4, 16, 2)
    keys, values = torch.randn(2, 4, 16, 2, HEAD_SIZE).bfloat16()
    fill(cache, keys, values)
    expected = torch.zeros(3, 4, HEAD_SIZE, dtype=torch.float64)
    for row, tokens in enumerate([[5, 17, 3], [], [30, 2]]):
        for head in range(4):
            scores, rows = [], []
            for token in tokens:
                page = int(problem.block_table[problem.token_to_request[row], token // 16])
                key, value = (x[page, token % 16, head // 2].double() for x in (keys, values))
                scores.append(math.exp(float(problem.query[row, head].double() @ key) / 16))
                rows.append(value)
            if scores:
                weighted = sum(s * v for s, v in zip(scores, rows, strict=True)) / sum(scores)
                expected[row, head] = weighted * torch.sigmoid(problem.gate[row, head].double())
    torch.testing.assert_close(attention.attention_oracle(problem, cache), expected)
    in_chunks = attention.attention_oracle(problem, cache, chunk=1)
    torch.testing.assert_close(in_chunks, expected)


def test_floor_counts_every_byte_once() -> None:
    assert {kind: bench.row_bytes(kind) for kind in KINDS} == {
        "bf16": 1024,
        "e4m3_bytes": 512,
        "e4m3_native": 512,
        "int8": 520,
    }
    one = bench.moved_bytes("int8", 1, 2051)
    assert one == 2 * 2051 * 520 + 2052 * 4 + 3 * 24 * 256 * 2
    assert bench.moved_bytes("int8", 7, 2051) == 7 * one


def test_context_shrinks_to_whole_pages_that_fit() -> None:
    page = bench.PAGE_SIZE * bench.KV_HEADS * 1024
    assert bench.fitting_context("bf16", 1, 262_144, 80 << 30) == 262_144
    assert bench.fitting_context("bf16", 2, 262_144, int(page * 20 / 0.6) + 1) == 10 * 1568
    with pytest.raises(MemoryError, match="32 requests"):
        bench.fitting_context("bf16", 32, 262_144, 1 << 28)


def test_arguments() -> None:
    options = bench.parse(["--tree", "x", "--kind", "int8", "--section", "decode_7"])
    assert options.kind == ["bf16", "int8"]
    assert options.section == ["decode_7"]
    assert options.sweep
    assert not bench.parse(["--tree", "x", "--no-sweep"]).sweep
    for wrong in (["--tree", "x", "--kind", "fp4"], [], ["--tree", "x", "--context", "100"]):
        with pytest.raises(SystemExit):
            bench.parse(wrong)


def test_pinned_restores_the_table() -> None:
    from vllm.models.qwen4_exp.nvidia.ops import qsa

    original = qsa._select_config
    with bench.pinned((64, 64, 2)):
        assert qsa._select_config(1, 2, False, 2051, True) == (64, 2, 33, 33)
    assert qsa._select_config is original


def test_report_divides_by_the_right_bf16() -> None:
    def timing(kind: str, config, microseconds: float | None, **more):  # type: ignore[no-untyped-def]
        common = ("patched", "decode_1", kind, config, microseconds, 2.0, 262_144)
        return bench.Timing(*common, **more)

    lines = bench.report(
        [
            timing("bf16", None, 12.0, relative_error=0.0026),
            timing("bf16", (64, 64, 2), 8.0),
            timing("int8", None, 9.0, relative_error=0.0023),
            timing("int8", (128, 17, 4), 6.0),
            timing("int8", (32, 8, 1), 1.0, failure="relative error 3.0e-01"),
            timing("e4m3_bytes", None, None, failure="OutOfResources: shared memory"),
        ]
    ).splitlines()
    assert len(lines) == 2 + 3
    cells = {line.split(" | ")[2]: line.strip("| ").split(" | ") for line in lines[2:]}
    assert cells["int8"][3:9] == ["9.0", "0.75", "1.12", "6.0", "(128,17,4)", "0.75"]
    assert cells["bf16"][3:9] == ["12.0", "1.00", "1.50", "8.0", "(64,64,2)", "1.00"]
    assert cells["e4m3_bytes"][3] == "OutOfResources: shared memory"
    assert len({line.count(" | ") for line in lines[2:]}) == 1
