# SPDX-License-Identifier: Apache-2.0
"""What the verbs share: panels of ``--help``, and options that mean the same in all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

USE = "Use: get a patched vLLM"
MAINTAIN = "Maintain: keep the series alive"
UPSTREAM = "Upstream: know what vLLM has"

CONTEXT = {"help_option_names": ["-h", "--help"]}

Names = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Argument(metavar="NAME", help="Patches, by name.", show_default=False),
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
    typer.Option("--onto", metavar="REF", help="Release tag or commit.", show_default=False),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen; change nothing.")]
ThreeWay = Annotated[bool, typer.Option("--3way", help="Merge hunks whose context has drifted.")]
Index = Annotated[
    str,
    typer.Option("--index", metavar="URL", help="Another package index.", show_default=False),
]
