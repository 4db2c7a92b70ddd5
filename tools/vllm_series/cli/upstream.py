# SPDX-License-Identifier: Apache-2.0
"""Verbs that look at what vLLM has."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from vllm_series.cli.dispatch import dispatch
from vllm_series.cli.options import UPSTREAM, Clone, Folder, Index, Json

app = typer.Typer()


@app.command(rich_help_panel=UPSTREAM)
def status(
    onto: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--onto", metavar="REF", help="Release or commit; again for more.", show_default=False),
    ] = None,
    vllm: Clone = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Fail if a hunk lands in another function than it was made for."),
    ] = False,
    hunks: Annotated[bool, typer.Option("--hunks", help="Show every hunk.")] = False,
    index: Index = "",
    series_dir: Folder = None,
    as_json: Json = False,
) -> None:
    """Say where every patch and hunk stands on one or several bases; default: the supported ones."""
    from vllm_series.commands.status import StatusOptions
    from vllm_series.commands.status import status as command

    options = StatusOptions(tuple(onto or ()), vllm, strict, hunks, index)
    dispatch("status", as_json, lambda out: command(out, series_dir, options))
