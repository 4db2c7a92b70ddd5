# SPDX-License-Identifier: Apache-2.0
"""Verbs of the person whose box serves the model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from vllm_series.cli.dispatch import dispatch
from vllm_series.cli.options import USE, DryRun, Folder, Index, Json

app = typer.Typer()


@app.command(rich_help_panel=USE)
def overlay(
    path: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Argument(
            metavar="PATH",
            help="With --site-packages: that folder or a virtual environment, default the active one.",
            show_default=False,
        ),
    ] = None,
    site_packages: Annotated[
        bool, typer.Option("--site-packages", help="Into an installed vLLM wheel.")
    ] = False,
    uninstall: Annotated[
        bool, typer.Option("--uninstall", help="Restore the installed vLLM, byte for byte.")
    ] = False,
    dry_run: DryRun = False,
    index: Index = "",
    series_dir: Folder = None,
    as_json: Json = False,
) -> None:
    """Put the series over a vLLM that is installed already.

    Refused unless every file that is replaced is the release's own.
    """
    from vllm_series.commands.overlay import OverlayOptions
    from vllm_series.commands.overlay import overlay as command

    options = OverlayOptions(path, site_packages, uninstall, None, None, dry_run, index)
    dispatch("overlay", as_json, lambda out: command(out, series_dir, options))
