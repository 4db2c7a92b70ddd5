# SPDX-License-Identifier: Apache-2.0
"""Figures that vLLM's planner gave, for runs without vLLM; ``tests/startup/test_kv_capacity.py`` asks it."""

from __future__ import annotations

import pytest
from vllm_series.sizing.kvcache import KvDtype, KvSettings, KvShape, plan_kv

SHAPE = KvShape(
    linear=tuple(layer % 4 != 3 for layer in range(48)),
    ple_layers=(1,),
    draft_layers=1,
    kv_heads=2,
    head_dim=256,
    index_dim=128,
    compress_ratio=4,
    key_heads=16,
    value_heads=48,
    key_dim=128,
    value_dim=128,
    conv_kernel=4,
    state_bytes=4,
    ple_channels=10_240,
    ple_window=9,
)


@pytest.mark.parametrize(
    ("dtype", "draft", "block", "six", "last", "state_blocks"),
    [
        (KvDtype.BF16, 0, 1568, 6_623_232, 6_623_232, 9),
        (KvDtype.FP8, 0, 3136, 6_823_936, 6_823_936, 9),
        (KvDtype.INT8, 0, 3088, 6_818_304, 6_818_304, 9),
        (KvDtype.BF16, 3, 1600, 6_758_400, 10_137_600, 21),
        (KvDtype.FP8, 3, 3200, 6_963_200, 10_444_800, 21),
        (KvDtype.INT8, 3, 3152, 6_959_616, 10_439_424, 21),
    ],
)
def test_six_stages(dtype, draft, block, six, last, state_blocks):
    kv = plan_kv(SHAPE, KvSettings(dtype, draft_tokens=draft), (8,) * 6)
    assert kv.block_tokens == block
    assert kv.stage_block_bytes == (*(six,) * 5, last)
    assert kv.state_blocks == state_blocks


def test_int8_bytes_are_whole_cache_lines():
    kv = plan_kv(SHAPE, KvSettings(KvDtype.INT8), (7, 8, 8, 8, 8, 9))
    assert all(size % 128 == 0 for size in kv.stage_block_bytes)


def test_without_prefixes_a_request_holds_fewer_states():
    assert plan_kv(SHAPE, KvSettings(prefix_caching=False), (48,)).state_blocks == 5


def test_tensor_parallel_keeps_one_head_per_card():
    two, four = (plan_kv(SHAPE, KvSettings(tensor_parallel=size), (48,)) for size in (2, 4))
    assert (two.block_tokens, four.block_tokens) == (1568, 784)


def test_context_that_just_starts():
    kv = plan_kv(SHAPE, KvSettings(KvDtype.INT8), (8,) * 6)
    need = kv.blocks_per_request(262_144)
    assert need == 94
    assert kv.starts(need + 1, 262_144)
    assert not kv.starts(need, 262_144)
    assert kv.blocks(kv.bytes_for(need)) == need
