# SPDX-License-Identifier: Apache-2.0
"""Verbs that change which patches there are, and ``verify``, which says which ones are in force."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from vllm_series.cli.dispatch import dispatch
from vllm_series.cli.options import USE, Clone, Folder, Index, Json, Onto

app = typer.Typer()


@app.command(rich_help_panel=USE)
def verify(
    path: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="A checkout, site-packages, or a virtual environment."),
    ],
    names: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(
            metavar="NAME", help="Patches that should be there; default: all.", show_default=False
        ),
    ] = None,
    onto: Onto = None,
    vllm: Clone = None,
    index: Index = "",
    series_dir: Folder = None,
    as_json: Json = False,
) -> None:
    """Say whether a checkout or an installed vLLM is exactly its base plus these patches.

    Every file is compared by content. Exit 1 if one differs: patches that are missing or partly applied,
    foreign edits and stale bytecode are named. --onto and --vllm name another base than the one found.
    """
    from vllm_series.commands.verify import VerifyOptions
    from vllm_series.commands.verify import verify as command

    options = VerifyOptions(path, tuple(names) if names else None, onto, vllm, index)
    dispatch("verify", as_json, lambda out: command(out, series_dir, options))
