# SPDX-License-Identifier: Apache-2.0
"""What people have published of real boxes, against the plan; docs/hardware.md says each deviation.

The published figures are another code's on real cards. Where the plan must be told what that code did
otherwise (the LM head on every card), the test says so.
"""

from __future__ import annotations

from pathlib import Path

import flash_next
import pytest
from vllm_series.sizing.cards import parse_cards
from vllm_series.sizing.checkpoint import read_checkpoint
from vllm_series.sizing.kvcache import KvDtype, KvPlan, KvSettings, plan_kv
from vllm_series.sizing.layout import Layout, Request, choose_layout, lay_out
from vllm_series.sizing.model import Model, read_model
from vllm_series.sizing.units import GIB
from vllm_series.sizing.weights import Weights, sort_weights

CONTEXT = 262_144


def load(folder: Path, form: str) -> tuple[Model, Weights, int]:
    flash_next.write_checkpoint(folder, form)
    model, checkpoint = read_model(folder), read_checkpoint(folder)
    return model, sort_weights(checkpoint.tensors, model.layers), checkpoint.size


def six_cards(folder: Path, kv: KvDtype) -> tuple[Layout, KvPlan, list[int]]:
    """The published start: even stages, no prefix caching, embedding and LM head on every card."""
    model, weights, _ = load(folder, "gptq")
    request = Request(parse_cards("6x24"), kv=kv, prefix_caching=False)
    layout = lay_out(model, weights, request, 1, (8,) * 6)
    both = weights.embedding.on_card(1) + weights.head.on_card(1)
    held = [s.weights.get("embedding", 0) + s.weights.get("head", 0) for s in layout.stages]
    return layout, layout.kv, [s.free - both + own for s, own in zip(layout.stages, held, strict=True)]


def test_six_cards_bf16(tmp_path: Path) -> None:
    """6x RTX 3090, GPTQ-INT4, PP=6 8,8,8,8,8,8, bf16: 1,016,755 tokens, 3.88 contexts ("four").

    The reserve is fitted to this start, so the deviation is that of the fit.
    """
    _, kv, free = six_cards(tmp_path, KvDtype.BF16)
    assert kv.tokens(kv.blocks(free), CONTEXT) == pytest.approx(1_016_755, rel=0.012)
    assert round(kv.requests(kv.blocks(free), CONTEXT)) == 4


def test_six_cards_int8(tmp_path: Path) -> None:
    """The same box with int8: 1.92 million tokens, seven contexts. Nothing is fitted to this."""
    _, kv, free = six_cards(tmp_path, KvDtype.INT8)
    assert kv.tokens(kv.blocks(free), CONTEXT) == pytest.approx(1_920_000, rel=0.01)
    assert int(kv.requests(kv.blocks(free), CONTEXT)) == 7


def test_six_cards_checkpoint(tmp_path: Path) -> None:
    """The published GPTQ checkpoint takes 188 GB."""
    assert load(tmp_path, "gptq")[2] == pytest.approx(188e9, rel=0.005)


def test_three_cards(tmp_path: Path) -> None:
    """3x 24 GB, PP=3, INT4 mixed: 21.55 GiB of weights per rank."""
    model, weights, _ = load(tmp_path, "mixed")
    layout = lay_out(model, weights, Request(parse_cards("3x24"), vision=False), 1, (16, 16, 16))
    held = [stage.weight_bytes / GIB for stage in layout.stages]
    assert max(held) == pytest.approx(21.55, rel=0.015)
    assert sum(held) / 3 == pytest.approx(21.55, rel=0.01)


def test_three_cards_just_start(tmp_path: Path) -> None:
    """A third of a context is left with the published share of the memory, and no vision."""
    model, weights, _ = load(tmp_path, "mixed")
    request = Request(parse_cards("3x24"), vision=False, batched_tokens=512, utilization=0.98, context=32_768)
    layout = choose_layout(model, weights, request)
    assert layout is not None
    assert layout.fits


def test_four_cards_exactly(tmp_path: Path) -> None:
    """4x RTX 3090, TP2 x PP2 25,23, FP8, three draft tokens, 4.1e9 bytes per rank: 806,792 tokens."""
    model, _, _ = load(tmp_path, "gptq")
    kv = plan_kv(model.kv, KvSettings(KvDtype.FP8, 2, 3), (25, 23))
    assert kv.tokens(kv.blocks([4_100_000_000] * 2), CONTEXT) == 806_792


def test_four_cards_of_an_earlier_release_exactly(tmp_path: Path) -> None:
    """The same box with TP4, 2.9e9 bytes per rank: 342,912 tokens."""
    model, _, _ = load(tmp_path, "gptq")
    kv = plan_kv(model.kv, KvSettings(KvDtype.FP8, 4, 3), (48,))
    assert kv.tokens(kv.blocks([2_900_000_000]), CONTEXT) == 342_912


def test_eight_cards(tmp_path: Path) -> None:
    """8x RTX 4090, TP4 x PP2, bf16, 10.35 GiB per rank: 1,676,933 tokens; prefix caching is not said."""
    model, _, _ = load(tmp_path, "gptq")
    memory = [int(10.35 * GIB)] * 2
    for prefixes, deviation in ((False, 0.002), (True, 0.014)):
        kv = plan_kv(model.kv, KvSettings(KvDtype.BF16, 4, 0, prefixes), (24, 24))
        assert kv.tokens(kv.blocks(memory), CONTEXT) == pytest.approx(1_676_933, rel=deviation)


def test_fp8_against_bf16_on_one_card(tmp_path: Path) -> None:
    """Two GB10 with two draft tokens: fp8 holds 1.72 and 1.79 times the tokens of bf16."""
    model, _, _ = load(tmp_path, "gptq")
    found = []
    for dtype in (KvDtype.BF16, KvDtype.FP8):
        kv = plan_kv(model.kv, KvSettings(dtype, draft_tokens=2), (48,))
        found.append(kv.tokens(kv.blocks([20 * GIB]), CONTEXT))
    assert 1.72 <= found[1] / found[0] <= 1.79
