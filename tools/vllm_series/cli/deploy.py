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
            help="With --site-packages: that folder or a virtual environment, default the active one. "
            "With --image: the folder to write, default ./vllm-series-overlay.",
            show_default=False,
        ),
    ] = None,
    site_packages: Annotated[
        bool, typer.Option("--site-packages", help="Into an installed vLLM wheel.")
    ] = False,
    uninstall: Annotated[
        bool, typer.Option("--uninstall", help="Restore the installed vLLM, byte for byte.")
    ] = False,
    image: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--image", metavar="TAG", help="Over a container image.", show_default=False),
    ] = None,
    onto: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--onto", metavar="REF", help="The image's release, if its tag does not say.", show_default=False
        ),
    ] = None,
    serve: Annotated[
        str, typer.Option("--serve", metavar="ARGS", help="What `vllm serve` gets after the model.")
    ] = "",
    environment: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--env", metavar="NAME=VALUE", help="For the container; again for more.", show_default=False
        ),
    ] = None,
    gpus: Annotated[str, typer.Option("--gpus", metavar="LIST", help="all, or 0,1,2.")] = "all",
    shm_size: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            "--shm-size",
            metavar="GIB",
            min=1,
            help="A /dev/shm of its own; default: the host's.",
            show_default=False,
        ),
    ] = None,
    torchcodec: Annotated[
        Optional[bool],  # noqa: UP045
        typer.Option(
            "--remove-torchcodec/--keep-torchcodec",
            help="Take torchcodec out; default: where the tag says CUDA 12, whose torchcodec fails.",
            show_default=False,
        ),
    ] = None,
    container_site: Annotated[
        str,
        typer.Option(
            "--container-site", metavar="DIR", help="The image's site-packages; default: vLLM's own."
        ),
    ] = "",
    dry_run: DryRun = False,
    index: Index = "",
    series_dir: Folder = None,
    as_json: Json = False,
) -> None:
    """Put the series over a vLLM that is installed already, or over the one in a container image.

    Refused unless every file that is replaced is the release's own.
    """
    from vllm_series.commands.overlay import OverlayOptions
    from vllm_series.commands.overlay import overlay as command

    container = {
        "serve": serve,
        "environment": environment or (),
        "gpus": gpus,
        "shm": shm_size,
        "remove_torchcodec": torchcodec,
        **({"site": container_site} if container_site else {}),
    }
    options = OverlayOptions(path, site_packages, uninstall, dry_run, index, image, onto, container)
    dispatch("overlay", as_json, lambda out: command(out, series_dir, options))
