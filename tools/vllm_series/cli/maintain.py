# SPDX-License-Identifier: Apache-2.0
"""Verbs on the series and its patch files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from vllm_series.cli.dispatch import dispatch
from vllm_series.cli.options import MAINTAIN, Folder, Index, Json, Onto

app = typer.Typer()


@app.command("list", rich_help_panel=MAINTAIN)
def list_(series_dir: Folder = None, as_json: Json = False) -> None:
    """List the patches in order."""
    from vllm_series.commands.list import list_patches as command

    dispatch("list", as_json, lambda out: command(out, series_dir))


@app.command(rich_help_panel=MAINTAIN)
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The patch.")],
    onto: Onto = None,
    text: Annotated[bool, typer.Option("--patch", help="Print the patch file itself.")] = False,
    series_dir: Folder = None,
    as_json: Json = False,
) -> None:
    """Show one patch: message, files, which file serves which base."""
    from vllm_series.commands.show import show as command

    dispatch("show", as_json, lambda out: command(out, series_dir, name, onto, text))


@app.command(rich_help_panel=MAINTAIN)
def check(series_dir: Folder = None, as_json: Json = False) -> None:
    """Check the whole patch directory without network; all findings at once."""
    from vllm_series.commands.check import check as command

    dispatch("check", as_json, lambda out: command(out, series_dir))


@app.command(rich_help_panel=MAINTAIN)
def refresh(
    source: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--from",
            metavar="PATH",
            help="A checkout whose series commits were edited.",
            show_default=False,
        ),
    ] = None,
    only_check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 1 if something would be written.")
    ] = False,
    index: Index = "",
    series_dir: Folder = None,
    as_json: Json = False,
) -> None:
    """Write the patch files anew, in canonical form; unchanged ones stay as they are."""
    from vllm_series.commands.refresh import refresh as command

    dispatch("refresh", as_json, lambda out: command(out, series_dir, source, only_check, index))
