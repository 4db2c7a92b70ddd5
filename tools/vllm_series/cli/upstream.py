# SPDX-License-Identifier: Apache-2.0
"""Verbs that look at what vLLM has, and those that bring a patch there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from vllm_series.cli.dispatch import dispatch
from vllm_series.cli.options import CONTEXT, UPSTREAM, Clone, Folder, Index, Json, Names, Onto, as_tags

app = typer.Typer()


@app.command(rich_help_panel=UPSTREAM)
def status(
    onto: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--onto",
            metavar="REF",
            help="Release or commit; again for more.",
            show_default=False,
            callback=as_tags,
        ),
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


@app.command(rich_help_panel=UPSTREAM)
def board(
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the table that the README embeds.")
    ] = False,
    html: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--html", metavar="FILE", help="Write one self-contained page.", show_default=False),
    ] = None,
    index: Index = "",
    series_dir: Folder = None,
    as_json: Json = False,
) -> None:
    """Show per patch: upstream state, intent, gates, evidence, and what to do next."""
    from vllm_series.commands.board import board as command

    dispatch("board", as_json, lambda out: command(out, series_dir, as_markdown, html, index))


@app.command(rich_help_panel=UPSTREAM)
def export(
    names: Names = None,
    onto: Onto = None,
    vllm: Clone = None,
    into: Annotated[
        Path, typer.Option("--into", metavar="DIR", help="Where the folders are written.")
    ] = Path("export"),
    check: Annotated[bool, typer.Option("--check", help="Run the gates alone; write nothing.")] = False,
    no_test: Annotated[
        bool, typer.Option("--no-test", help="Run no tests; what is not recorded stays a finding.")
    ] = False,
    reset_author: Annotated[
        bool, typer.Option("--reset-author", help="Make yourself the author of the commits.")
    ] = False,
    push: Annotated[
        str,
        typer.Option(
            "--push",
            metavar="REMOTE",
            help="Push the branches that no gate objects to, with a lease.",
            show_default=False,
        ),
    ] = "",
    index: Index = "",
    series_dir: Folder = None,
    as_json: Json = False,
) -> None:
    """Make a branch and a folder for each patch, ready for a person to review and send.

    The branch pr/NAME holds the patch and what it needs, alone on the base, signed off by you. Nothing is
    pushed without --push, and nothing is opened.
    """
    from vllm_series.commands.export import ExportOptions
    from vllm_series.commands.export import export as command

    options = ExportOptions(
        names=tuple(names) if names else None,
        onto=onto,
        vllm=vllm,
        into=into,
        check=check,
        test=not no_test,
        reset_author=reset_author,
        push=push,
        index=index,
    )
    dispatch("export", as_json, lambda out: command(out, series_dir, options))


threads = typer.Typer(
    help="What happens in vLLM's repository at GitHub.", no_args_is_help=True, context_settings=CONTEXT
)
app.add_typer(threads, name="upstream", rich_help_panel=UPSTREAM)


@threads.command()
def sync(series_dir: Folder = None, as_json: Json = False) -> None:
    """Refresh the state of the listed pull requests and issues, and search for duplicates; needs gh."""
    from vllm_series.commands.upstream import sync as command

    dispatch("upstream sync", as_json, lambda out: command(out, series_dir))
