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
from vllm_series.cli.options import CONTEXT
from vllm_series.cli.root import RootGroup

app = typer.Typer(
    name="vllm-series",
    cls=RootGroup,
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


def run() -> None:
    """The console script."""
    # A closed stream is none in Python; what would go there is dropped.
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123
    app()
