# SPDX-License-Identifier: Apache-2.0
"""What vLLM's KV cache planner makes of a Qwen4Exp model, without torch.

The formulas are those of the patched v0.33.0; each function names the code that it follows. A test runs
vLLM's own planner beside this module (``tests/startup/test_kv_capacity.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate

#: Tokens of the smallest kernel block of the sparse-attention backends
#: (``get_supported_kernel_block_sizes``).
KERNEL_BLOCK = 16
#: One FP32 scale each for K and V of a token and head (``qsa_customize_spec`` of the patch ``qsa-int8-kv``).
_INT8_SCALE_BYTES = 8
#: int8 pages keep whole cache lines (``block_stride_alignment`` there).
_INT8_STRIDE = 128
_BF16 = 2


class KvDtype(Enum):
    """Format of the attention layers' keys and values."""

    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"

    @property
    def argument(self) -> str:
        """The value of ``--kv-cache-dtype``."""
        return {"bf16": "auto", "fp8": "fp8", "int8": "int8_per_token_head"}[self.value]


@dataclass(frozen=True)
class KvShape:
    """The dimensions of a model that its caches depend on.

    Attributes:
        linear: Per decoder layer, whether it is linear attention (GDN); the others are sparse attention.
        ple_layers: Decoder layers with an n-gram (PLE) layer, counted from 0.
        draft_layers: Sparse-attention layers of the MTP head; they run on the last stage.
        kv_heads: Key/value heads of a sparse-attention layer.
        head_dim: Their size.
        index_dim: Size of the indexer's keys.
        compress_ratio: Tokens per compressed indexer key.
        key_heads, value_heads, key_dim, value_dim: Of a linear-attention layer.
        conv_kernel: Its convolution's width.
        state_bytes: Bytes per element of its recurrent state.
        ple_channels: Channels of the n-gram layer's convolution.
        ple_window: Inputs that this convolution keeps.

    """

    linear: tuple[bool, ...]
    ple_layers: tuple[int, ...]
    draft_layers: int
    kv_heads: int
    head_dim: int
    index_dim: int
    compress_ratio: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int
    state_bytes: int
    ple_channels: int
    ple_window: int


@dataclass(frozen=True)
class KvSettings:
    """What a start decides about the caches.

    Attributes:
        dtype: Format of keys and values.
        tensor_parallel: Cards that share each layer.
        draft_tokens: Tokens that the MTP head proposes per step; 0 if it is off.
        prefix_caching: Whether prefixes are kept.

    """

    dtype: KvDtype = KvDtype.BF16
    tensor_parallel: int = 1
    draft_tokens: int = 0
    prefix_caching: bool = True


