# SPDX-License-Identifier: Apache-2.0
"""Verbs of the person who wants a patched vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from vllm_series.cli.dispatch import dispatch
from vllm_series.cli.options import USE, Clone, DryRun, Folder, Index, Json, Names, Onto, ThreeWay, as_tags

app = typer.Typer()


@app.command(rich_help_panel=USE)
def apply(
    names: Names = None,
    onto: Onto = None,
    into: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--into",
            metavar="DIR",
            help="New checkout; default ./vllm-VERSION.",
            show_default=False,
        ),
    ] = None,
    vllm: Clone = None,
    branch: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--branch", metavar="B", help="Branch to make or move there.", show_default=False),
    ] = None,
    three_way: ThreeWay = False,
    dry_run: DryRun = False,
    index: Index = "",
    series_dir: Folder = None,
    as_json: Json = False,
) -> None:
    """Patch vLLM: a fetched release in a new folder, or your own checkout.

    Without names the whole series is applied; with names, these patches and what they need.
    """
    from vllm_series.commands.apply import ApplyOptions
    from vllm_series.commands.apply import apply as command

    options = ApplyOptions(
        tuple(names) if names else None, onto, into, vllm, branch, three_way, dry_run, index
    )
    dispatch("apply", as_json, lambda out: command(out, series_dir, options))


@app.command(rich_help_panel=USE)
def pick(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Patches, by name.")],
    vllm: Annotated[
        Path, typer.Option("--vllm", metavar="PATH", help="Your checkout of vLLM; default: here.")
    ] = Path(),
    three_way: ThreeWay = False,
    dry_run: DryRun = False,
    series_dir: Folder = None,
    as_json: Json = False,
) -> None:
    """Add single patches, with what they need, to the branch that is checked out."""
    from vllm_series.commands.pick import pick as command

    dispatch("pick", as_json, lambda out: command(out, series_dir, names, vllm, three_way, dry_run))


@app.command(rich_help_panel=USE)
def unapply(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Patches, by name.")],
    vllm: Annotated[
        Path, typer.Option("--vllm", metavar="PATH", help="Your checkout of vLLM; default: here.")
    ] = Path(),
    with_dependents: Annotated[
        bool, typer.Option("--with-dependents", help="Also take off the patches that need them.")
    ] = False,
    dry_run: DryRun = False,
    series_dir: Folder = None,
    as_json: Json = False,
) -> None:
    """Take patches off a checkout; the others stay."""
    from vllm_series.commands.unapply import unapply as command

    dispatch("unapply", as_json, lambda out: command(out, series_dir, names, vllm, with_dependents, dry_run))


@app.command(rich_help_panel=USE)
def fetch(
    refs: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(
            metavar="REF...",
            help="Release tags; default: the supported bases.",
            show_default=False,
            callback=as_tags,
        ),
    ] = None,
    index: Index = "",
    series_dir: Folder = None,
    as_json: Json = False,
) -> None:
    """Bring vLLM releases into the cache, from the package index."""
    from vllm_series.commands.fetch import fetch as command

    dispatch("fetch", as_json, lambda out: command(out, series_dir, refs, index))


@app.command(
    rich_help_panel=USE,
    # No -h of its own: vLLM has flags such as -dph, which would be read as it.
    context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]},
)
def doctor(
    context: typer.Context,
    arguments: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(
            metavar="[ARGS]", help="With --serve: what stands behind vllm serve.", show_default=False
        ),
    ] = None,
    serve: Annotated[
        bool,
        typer.Option("--serve", help="Check a start of vllm serve instead, in this folder and environment."),
    ] = False,
    vllm: Clone = None,
    series_dir: Folder = None,
    as_json: Json = False,
) -> None:
    """Check this machine: git, disk, cache, network, the patch directory, a checkout.

    With --serve: driver, cards, memory, checkpoint, flags and variables, and whether the vLLM about to run
    has the patches that the start needs. Exit 1 if something stops it.
    """
    if "-h" in (arguments or []):
        typer.echo(context.get_help())
        return
    if serve:
        from vllm_series.commands.doctor_serve import doctor_serve

        dispatch("doctor", as_json, lambda out: doctor_serve(out, series_dir, vllm, arguments or []))
        return
    if arguments:
        raise typer.BadParameter(f"{arguments[0]}: doctor takes arguments with --serve alone")
    from vllm_series.commands.doctor import doctor as command

    dispatch("doctor", as_json, lambda out: command(out, series_dir, vllm))
