# SPDX-License-Identifier: Apache-2.0
"""Where each tensor of a checkpoint lands: on which layer's card, whole or split, or not on a card at all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from vllm_series.sizing.checkpoint import Tensor
from vllm_series.sizing.model import Model

_PREFIX = re.compile(r"^(?:model\.language_model\.|language_model\.model\.|model\.)")
_LAYER = re.compile(r"^layers\.(\d+)\.(.+)$")
_TABLE = re.compile(r"\.ngram_embedding\.(?:shard_(\d+)\.)?weight$")
#: Parts of the linear layers that tensor parallelism splits (``ColumnParallelLinear``, ``RowParallelLinear``,
#: ``VocabParallelEmbedding``, the experts). The others are whole on each card: norms, the router, the
#: hyper-connections, the indexer, the n-gram layer's projections.
_SPLIT = frozenset(
    {
        "q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "in_proj_qkv", "in_proj_z", "in_proj_qkvz",
        "out_proj", "conv1d", "dt_bias", "A_log", "in_proj_a", "in_proj_b", "in_proj_ba", "experts",
        "gate_proj", "up_proj", "down_proj", "gate_up_proj", "fc_embedding", "fc_hidden", "embed_tokens",
        "lm_head",
    }
)  # fmt: skip


#: Ends of the names under which GPTQ and compressed-tensors store 4-bit weights.
_QUANTIZED = (".qweight", ".weight_packed")


@dataclass(frozen=True)
class Share:
    """Bytes that tensor parallelism splits, and bytes that each card holds whole."""

    split: int = 0
    whole: int = 0

    def __add__(self, other: Share) -> Share:
        return Share(self.split + other.split, self.whole + other.whole)

    def on_card(self, tensor_parallel: int) -> int:
        """Bytes on each of the cards that share a stage."""
        return -(-self.split // tensor_parallel) + self.whole


@dataclass(frozen=True)
class Weights:
    """The weights of a model by where they are needed.

    Attributes:
        layers: Per decoder layer.
        embedding: Token embedding, on the first stage.
        head: LM head, final norm and mixer, on the last stage.
        vision: Vision tower, on the first stage.
        draft: The MTP head, on the last stage.
        table: The n-gram table, in host memory or on disk.
        table_dtype: The table's type as the files name it, None without a table.
        table_parts: Numbers of the table's shards, in the order of the files.
        plain_indexer: Whether the sparse-attention indexer is stored unquantized.
        quantized_draft: Whether the MTP head has quantized layers.
        unknown: Names that belong to none of these.

    """

    layers: tuple[Share, ...]
    embedding: Share
    head: Share
    vision: Share
    draft: Share
    table: int
    table_dtype: str | None
    table_parts: tuple[int, ...]
    plain_indexer: bool
    quantized_draft: bool
    unknown: tuple[str, ...]

    @cached_property
    def _sums(self) -> tuple[Share, ...]:
        """What the layers before each one have in all, so that any run of layers is a difference."""
        return tuple(accumulate(self.layers, initial=Share()))

    def stage(
        self,
        start: int,
        end: int,
        tensor_parallel: int,
        *,
        first: bool,
        last: bool,
        draft: bool,
        vision: bool,
    ) -> dict[str, int]:
        """Bytes on each card of a pipeline stage, by what they are.

        Args:
            start: Its first decoder layer.
            end: The layer after its last one.
            tensor_parallel: Cards that share it.
            first: Whether it is the first stage.
            last: Whether it is the last stage.
            draft: Whether the MTP head is used.
            vision: Whether the vision tower is loaded.

        """
        before, after = self._sums[start], self._sums[end]
        parts = {"layers": Share(after.split - before.split, after.whole - before.whole)}
        if first:
            parts["embedding"] = self.embedding
            if vision:
                parts["vision"] = self.vision
        if last:
            parts["head"] = self.head
            if draft:
                # The head shares nothing with another stage, so it brings an embedding of its own.
                parts["MTP head"] = self.draft + (Share() if first else self.embedding)
        return {name: share.on_card(tensor_parallel) for name, share in parts.items()}


def sort_weights(tensors: Sequence[Tensor], layers: int) -> Weights:
    """Sort a checkpoint's tensors by where vLLM puts them."""
    per_layer = [Share() for _ in range(layers)]
    other = {"embedding": Share(), "head": Share(), "vision": Share(), "draft": Share()}
    table = 0
    table_dtype: str | None = None
    table_parts: list[int] = []
    unknown: list[str] = []
    for tensor in tensors:
        if tensor.name.endswith(".g_idx"):
            continue  # vLLM drops it when groups are in order (desc_act false), and refuses the rest.
        name = _PREFIX.sub("", tensor.name)
        match = _LAYER.match(name)
        found = _TABLE.search(name) if ".ngram_embedding." in name else None
        if found:
            table += tensor.size
            table_dtype = tensor.dtype
            table_parts += [int(found[1])] if found[1] else []
        elif match and int(match[1]) < layers:
            per_layer[int(match[1])] += _share(match[2], tensor.size)
        elif (part := _part(name)) is not None:
            other[part] += _share(name, tensor.size)
        else:
            unknown.append(tensor.name)
    return Weights(
        layers=tuple(per_layer),
        **other,
        table=table,
        table_dtype=table_dtype,
        table_parts=tuple(table_parts),
        plain_indexer=any(t.name.endswith(".indexer.index_qk_proj.weight") for t in tensors),
        quantized_draft=any(t.name.startswith("mtp.") and t.name.endswith(_QUANTIZED) for t in tensors),
        unknown=tuple(unknown),
    )


def find_lacking(weights: Weights) -> str | None:
    """What no file holds, or None: without an index nothing else tells that a file is missing."""
    for number, layer in enumerate(weights.layers):
        if layer == Share():
            return f"the weights of layer {number}"
    if weights.embedding == Share():
        return "the token embedding"
    return None


def find_table_mismatch(model: Model, weights: Weights) -> str | None:
    """Whether the n-gram table is in the config alone, or in the files alone."""
    if model.kv.ple_layers and not weights.table:
        return "the n-gram table that its config names (ple_layer_ids)"
    if weights.table and not model.kv.ple_layers:
        return "ple_layer_ids in its config, and has an n-gram table"
    return None


def _part(name: str) -> str | None:
    parts: Sequence[tuple[str, str]] = (
        ("embed_tokens.", "embedding"),
        ("lm_head.", "head"),
        ("norm.", "head"),
        ("hyper_connection_mixer.", "head"),
        ("visual.", "vision"),
        ("mtp.", "draft"),
    )
    return next((part for prefix, part in parts if name.startswith(prefix)), None)


def _share(name: str, size: int) -> Share:
    split = not _SPLIT.isdisjoint(name.split("."))
    # The vision tower's layers are parallel as well; their names are other ones.
    split = split or (name.startswith("visual.") and not name.endswith("norm.weight"))
    return Share(split=size) if split else Share(whole=size)
