# SPDX-License-Identifier: Apache-2.0
"""``vllm-series plan``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vllm_series.commands.plan_report import Plan, document, print_cards, print_plan
from vllm_series.errors import EXIT_OK, AnswerNoError, UsageError
from vllm_series.output import Output, plural
from vllm_series.preflight.arguments import parse_arguments
from vllm_series.preflight.facts import Facts, Finding
from vllm_series.preflight.files import check_head, check_quantization, check_table_format, check_table_shards
from vllm_series.sizing.advice import check_request, next_step, refusal
from vllm_series.sizing.cards import detect_cards, parse_cards
from vllm_series.sizing.chart import bars, write_plot
from vllm_series.sizing.checkpoint import Checkpoint, read_checkpoint
from vllm_series.sizing.command import start
from vllm_series.sizing.host import TablePlace, detect_memory, host_need
from vllm_series.sizing.kvcache import KvDtype
from vllm_series.sizing.layout import Layout, Request, Reserve, choose_layout, even_layout
from vllm_series.sizing.model import Model, read_model
from vllm_series.sizing.partition import parse_partition
from vllm_series.sizing.patches import Configuration, needed
from vllm_series.sizing.units import GIB, gib, thousands
from vllm_series.sizing.weights import Weights, find_lacking, find_table_mismatch, sort_weights

#: More than any box has; NaN and infinity are no numbers to plan with.
_MOST_GIB = 1e6


@dataclass(frozen=True)
class PlanOptions:
    """The arguments of ``plan``, as documented on the command line."""

    model: Path
    gpus: str | None = None
    nodes: int = 1
    ram: float | None = None
    context: int = 262_144
    users: int = 1
    kv: str = "int8"
    mtp: int = 0
    vision: bool = True
    tp: int | None = None
    partition: str | None = None
    batched_tokens: int = 2048
    utilization: float = 0.92
    prefix_caching: bool = True
    reserve: float | None = None
    plot: Path | None = None


def plan(out: Output, options: PlanOptions) -> int:
    """Say whether a model fits the cards, how, and with which command."""
    _require_numbers(options)
    model = read_model(options.model)
    checkpoint = read_checkpoint(options.model)
    if checkpoint.missing:
        first = checkpoint.missing[0]
        raise UsageError(
            f"{options.model} lacks {plural(len(checkpoint.missing), 'file')} of its index, first {first}",
            hint="finish the download",
        )
    if checkpoint.cut:
        out.warn(f"{checkpoint.cut[0]} is shorter than its header says: the download is not finished")
    weights = sort_weights(checkpoint.tensors, model.layers)
    if weights.unknown:
        out.warn(f"{plural(len(weights.unknown), 'tensor')} not counted, first {weights.unknown[0]}")
    lacking = find_lacking(weights) or find_table_mismatch(model, weights)
    if lacking:
        raise UsageError(
            f"{options.model} lacks {lacking}",
            hint="finish the download; config.json and the files must be of one revision",
        )
    request = _request(options)
    check_request(model, request)
    layout = choose_layout(model, weights, request)
    if layout is None:
        raise AnswerNoError("no split of the layers over these cards can run", hint="take another --tp")
    if options.plot is not None:
        write_plot(options.plot, bars(layout), _title(options, layout))
        out.note(f"wrote {options.plot}")
    if not layout.fits:
        print_cards(out, layout)
        raise refusal(model, weights, layout)
    made = _plan(out, options, model, checkpoint, weights, layout)
    for finding in _examine(made, checkpoint, weights):
        out.warn(f"{finding.what}: {finding.why}; {finding.do}")
    print_plan(out, made)
    return out.finish(EXIT_OK, **document(made))


def _require_numbers(options: PlanOptions) -> None:
    for name, value in (
        ("--ram", options.ram),
        ("--reserve", options.reserve),
        ("--utilization", options.utilization),
    ):
        if value is not None and not abs(value) < _MOST_GIB:
            raise UsageError(f"{name} {value:g} is no amount that a box can have")


def _request(options: PlanOptions) -> Request:
    own = parse_cards(options.gpus) if options.gpus is not None else detect_cards()
    partition = None
    if options.partition is not None:
        partition = parse_partition(options.partition)
        if partition is None:
            raise UsageError(f"--partition {options.partition} is no list of numbers such as 8,8,8,8,8,8")
    reserve = Reserve() if options.reserve is None else Reserve(int(options.reserve * GIB), 0, 0)
    return Request(
        cards=own * options.nodes,
        nodes=options.nodes,
        context=options.context,
        users=options.users,
        kv=KvDtype(options.kv),
        draft_tokens=options.mtp,
        vision=options.vision,
        batched_tokens=options.batched_tokens,
        utilization=options.utilization,
        tensor_parallel=options.tp,
        partition=partition,
        prefix_caching=options.prefix_caching,
        reserve=reserve,
    )


def _plan(
    out: Output, options: PlanOptions, model: Model, checkpoint: Checkpoint, weights: Weights, layout: Layout
) -> Plan:
    request = layout.request
    memory = int(options.ram * GIB) if options.ram is not None else detect_memory()
    workers = len(request.cards) // request.nodes
    host = host_need(workers, weights.table, checkpoint.size)
    place = host.place(memory)
    if host.short(memory):
        out.warn(
            f"{plural(workers, 'worker')} on one box took about {gib(host.without_table)} of host memory "
            f"elsewhere, without the n-gram table, and there are {gib(memory or 0)}"
        )
    return Plan(
        model=model,
        layout=layout,
        even=even_layout(model, weights, layout),
        host=host,
        memory=memory,
        place=place,
        command=start(model, weights, layout, options.model, place),
        patches=tuple(needed(_configuration(model, weights, layout, place))),
        larger=next_step(model, weights, layout),
    )


def _examine(made: Plan, checkpoint: Checkpoint, weights: Weights) -> list[Finding]:
    """What of the checkpoint would stop the planned start, as ``doctor --serve`` says it."""
    facts = Facts(
        parse_arguments(made.command.words()), {}, model=made.model, checkpoint=checkpoint, weights=weights
    )
    checks = (check_table_shards, check_table_format, check_quantization, check_head)
    return [finding for check in checks for finding in check(facts)]


def _configuration(model: Model, weights: Weights, layout: Layout, place: TablePlace) -> Configuration:
    method = model.quantization.method if model.quantization else None
    return Configuration(
        stages=len(layout.stages),
        draft=layout.request.draft_tokens > 0,
        kv_cache_dtype=layout.request.kv.argument,
        quantization=method,
        plain_indexer=method is not None and weights.plain_indexer,
        quantized_draft=weights.quantized_draft,
        table_on_disk=place is TablePlace.DISK and weights.table > 0,
    )


def _title(options: PlanOptions, layout: Layout) -> str:
    partition = ",".join(map(str, layout.partition))
    return (
        f"{options.model.name}: {partition}, {thousands(layout.tokens)} KV tokens ({layout.request.kv.value})"
    )
