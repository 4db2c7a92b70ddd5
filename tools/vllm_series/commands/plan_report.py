# SPDX-License-Identifier: Apache-2.0
"""What ``vllm-series plan`` tells people and programs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from vllm_series.output import Output, plural
from vllm_series.sizing.chart import PARTS, Bar, bars, cells, longest
from vllm_series.sizing.command import Start
from vllm_series.sizing.host import HostNeed, TablePlace
from vllm_series.sizing.layout import Layout
from vllm_series.sizing.model import Model
from vllm_series.sizing.network import link, start_commands
from vllm_series.sizing.patches import Need
from vllm_series.sizing.units import GIB, gib, thousands

_BAR_WIDTH = 60


@dataclass(frozen=True)
class Plan:
    """A plan that fits.

    Attributes:
        model: The model.
        layout: The model on its cards.
        even: The same with vLLM's own split, None if vLLM refuses that.
        host: What the box needs.
        memory: Host memory that was named or found, None if unknown.
        place: Where the n-gram table is.
        command: The start.
        patches: The patches that matter.
        larger: What one more full context would need.

    """

    model: Model
    layout: Layout
    even: Layout | None
    host: HostNeed
    memory: int | None
    place: TablePlace
    command: Start
    patches: tuple[Need, ...]
    larger: str


def print_plan(out: Output, plan: Plan) -> None:
    """The whole plan for people."""
    print_cards(out, plan.layout)
    _print_summary(out, plan)
    out.say()
    out.say(plan.command.text())
    out.say()
    out.table(
        ("setting", "value", "why"),
        [(s.name, s.value, s.reason) for s in (*plan.command.environment, *plan.command.flags)],
    )
    out.say()
    out.table(
        ("patch", "needed", "without it"),
        [(need.patch, "yes" if need.required else "better", need.without) for need in plan.patches],
    )
    if plan.layout.request.nodes > 1:
        _print_network(out, plan)


def document(plan: Plan) -> dict[str, object]:
    """The plan for programs."""
    return {
        "fits": True,
        "layout": _layout_document(plan.layout),
        "even_partition": None if plan.even is None else _layout_document(plan.even),
        "host": {
            "memory_with_table_pinned": plan.host.with_table,
            "memory_with_table_on_disk": plan.host.without_table,
            "memory": plan.memory,
            "table_bytes": plan.host.table,
            "table": plan.place.name.lower(),
            "disk": plan.host.disk,
        },
        "next_step": plan.larger,
        "command": plan.command.words(),
        "environment": {setting.name: setting.value for setting in plan.command.environment},
        "reasons": {s.name: s.reason for s in (*plan.command.environment, *plan.command.flags)},
        "patches": [asdict(need) for need in plan.patches],
        "network": _network_document(plan) if plan.layout.request.nodes > 1 else None,
    }


def print_cards(out: Output, layout: Layout) -> None:
    """What is on each card, as a table and as bars."""
    rows = [
        (
            str(number),
            ",".join(map(str, stage.cards)),
            f"{stage.start}-{stage.end - 1}",
            *(
                f"{size / GIB:.2f}"
                for size in (
                    stage.weight_bytes,
                    stage.reserve,
                    layout.blocks * stage.block,
                    stage.free - layout.blocks * stage.block,
                    stage.budget,
                )
            ),
        )
        for number, stage in enumerate(layout.stages)
    ]
    out.say("GiB per card:")
    out.table(("stage", "cards", "layers", "weights", "reserve", "cache", "left", "vLLM may use"), rows)
    if not out.json:
        _print_bars(out, bars(layout))


def _print_bars(out: Output, found: Sequence[Bar]) -> None:
    """Stacked bars: coloured on a terminal, letters in a pipe."""
    length = longest(found)
    letters = {name: letter for name, letter, _ in PARTS}
    present = [part for part in PARTS if any(bar.parts.get(part[0], 0) > 0 for bar in found)]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.text import Text

        console = Console()
        colours = {name: colour for name, _, colour in PARTS}
        for bar in found:
            line = Text(f"{bar.name:18} ")
            for name, count in cells(bar, length, _BAR_WIDTH):
                # The letters tell the parts apart where a terminal has few colours.
                line.append(letters[name] * count, style=f"black on {colours[name]}")
            console.print(line)
        legend = Text(" " * 19)
        for name, letter, colour in present:
            legend.append(f"{letter} ", style=f"black on {colour}")
            legend.append(f" {name} ")
        console.print(legend)
        return
    out.say()
    for bar in found:
        drawn = "".join(letters[name] * count for name, count in cells(bar, length, _BAR_WIDTH))
        out.say(f"{bar.name:18} |{drawn.ljust(_BAR_WIDTH)}|")
    out.say(" " * 20 + "  ".join(f"{letter} {name}" for name, letter, _ in present if letter.strip()))


def _print_summary(out: Output, plan: Plan) -> None:
    layout, request, host = plan.layout, plan.layout.request, plan.host
    out.say()
    out.say(
        f"It fits: {thousands(layout.tokens)} KV tokens ({request.kv.value}), "
        f"{plural(layout.contexts, 'full context')} of {thousands(request.context)} tokens."
    )
    if plan.even is not None and plan.even.partition != layout.partition:
        own = ",".join(map(str, plan.even.partition))
        held = f"hold {thousands(plan.even.tokens)} tokens" if plan.even.blocks else "not fit"
        out.say(f"vLLM's own split {own} would {held}.")
    out.say(
        f"Host memory, about: {gib(host.with_table)} with the n-gram table pinned, "
        f"{gib(host.without_table)} with it on disk, plus what is to cache it. Planned: {plan.place.value}."
    )
    out.say(f"Disk: {gib(host.disk)} for the checkpoint, of which the table is {gib(host.table)}.")
    out.say(f"The next larger step: {plan.larger}.")
    out.say(
        "Reserves and host memory are estimates; vLLM measures them at start (Available KV cache memory)."
    )


def _print_network(out: Output, plan: Plan) -> None:
    crossing = link(plan.model, plan.layout)
    times = ", ".join(f"{crossing.chunk_seconds(g) * 1000:.0f} ms at {g} Gbit/s" for g in (1, 10, 25))
    out.say()
    out.say(
        f"From box to box: {thousands(crossing.token_bytes)} bytes per token, {gib(crossing.chunk_bytes)} "
        f"per prefill chunk of {plan.layout.request.batched_tokens} tokens ({times}, without overhead)."
    )
    for mode, commands in start_commands(plan.command, plan.layout.request.nodes).items():
        out.say(f"\nWith {mode}:")
        for where, text in commands:
            out.say(f"# {where}\n{text}")


def _layout_document(layout: Layout) -> dict[str, object]:
    return {
        "pipeline_parallel": len(layout.stages),
        "tensor_parallel": layout.tensor_parallel,
        "expert_parallel": layout.expert_parallel,
        "partition": list(layout.partition),
        "kv_cache_dtype": layout.request.kv.argument,
        "block_tokens": layout.kv.block_tokens,
        "blocks": layout.blocks,
        "tokens": layout.tokens,
        "full_contexts": layout.contexts,
        "stages": [
            {
                "layers": [stage.start, stage.end],
                "cards": list(stage.cards),
                "budget": stage.budget,
                "weights": stage.weights,
                "reserve": stage.reserve,
                "block_bytes": stage.block,
                "kv_cache": layout.blocks * stage.block,
            }
            for stage in layout.stages
        ],
    }


def _network_document(plan: Plan) -> dict[str, object]:
    crossing = link(plan.model, plan.layout)
    return {
        "token_bytes": crossing.token_bytes,
        "chunk_bytes": crossing.chunk_bytes,
        "start": {
            mode: [{"where": where, "command": text} for where, text in commands]
            for mode, commands in start_commands(plan.command, plan.layout.request.nodes).items()
        },
    }