@dataclass(frozen=True)
class KvPlan:
    """The caches of all pipeline stages.

    Attributes:
        block_tokens: Tokens of one block of the attention group.
        stage_block_bytes: Per stage, bytes per block on each of its cards.
        state_blocks: Blocks that one request holds whatever its length: recurrent states and rings.

    """

    block_tokens: int
    stage_block_bytes: tuple[int, ...]
    state_blocks: int

    def blocks_per_request(self, tokens: int) -> int:
        """Blocks of one request of ``tokens`` (``get_max_concurrency_for_kv_cache_config``)."""
        return _cdiv(tokens, self.block_tokens) + self.state_blocks

    def blocks(self, stage_bytes: Sequence[int]) -> int:
        """Blocks that every stage can hold, from the bytes that each stage's cards have for them."""
        return min(own // block for own, block in zip(stage_bytes, self.stage_block_bytes, strict=True))

    def bytes_for(self, blocks: int) -> tuple[int, ...]:
        """Bytes per card and stage of that many blocks."""
        return tuple(blocks * block for block in self.stage_block_bytes)

    def requests(self, blocks: int, context: int) -> float:
        """Requests of ``context`` tokens that fit at once; vLLM's "maximum concurrency"."""
        return blocks / self.blocks_per_request(context)

    def tokens(self, blocks: int, context: int) -> int:
        """What vLLM logs as "GPU KV cache size" for this ``--max-model-len``."""
        return int(self.requests(blocks, context) * context)

    def starts(self, blocks: int, context: int) -> bool:
        """Whether vLLM admits the context: one request beside the null block (``get_kv_cache_configs``)."""
        return blocks - 1 >= self.blocks_per_request(context)


@dataclass(frozen=True)
class KvGroups:
    """The groups of layers that share block tables, the same whatever the split over stages.

    Attributes:
        block_tokens: Tokens of one block of the attention group.
        page: Bytes of a layer's keys and values in a block, and of a state, which is padded to it.
        index_page: Bytes of a layer's compressed indexer keys in a block.
        attention: Sparse-attention layers.
        draft: Sparse-attention layers of the MTP head.
        states: The groups of layers with a state.
        alignment: What the bytes of a block are a multiple of.
        state_blocks: Blocks that one request holds whatever its length.

    """

    block_tokens: int
    page: int
    index_page: int
    attention: tuple[int, ...]
    draft: int
    states: tuple[tuple[int, ...], ...]
    alignment: int
    state_blocks: int

    def stage_block_bytes(self, start: int, end: int, *, last: bool) -> int:
        """Bytes of one block on a stage: those of its largest group (``_get_kv_cache_bytes_per_block``)."""
        attention = _between(self.attention, start, end) + (self.draft if last else 0)
        states = max((_between(group, start, end) for group in self.states), default=0)
        return _round_up(max(attention * (self.page + self.index_page), states * self.page), self.alignment)


def group_kv(shape: KvShape, settings: KvSettings) -> KvGroups:
    """Group the layers of the whole model."""
    token = _sparse_token_bytes(shape, settings)
    state = max(_gdn_page(shape, settings), _ple_page(shape, settings))
    # Platform._align_hybrid_block_size: the attention page covers the largest state; states are padded to it.
    block = max(KERNEL_BLOCK * _cdiv(state, KERNEL_BLOCK * token), KERNEL_BLOCK)
    page = block * token
    index_page = _cdiv(block, shape.compress_ratio) * shape.index_dim * _BF16

    gdn = tuple(layer for layer, linear in enumerate(shape.linear) if linear)
    attention = tuple(layer for layer, linear in enumerate(shape.linear) if not linear)
    draft = shape.draft_layers if settings.draft_tokens else 0
    repeats = len(attention) + draft
    kinds = (gdn, shape.ple_layers)
    split = _state_groups([len(kind) for kind in kinds], repeats, repeats * (page + index_page), page)
    groups = tuple(kind[i::count] for kind, count in zip(kinds, split, strict=True) for i in range(count))
    # MambaSpec.max_memory_usage_bytes: with prefix caching ("align") two states, and one per draft token.
    states = (2 if settings.prefix_caching else 1) + settings.draft_tokens
    return KvGroups(
        block_tokens=block,
        page=page,
        index_page=index_page,
        attention=attention,
        draft=draft,
        states=groups,
        alignment=_INT8_STRIDE if settings.dtype is KvDtype.INT8 else 1,
        # A ring of raw indexer keys beside them.
        state_blocks=len(groups) * states + (1 if attention else 0),
    )


def plan_kv(shape: KvShape, settings: KvSettings, partition: Sequence[int]) -> KvPlan:
    """Plan the caches of a model that is split over pipeline stages.

    Args:
        shape: The model.
        settings: The start.
        partition: Decoder layers per stage.

    """
    groups = group_kv(shape, settings)
    ends = list(accumulate(partition))
    stages = zip([0, *ends[:-1]], ends, strict=True)
    return KvPlan(
        groups.block_tokens,
        tuple(
            groups.stage_block_bytes(start, end, last=number == len(partition) - 1)
            for number, (start, end) in enumerate(stages)
        ),
        groups.state_blocks,
    )


def _sparse_token_bytes(shape: KvShape, settings: KvSettings) -> int:
    """K and V of one token in one layer on one card (``AttentionSpec.unpadded_page_size_bytes``)."""
    heads = max(shape.kv_heads // settings.tensor_parallel, 1)
    if settings.dtype is KvDtype.BF16:
        return heads * 2 * shape.head_dim * _BF16
    scales = _INT8_SCALE_BYTES if settings.dtype is KvDtype.INT8 else 0
    return heads * (2 * shape.head_dim + scales)


def _gdn_page(shape: KvShape, settings: KvSettings) -> int:
    """State of one linear-attention layer on one card (``gated_delta_net_state_shape``)."""
    shards = settings.tensor_parallel
    channels = 2 * shape.key_heads * shape.key_dim + shape.value_heads * shape.value_dim
    window = shape.conv_kernel - 1 + settings.draft_tokens
    recurrent = shape.value_heads // shards * shape.value_dim * shape.key_dim * shape.state_bytes
    return channels // shards * window * _BF16 + recurrent


def _ple_page(shape: KvShape, settings: KvSettings) -> int:
    """Inputs kept by the n-gram layer's convolution, the same on every card (``short_conv_state_shape``)."""
    return shape.ple_channels * (shape.ple_window + settings.draft_tokens) * _BF16 if shape.ple_layers else 0


def _state_groups(counts: Sequence[int], repeats: int, anchor: int, page: int) -> list[int]:
    """Groups that each kind of state layer is split into (``_get_packed_kv_cache_groups``).

    Args:
        counts: Layers of each kind.
        repeats: Sparse-attention layers, which stay in one group.
        anchor: Bytes that a block holds for that group.
        page: Bytes of one state.

    """
    per_group = _approximate_gcd([*(count for count in counts if count), repeats, repeats], repeats)
    per_block = max(anchor // page, 1)
    return [max(_cdiv(count, per_group), _cdiv(count, per_block)) for count in counts]


def _approximate_gcd(values: Sequence[int], lower_bound: int) -> int:
    """The size from ``lower_bound`` on that pads all values least; the larger of equals."""
    sizes = range(max(1, lower_bound), max(values) + 1)
    return min(sizes, key=lambda size: (sum(-value % size for value in values), -size))


def _between(layers: Sequence[int], start: int, end: int) -> int:
    return sum(start <= layer < end for layer in layers)


def _cdiv(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def _round_up(value: int, multiple: int) -> int:
    return _cdiv(value, multiple) * multiple
