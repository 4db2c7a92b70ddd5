# SPDX-License-Identifier: Apache-2.0
"""Verbs of the person who owns the box."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Optional

import typer

from vllm_series.cli.dispatch import dispatch
from vllm_series.cli.options import USE, Json

app = typer.Typer()


class Kv(str, Enum):
    """Formats of the KV cache."""

    bf16 = "bf16"
    int8 = "int8"
    fp8 = "fp8"


@app.command(rich_help_panel=USE)
def plan(
    model: Annotated[
        Path,
        typer.Option("--model", metavar="DIR", help="The checkpoint: config.json and safetensors files."),
    ],
    gpus: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--gpus",
            metavar="NxGIB",
            help="Cards of one box, such as 6x24 or 4x24,2x32; default: ask the driver.",
            show_default=False,
        ),
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=16, help="Boxes with these cards each.")] = 1,
    ram: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option("--ram", metavar="GIB", min=1, help="Host memory of a box; default: this machine's."),
    ] = None,
    context: Annotated[int, typer.Option("--context", min=1024, help="Tokens per request.")] = 262_144,
    users: Annotated[int, typer.Option("--users", min=1, help="Full contexts at the same time.")] = 1,
    kv: Annotated[Kv, typer.Option("--kv", help="Format of keys and values.")] = Kv.int8,
    mtp: Annotated[int, typer.Option("--mtp", min=0, max=8, help="Tokens that the MTP head proposes.")] = 0,
    vision: Annotated[bool, typer.Option("--vision/--no-vision", help="Load the vision tower.")] = True,
    tp: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--tp", min=1, help="Cards that share a stage; default: chosen.", show_default=False),
    ] = None,
    partition: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--partition", metavar="N,N,...", help="Layers per stage; default: chosen.", show_default=False
        ),
    ] = None,
    batched_tokens: Annotated[
        int, typer.Option("--batched-tokens", min=64, help="Tokens per prefill chunk.")
    ] = 2048,
    utilization: Annotated[
        float, typer.Option("--utilization", min=0.1, max=0.99, help="Share of a card that vLLM may use.")
    ] = 0.92,
    prefix_caching: Annotated[
        bool, typer.Option("--prefix-caching/--no-prefix-caching", help="Keep prefixes.")
    ] = True,
    reserve: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(
            "--reserve",
            metavar="GIB",
            min=0,
            help="Beside weights and caches, per card; default: estimated. Your first start's log tells.",
            show_default=False,
        ),
    ] = None,
    plot: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--plot", metavar="FILE", help="Draw the cards as .svg or .png.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say whether the model fits your cards, how it is laid out, and with which command.

    Reads headers alone. Exit 1: it does not fit, and the message names the number that fails.
    """
    from vllm_series.commands.plan import PlanOptions
    from vllm_series.commands.plan import plan as command

    options = PlanOptions(
        model=model,
        gpus=gpus,
        nodes=nodes,
        ram=ram,
        context=context,
        users=users,
        kv=kv.value,
        mtp=mtp,
        vision=vision,
        tp=tp,
        partition=partition,
        batched_tokens=batched_tokens,
        utilization=utilization,
        prefix_caching=prefix_caching,
        reserve=reserve,
        plot=plot,
    )
    dispatch("plan", as_json, lambda out: command(out, options))
