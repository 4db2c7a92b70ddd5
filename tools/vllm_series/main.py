# SPDX-License-Identifier: Apache-2.0
"""The command line: the verbs of each group, put together.

Each verb's code is imported when the verb runs, so that ``--help`` and completion stay quick.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from vllm_series import __version__
from vllm_series.cli import deploy, edit, maintain, owner, prove, rebase, upstream, use
from vllm_series.cli.dispatch import refused
from vllm_series.cli.options import CONTEXT

app = typer.Typer(
    name="vllm-series",
    help="Apply a series of patches to vLLM, and carry it until upstream has taken every one.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings=CONTEXT,
)
for _group in (use, owner, deploy, maintain, edit, rebase, prove, upstream):
    app.add_typer(_group.app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"vllm-series {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Apply a series of patches to vLLM, and carry it until upstream has taken every one."""


def _open_streams() -> None:
    """Open the standard streams that the caller has closed, as with ``>&-``.

    Python has no object for them, and the next file that is opened would get their number: what a child
    process prints would go there.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # The lowest free number, which is this one.
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w"))


def run() -> None:
    """The console script."""
    _open_streams()
    try:
        app()
    except SystemExit as end:
        # Typer ends so, out of the handler of its error, if it cannot read the command line: no verb has run.
        if "--json" in sys.argv[1:] and hasattr(end.__context__, "format_message"):
            raise SystemExit(refused(end.__context__)) from None
        raise
