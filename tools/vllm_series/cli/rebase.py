# SPDX-License-Identifier: Apache-2.0
"""Verbs that carry the series to another vLLM, and those that take work on it back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from vllm_series.cli.dispatch import dispatch
from vllm_series.cli.options import MAINTAIN, Clone, Folder, Index, Json, Onto, as_tags

app = typer.Typer()

Count = Annotated[int, typer.Option("-n", metavar="N", help="How many operations.")]


@app.command(rich_help_panel=MAINTAIN)
def rebase(
    ref: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(
            metavar="[REF]",
            help="The release to carry the series to.",
            show_default=False,
            callback=as_tags,
        ),
    ] = None,
    go_on: Annotated[
        bool, typer.Option("--continue", help="Go on after the patch in question was resolved.")
    ] = False,
    skip: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--skip",
            metavar="REASON",
            help="Drop the patch in question; the reason goes into dropped.toml.",
            show_default=False,
        ),
    ] = None,
    abort: Annotated[bool, typer.Option("--abort", help="Take everything back.")] = False,
    vllm: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--vllm",
            metavar="PATH",
            help="Your clone of vLLM: its history says which commits changed a hunk.",
            show_default=False,
        ),
    ] = None,
    index: Index = "",
    series_dir: Folder = None,
    as_json: Json = False,
) -> None:
    """Carry the series to another release, stopping where a person must decide."""
    from vllm_series.commands.rebase import RebaseOptions
    from vllm_series.commands.rebase import rebase as command

    options = RebaseOptions(ref, go_on, skip, abort, vllm, index)
    dispatch("rebase", as_json, lambda out: command(out, series_dir, options))


@app.command(rich_help_panel=MAINTAIN)
def deps(
    check: Annotated[
        bool,
        typer.Option("--check", help="Exit 1 if patches that need nothing of each other do not commute."),
    ] = False,
    onto: Onto = None,
    index: Index = "",
    series_dir: Folder = None,
    as_json: Json = False,
) -> None:
    """Say what each patch needs: what it declares, and what its text cannot do without."""
    from vllm_series.commands.deps import deps as command

    dispatch("deps", as_json, lambda out: command(out, series_dir, check, onto, index))


@app.command(rich_help_panel=MAINTAIN)
def graph(
    dot: Annotated[bool, typer.Option("--dot", help="Write it for Graphviz.")] = False,
    onto: Onto = None,
    index: Index = "",
    series_dir: Folder = None,
    as_json: Json = False,
) -> None:
    """Draw which patch needs which."""
    from vllm_series.commands.deps import graph as command

    dispatch("graph", as_json, lambda out: command(out, series_dir, dot, onto, index))


@app.command(rich_help_panel=MAINTAIN)
def diff(
    old: Annotated[
        str,
        typer.Argument(
            metavar="A", help="A supported base, or a revision of this repository.", callback=as_tags
        ),
    ],
    new: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(
            metavar="[B]",
            help="The same; left out: the patches as they are.",
            show_default=False,
            callback=as_tags,
        ),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--name-only", help="Say which patches differ, and not how.")
    ] = False,
    series_dir: Folder = None,
    as_json: Json = False,
) -> None:
    """Compare two states of the series patch by patch, without line numbers."""
    from vllm_series.commands.diff import diff as command

    dispatch("diff", as_json, lambda out: command(out, series_dir, old, new, quiet))


@app.command(rich_help_panel=MAINTAIN)
def log(vllm: Clone = None, series_dir: Folder = None, as_json: Json = False) -> None:
    """List what was done to the patch directory; with --vllm, to that checkout."""
    from vllm_series.commands.log import log as command

    dispatch("log", as_json, lambda out: command(out, series_dir, vllm))


@app.command(rich_help_panel=MAINTAIN)
def undo(count: Count = 1, vllm: Clone = None, series_dir: Folder = None, as_json: Json = False) -> None:
    """Take the last operations on the patch directory back; with --vllm, those on that checkout."""
    from vllm_series.commands.undo import undo as command

    dispatch("undo", as_json, lambda out: command(out, series_dir, count, vllm))


@app.command(rich_help_panel=MAINTAIN)
def redo(count: Count = 1, vllm: Clone = None, series_dir: Folder = None, as_json: Json = False) -> None:
    """Do undone operations again; with --vllm, those on that checkout."""
    from vllm_series.commands.undo import redo as command

    dispatch("redo", as_json, lambda out: command(out, series_dir, count, vllm))
