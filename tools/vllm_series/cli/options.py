# SPDX-License-Identifier: Apache-2.0
"""What the verbs share: panels of ``--help``, and options that mean the same in all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

USE = "Use: get a patched vLLM"
MAINTAIN = "Maintain: keep the series alive"
UPSTREAM = "Upstream: know what vLLM has"

CONTEXT = {"help_option_names": ["-h", "--help"]}


def given(context: typer.Context, name: str) -> bool:
    """Whether the caller wrote the parameter, so that its value is not the default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def not_empty(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
    """Refuse an empty value, as of an unset variable in ``--onto "$REF"``: it is no wish for the default."""
    values = value if isinstance(value, (list, tuple)) else [value]
    if given(context, parameter.name or "") and any(text == "" for text in values):
        raise typer.BadParameter("it is empty")
    return value


def as_tags(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
    """Take ``0.33.0`` for the tag ``v0.33.0``, as people write releases; refuse an empty value."""
    from vllm_series.bases import as_tag

    not_empty(context, parameter, value)
    if isinstance(value, (list, tuple)):
        return [as_tag(text) for text in value]
    return value and as_tag(value)


Names = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Argument(metavar="NAME...", help="Patches, by name.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Write one JSON document to standard output.")]
Folder = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--series-dir", metavar="DIR", help="Folder with series and patches/.", show_default=False),
]
Clone = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--vllm", metavar="PATH", help="Your own git checkout of vLLM.", show_default=False),
]
Onto = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--onto", metavar="REF", help="Release tag or commit.", show_default=False, callback=as_tags
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen; change nothing.")]
ThreeWay = Annotated[bool, typer.Option("--3way", help="Merge hunks whose context has drifted.")]
Index = Annotated[
    str,
    typer.Option(
        "--index", metavar="URL", help="Another package index.", show_default=False, callback=not_empty
    ),
]
