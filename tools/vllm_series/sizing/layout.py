# SPDX-License-Identifier: Apache-2.0
"""How a model is laid out over the cards, and what then fits.

Weights come from the checkpoint's headers, caches from :mod:`vllm_series.sizing.kvcache`. What
activations, CUDA's own context and CUDA graphs take is measured by vLLM at start; here it is a reserve, see
:class:`Reserve`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from vllm_series.sizing.cards import Card
from vllm_series.sizing.kvcache import KvDtype, KvPlan, KvSettings, group_kv, plan_kv
from vllm_series.sizing.model import Model
from vllm_series.sizing.partition import best_partition, even_partition, find_problem
from vllm_series.sizing.units import GIB
from vllm_series.sizing.weights import Weights


@dataclass(frozen=True)
class Reserve:
    """What a card needs beside weights and caches.

    The three figures are fitted to one published start (six RTX 3090, PP=6, 2048 batched tokens, vision on),
    not derived: 0.8 GiB for the CUDA context, NCCL and graphs, as much for the activations of 2048 tokens,
    and the rest for the vision tower's largest image on the first stage.
    """

    fixed: int = int(0.8 * GIB)
    per_batched_token: int = int(0.8 * GIB) // 2048
    vision: int = int(0.66 * GIB)

    def on_stage(self, batched_tokens: int, *, vision: bool) -> int:
        """Bytes on each card of a stage."""
        return self.fixed + batched_tokens * self.per_batched_token + (self.vision if vision else 0)


@dataclass(frozen=True)
class Request:
    """What is asked of the cards.

    Attributes:
        cards: In the order of the stages, node by node.
        nodes: Boxes that share them equally.
        context: Tokens that a request may have.
        users: Requests of that many tokens at the same time.
        kv: Format of keys and values.
        draft_tokens: Tokens that the MTP head proposes per step, 0 without it.
        vision: Whether the vision tower is loaded.
        batched_tokens: ``--max-num-batched-tokens``.
        utilization: ``--gpu-memory-utilization``.
        tensor_parallel: Cards per stage, None to choose.
        partition: Layers per stage, None to choose.
        prefix_caching: Whether prefixes are kept.
        reserve: What a card needs beside weights and caches.

    """

    cards: tuple[Card, ...]
    nodes: int = 1
    context: int = 262_144
    users: int = 1
    kv: KvDtype = KvDtype.INT8
    draft_tokens: int = 0
    vision: bool = True
    batched_tokens: int = 2048
    utilization: float = 0.92
    tensor_parallel: int | None = None
    partition: tuple[int, ...] | None = None
    prefix_caching: bool = True
    reserve: Reserve = Reserve()


@dataclass(frozen=True)
class Stage:
    """A pipeline stage; bytes are those of each of its cards.

    Attributes:
        start, end: Its decoder layers, the end not included.
        cards: Numbers of its cards.
        budget: What vLLM may use of its smallest card.
        weights: Weights by what they are.
        reserve: Activations, context and graphs.
        block: Bytes of one block of the caches.

    """

    start: int
    end: int
    cards: tuple[int, ...]
    budget: int
    weights: dict[str, int]
    reserve: int
    block: int

    @property
    def weight_bytes(self) -> int:
        """All weights."""
        return sum(self.weights.values())

    @property
    def free(self) -> int:
        """What is left for caches; negative if the rest does not fit."""
        return self.budget - self.weight_bytes - self.reserve


@dataclass(frozen=True)
class Layout:
    """A model on its cards.

    Attributes:
        request: What was asked.
        tensor_parallel: Cards per stage.
        expert_parallel: Whether whole experts are dealt out to a stage's cards.
        stages: The stages.
        kv: The caches' plan.

    """

    request: Request
    tensor_parallel: int
    expert_parallel: bool
    stages: tuple[Stage, ...]
    kv: KvPlan

    @property
    def partition(self) -> tuple[int, ...]:
        """Layers per stage."""
        return tuple(stage.end - stage.start for stage in self.stages)

    @cached_property
    def blocks(self) -> int:
        """Blocks of the caches, the same on every stage; 0 if weights alone are too large."""
        return max(self.kv.blocks([stage.free for stage in self.stages]), 0)

    @property
    def tokens(self) -> int:
        """What vLLM will log as the size of the KV cache."""
        return self.kv.tokens(self.blocks, self.request.context)

    @property
    def contexts(self) -> int:
        """Full contexts that fit at once, beside the block that vLLM holds back."""
        return max(self.blocks - 1, 0) // self.kv.blocks_per_request(self.request.context)

    @property
    def tightest(self) -> Stage:
        """The stage that limits the caches."""
        return min(self.stages, key=lambda stage: stage.free // stage.block)

    @property
    def fits(self) -> bool:
        """Whether the requested users fit with their full contexts."""
        return self.contexts >= self.request.users

    def needed_blocks(self, users: int, context: int) -> int:
        """Blocks that so many users need, with the block that vLLM holds back."""
        return users * self.kv.blocks_per_request(context) + 1

    def missing(self, users: int, context: int) -> tuple[int, Stage]:
        """Bytes that the worst stage lacks on each card for so many users, and that stage."""
        blocks = self.needed_blocks(users, context)
        worst = max(self.stages, key=lambda stage: blocks * stage.block - stage.free)
        return blocks * worst.block - worst.free, worst


def layouts(model: Model, weights: Weights, request: Request) -> Iterator[Layout]:
    """Every layout that vLLM can run, each with its best partition, pipeline-parallel ones first."""
    for tensor_parallel in tensor_sizes(model, request):
        stages = len(request.cards) // tensor_parallel
        partition = request.partition
        if partition is None:
            partition = _choose(model, weights, request, tensor_parallel, stages)
        elif find_problem(model.kv.linear, model.kv.ple_layers, stages, partition):
            partition = None
        if partition is not None:
            yield lay_out(model, weights, request, tensor_parallel, partition)


def choose_layout(model: Model, weights: Weights, request: Request) -> Layout | None:
    """The layout to use: the first that fits, else the one that holds most.

    Pipeline stages come first: one hidden state per token crosses from card to card, where tensor parallelism
    adds up results of every layer over the same slow links.
    """
    found = list(layouts(model, weights, request))
    return next((layout for layout in found if layout.fits), max(found, key=lambda x: x.blocks, default=None))


def even_layout(model: Model, weights: Weights, layout: Layout) -> Layout | None:
    """The same cards with vLLM's own split, if vLLM can run it."""
    partition = even_partition(model.layers, len(layout.stages))
    if find_problem(model.kv.linear, model.kv.ple_layers, len(partition), partition):
        return None
    return lay_out(model, weights, layout.request, layout.tensor_parallel, partition)


