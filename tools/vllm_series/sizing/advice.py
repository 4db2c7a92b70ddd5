# SPDX-License-Identifier: Apache-2.0
"""Why a layout does not do what was asked, and what the next larger step would need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vllm_series.errors import AnswerNoError, UsageError
from vllm_series.sizing.kvcache import KvDtype
from vllm_series.sizing.layout import Layout, Request, choose_layout, layouts, tensor_sizes
from vllm_series.sizing.model import Model
from vllm_series.sizing.partition import find_problem, most_stages
from vllm_series.sizing.units import gib, thousands
from vllm_series.sizing.weights import Weights


def check_request(model: Model, request: Request) -> None:
    """Refuse what no amount of memory would allow.

    Raises:
        UsageError: A number that cannot be, which the message names.

    """
    cards = len(request.cards)
    if cards % request.nodes:
        raise UsageError(
            f"{cards} cards cannot be shared equally by {request.nodes} boxes",
            hint="--gpus names the cards of one box, and --nodes how many such boxes there are",
        )
    if request.context > model.max_context:
        raise UsageError(
            f"--context {request.context} is more than the model's {model.max_context} tokens",
            hint=f"plan with --context {model.max_context}, or give the checkpoint a config with YaRN",
        )
    if request.users > request.batched_tokens:
        raise UsageError(
            f"--users {request.users} is more than --batched-tokens {request.batched_tokens}, and a step of "
            "decoding needs a token per request",
            hint=f"plan with --batched-tokens {request.users}, or fewer users",
        )
    if request.draft_tokens and not model.kv.draft_layers:
        raise UsageError(
            f"--mtp {request.draft_tokens}: the checkpoint has no MTP head", hint="plan without --mtp"
        )
    sizes = list(tensor_sizes(model, request))
    if not sizes:
        size = request.tensor_parallel
        raise UsageError(
            f"--tp {size} does not divide the {cards // request.nodes} cards of a box and the heads of every "
            f"layer ({model.heads}, {model.kv.key_heads}, {model.kv.value_heads})",
            hint="leave --tp out, or take 1, 2, 4 or 8",
        )
    most = most_stages(model.kv.linear, model.kv.ple_layers)
    if cards // max(sizes) > most:
        raise UsageError(
            f"{cards} cards make {cards // max(sizes)} stages, and the model can be split into {most}",
            hint=f"use {most * max(sizes)} cards, or --tp",
        )
    if request.partition is not None:
        stages = cards // (request.tensor_parallel or 1)
        problem = find_problem(model.kv.linear, model.kv.ple_layers, stages, request.partition)
        if problem:
            text = ",".join(map(str, request.partition))
            raise UsageError(
                f"--partition {text}: {problem}", hint="leave --partition out to get one that works"
            )


def refusal(model: Model, weights: Weights, layout: Layout) -> AnswerNoError:
    """The error for a layout that does not fit: the number that fails, and what would help."""
    request = layout.request
    lacks, stage = layout.missing(request.users, request.context)
    number = layout.stages.index(stage)
    where = f"stage {number} (layers {stage.start} to {stage.end - 1})"
    if stage.free < 0:
        lacks = -stage.free
        text = (
            f"it does not fit: {where} needs {gib(stage.weight_bytes)} for weights and {gib(stage.reserve)} "
            f"beside them per card, and vLLM may use {gib(stage.budget)}: {gib(lacks)} too little"
        )
    else:
        what = f"{request.users} contexts" if request.users > 1 else "a context"
        blocks = layout.needed_blocks(request.users, request.context)
        text = (
            f"it does not fit: for {what} of {thousands(request.context)} tokens vLLM wants {blocks} cache "
            f"blocks, {gib(blocks * stage.block)} per card on {where}, and {gib(stage.free)} are left: "
            f"{gib(lacks)} too little"
        )
    helps = list(remedies(model, weights, request))
    hint = "; ".join(helps) if helps else "take a checkpoint with fewer bits per weight, or more cards"
    return AnswerNoError(text, hint=hint, stage=number, missing_bytes=lacks, remedies=helps)


def remedies(model: Model, weights: Weights, request: Request) -> Iterator[str]:
    """Single changes that would make a request fit."""
    changes: list[tuple[str, Request]] = []
    if request.kv is KvDtype.BF16:
        changes.append(("--kv int8", replace(request, kv=KvDtype.INT8)))
    if request.vision and model.multimodal:
        changes.append(("--no-vision", replace(request, vision=False)))
    if request.draft_tokens:
        changes.append(("no --mtp", replace(request, draft_tokens=0)))
    if request.batched_tokens > 1024:
        changes.append(("--batched-tokens 1024", replace(request, batched_tokens=1024)))
    if request.utilization < 0.95:
        changes.append(("--utilization 0.95", replace(request, utilization=0.95)))
    for text, changed in changes:
        layout = choose_layout(model, weights, changed)
        if layout is not None and layout.fits:
            yield f"{text} makes it fit"
    if request.partition is not None:
        layout = choose_layout(model, weights, replace(request, partition=None))
        if layout is not None and layout.fits:
            yield f"the partition {','.join(map(str, layout.partition))} makes it fit"
    longest = _longest_context(model, weights, request)
    if longest:
        yield f"--context {longest} fits"
    more = _cards_needed(model, weights, request)
    if more is not None:
        yield f"{more} such cards fit it"


def next_step(model: Model, weights: Weights, layout: Layout) -> str:
    """What one more full context would need."""
    request = layout.request
    users = layout.contexts + 1
    lacks, stage = layout.missing(users, request.context)
    number = layout.stages.index(stage)
    wanted = f"{users} contexts of {thousands(request.context)} tokens"
    text = f"{wanted}: {gib(lacks)} more per card on stage {number}"
    wider = replace(request, users=users, partition=None, tensor_parallel=None)
    ways = [
        text.removesuffix(" makes it fit").removesuffix(" fit it")
        for text in remedies(model, weights, wider)
        if not text.startswith("--context")
    ]
    return text + (f"; or one of: {', '.join(ways)}" if ways else "")


def _longest_context(model: Model, weights: Weights, request: Request) -> int:
    """The longest context, in steps of 1024 tokens, that fits; 0 if none of 8192 or more does."""
    longest = 0
    for layout in layouts(model, weights, request):
        own = max(layout.blocks - 1, 0) // request.users - layout.kv.state_blocks
        longest = max(longest, own * layout.kv.block_tokens // 1024 * 1024)
    return longest if 8192 <= longest < request.context else 0


def _cards_needed(model: Model, weights: Weights, request: Request) -> int | None:
    """The smallest number of cards like the smallest one on a single box that fits, up to twice as many."""
    smallest = min(request.cards, key=lambda card: card.usable)
    have = len(request.cards)
    most = most_stages(model.kv.linear, model.kv.ple_layers)
    for count in range(have + 1, min(2 * have + 4, most) + 1):
        layout = choose_layout(
            model,
            weights,
            replace(request, cards=(smallest,) * count, nodes=1, partition=None, tensor_parallel=None),
        )
        if layout is not None and layout.fits:
            return count
    return None
