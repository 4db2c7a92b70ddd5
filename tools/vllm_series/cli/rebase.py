# SPDX-License-Identifier: Apache-2.0
"""Verbs that carry the series to another vLLM, and those that take work on it back."""

from __future__ import annotations

from typing import Annotated

import typer

from vllm_series.cli.dispatch import dispatch
from vllm_series.cli.options import MAINTAIN, Folder, Json

app = typer.Typer()

Count = Annotated[int, typer.Option("-n", metavar="N", help="How many operations.")]


@app.command(rich_help_panel=MAINTAIN)
def log(series_dir: Folder = None, as_json: Json = False) -> None:
    """List what was done to the patch directory."""
    from vllm_series.commands.log import log as command

    dispatch("log", as_json, lambda out: command(out, series_dir))


@app.command(rich_help_panel=MAINTAIN)
def undo(count: Count = 1, series_dir: Folder = None, as_json: Json = False) -> None:
    """Take the last operations on the patch directory back."""
    from vllm_series.commands.undo import undo as command

    dispatch("undo", as_json, lambda out: command(out, series_dir, count))


@app.command(rich_help_panel=MAINTAIN)
def redo(count: Count = 1, series_dir: Folder = None, as_json: Json = False) -> None:
    """Do undone operations again."""
    from vllm_series.commands.undo import redo as command

    dispatch("redo", as_json, lambda out: command(out, series_dir, count))