def tensor_sizes(model: Model, request: Request) -> Iterator[int]:
    """Cards per stage that divide the cards of a node, and the heads of every layer."""
    per_node = len(request.cards) // request.nodes
    for size in (1, 2, 4, 8) if request.tensor_parallel is None else (request.tensor_parallel,):
        heads = (model.heads, model.kv.key_heads, model.kv.value_heads)
        if per_node % size == 0 and all(count % size == 0 for count in heads):
            yield size


def lay_out(
    model: Model, weights: Weights, request: Request, tensor_parallel: int, partition: Sequence[int]
) -> Layout:
    """Put the model on the cards with this partition."""
    kv = plan_kv(model.kv, _settings(request, tensor_parallel), partition)
    stages = []
    start = 0
    for number, (size, block) in enumerate(zip(partition, kv.stage_block_bytes, strict=True)):
        stages.append(
            _stage(weights, request, tensor_parallel, number, len(partition), start, start + size, block)
        )
        start += size
    return Layout(request, tensor_parallel, _deals_experts(model, tensor_parallel), tuple(stages), kv)


def _choose(
    model: Model, weights: Weights, request: Request, tensor_parallel: int, stages: int
) -> tuple[int, ...] | None:
    """The partition that holds most blocks."""
    groups = group_kv(model.kv, _settings(request, tensor_parallel))

    def capacity(number: int, start: int, end: int) -> int:
        """Blocks of a stage; below zero bytes that it lacks, so that the least bad split wins."""
        block = groups.stage_block_bytes(start, end, last=number == stages - 1)
        stage = _stage(weights, request, tensor_parallel, number, stages, start, end, block)
        return stage.free // block if stage.free >= 0 else stage.free

    return best_partition(model.kv.linear, model.kv.ple_layers, stages, capacity)


def _stage(
    weights: Weights,
    request: Request,
    tensor_parallel: int,
    number: int,
    stages: int,
    start: int,
    end: int,
    block: int,
) -> Stage:
    cards = tuple(range(number * tensor_parallel, (number + 1) * tensor_parallel))
    vision = request.vision and number == 0 and weights.vision.on_card(1) > 0
    return Stage(
        start=start,
        end=end,
        cards=cards,
        budget=int(min(request.cards[card].usable for card in cards) * request.utilization),
        weights=weights.stage(
            start,
            end,
            tensor_parallel,
            first=number == 0,
            last=number == stages - 1,
            draft=request.draft_tokens > 0,
            vision=vision,
        ),
        reserve=request.reserve.on_stage(request.batched_tokens, vision=vision),
        block=block,
    )


def _settings(request: Request, tensor_parallel: int) -> KvSettings:
    return KvSettings(request.kv, tensor_parallel, request.draft_tokens, request.prefix_caching)


def _deals_experts(model: Model, tensor_parallel: int) -> bool:
    """Whether an expert's share of a card would cut through a quantization group."""
    if tensor_parallel == 1:
        return False
    width = model.expert_width / tensor_parallel
    group = model.quantization.group_size if model.quantization else None
    return bool(group and group > 0 and width % group)
