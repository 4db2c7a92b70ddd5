# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of ``vllm-series plan`` and vLLM's own planner give the same caches.

Run with ``PYTHONPATH`` and ``VLLM_TREE`` naming the vLLM tree under test, patched with the series.
``KV_TABLE=FILE`` writes the table of docs/benchmarks.md from vLLM's plans.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="needs a vLLM tree on PYTHONPATH, see VLLM_TREE")

from transformers import Qwen4ExpTextConfig
from vllm_series.sizing.kvcache import KvDtype, KvPlan, KvSettings, KvShape, plan_kv

from startup.checkpoints import tiny_config
from startup.kv_plans import Case, plan, write_config

pytestmark = pytest.mark.tree

GIB = 1 << 30
DTYPES = {kind.argument: kind for kind in KvDtype}
EVEN = {stages: (48 // stages,) * stages for stages in (1, 2, 3, 4, 6)}

CASES = [
    *(
        Case(dtype, EVEN[stages], draft_tokens=draft, prefix_caching=prefix)
        for dtype in DTYPES
        for stages in EVEN
        for draft in (0, 3)
        for prefix in (True, False)
    ),
    *(
        Case(dtype, partition, draft_tokens=draft)
        for dtype in DTYPES
        for partition in ((7, 8, 8, 8, 8, 9), (10, 9, 9, 9, 11), (22, 26), (4, 20, 24), (9, 10, 10, 10, 9))
        for draft in (0, 2)
    ),
    *(
        Case(dtype, partition, tensor_parallel=tp, draft_tokens=draft, context=131_072)
        for dtype in DTYPES
        for partition in ((48,), (25, 23))
        for tp in (2, 4)
        for draft in (0, 1)
    ),
]


def real_config() -> Qwen4ExpTextConfig:
    """The dimensions of Qwen3.8-Flash-Next that caches depend on; experts and table do not matter here."""
    return tiny_config(
        48,
        vocab_size=248_320,
        hidden_size=2560,
        num_attention_heads=24,
        num_key_value_heads=2,
        head_dim=256,
        linear_num_key_heads=16,
        linear_num_value_heads=48,
        ple_embed_dim=2560,
        indexer_budget=2048,
        max_position_embeddings=262_144,
        mamba_ssm_dtype="float32",
    )


def shape_of(config: Qwen4ExpTextConfig) -> KvShape:
    """The same dimensions for the tool."""
    return KvShape(
        linear=tuple(kind == "linear_attention" for kind in config.layer_types),
        ple_layers=tuple(ple_id - 1 for ple_id in config.ple_layer_ids),
        draft_layers=config.mtp_num_hidden_layers,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        index_dim=config.indexer_head_dim,
        compress_ratio=config.indexer_compress_ratio,
        key_heads=config.linear_num_key_heads,
        value_heads=config.linear_num_value_heads,
        key_dim=config.linear_key_head_dim,
        value_dim=config.linear_value_head_dim,
        conv_kernel=config.linear_conv_kernel_dim,
        state_bytes=4,
        ple_channels=config.hc_count * config.hidden_size,
        ple_window=(config.ple_conv_kernel_size - 1) * config.ngram_size,
    )


def arithmetic(config: Qwen4ExpTextConfig, case: Case) -> KvPlan:
    settings = KvSettings(
        DTYPES[case.kv_cache_dtype], case.tensor_parallel, case.draft_tokens, case.prefix_caching
    )
    return plan_kv(shape_of(config), settings, case.partition)


@pytest.fixture(scope="module")
def real_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("real"), real_config())


@pytest.fixture(scope="module")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("small"), tiny_config(24))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_real_dimensions(real_folder: Path, case: Case) -> None:
    # Unequal, so that the smallest stage decides.
    memory = [60 * GIB - 123_456_789 * stage for stage in range(len(case.partition))]
    check(real_config(), case, plan(real_folder, case, memory), memory)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("partition", [(24,), (4, 20), (4, 5, 7, 8), (6, 2, 5, 3, 6, 2)], ids=str)
@pytest.mark.parametrize("draft", [0, 2])
def test_another_model(small_folder: Path, dtype: str, partition: tuple[int, ...], draft: int) -> None:
    """Other ratios of states to keys and values, so other blocks and groups."""
    case = Case(dtype, partition, draft_tokens=draft, context=2048)
    memory = [GIB] * len(partition)
    check(tiny_config(24), case, plan(small_folder, case, memory), memory)


@pytest.mark.parametrize("spare", [0, -1])
def test_smallest_cache_that_starts(real_folder: Path, spare: int) -> None:
    """One request of the full context and the null block; a block less is refused by both."""
    case = Case("int8_per_token_head", EVEN[6])
    ours = arithmetic(real_config(), case)
    blocks = ours.blocks_per_request(case.context) + 1 + spare
    memory = ours.bytes_for(blocks)
    assert ours.starts(ours.blocks(memory), case.context) == (spare == 0)
    if spare == 0:
        assert plan(real_folder, case, memory).concurrency > 1
    else:
        with pytest.raises(ValueError, match="max seq len"):
            plan(real_folder, case, memory)


def test_four_cards_as_published(real_folder: Path) -> None:
    """TP2 x PP2, 25,23 layers, FP8 cache, three draft tokens, 4.1e9 bytes per card."""
    case = Case("fp8", (25, 23), tensor_parallel=2, draft_tokens=3)
    assert plan(real_folder, case, [4_100_000_000] * 2).tokens == 806_792


def check(config: Qwen4ExpTextConfig, case: Case, theirs: object, memory: list[int]) -> None:
    ours = arithmetic(config, case)
    blocks = ours.blocks(memory)
    assert theirs.block_tokens == ours.block_tokens
    assert theirs.stage_block_bytes == ours.stage_block_bytes
    assert theirs.blocks == blocks
    assert theirs.concurrency == ours.requests(blocks, case.context)
    assert theirs.tokens == ours.tokens(blocks, case.context)


@pytest.mark.skipif("KV_TABLE" not in os.environ, reason="writes a table where KV_TABLE says")
def test_write_table(real_folder: Path) -> None:
    """Tokens per GiB of every card, at the full context, from vLLM's own planner."""
    lines = []
    memory = 256 * GIB
    for draft in (0, 3):
        for stages, partition in EVEN.items():
            per_gib = {}
            for dtype, kind in DTYPES.items():
                case = Case(dtype, partition, draft_tokens=draft)
                got = plan(real_folder, case, [memory] * stages)
                per_gib[kind] = (
                    got.tokens * GIB / memory,
                    got.block_tokens * GIB / max(got.stage_block_bytes),
                )
            base = per_gib[KvDtype.BF16]
            cells = [str(stages)]
            for kind, (full, marginal) in per_gib.items():
                ratio = "" if kind is KvDtype.BF16 else f" / {full / base[0]:.3f} / {marginal / base[1]:.3f}"
                cells.append(f"{full:,.0f}".replace(",", " ") + ratio)
            lines.append(f"| {draft} | " + " | ".join(cells) + " |")
    Path(os.environ["KV_TABLE"]).write_text("\n".join(lines) + "\n")
