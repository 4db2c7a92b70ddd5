# SPDX-License-Identifier: Apache-2.0
"""The verbs that run tests: ``test`` and ``env``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from vllm_series.cli.dispatch import dispatch
from vllm_series.cli.options import CONTEXT, MAINTAIN, Folder, Index, Json, Names, as_tags

app = typer.Typer()


@app.command("test", rich_help_panel=MAINTAIN)
def prove(
    names: Names = None,
    onto: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--onto",
            metavar="REF",
            help="Release; again for more. Default: the pinned one.",
            show_default=False,
            callback=as_tags,
        ),
    ] = None,
    tier: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--tier",
            metavar="TIER",
            help="static, cpu, interpret or compile; gpu, engine or pp with --results. Again for more. "
            "Default: all that a patch has tests in.",
            show_default=False,
        ),
    ] = None,
    record: Annotated[bool, typer.Option("--record", help="Write evidence into patches/evidence.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the working folders, with the logs.")] = False,
    every: Annotated[bool, typer.Option("--all", help="On every supported base.")] = False,
    each: Annotated[
        bool, typer.Option("--each", help="Every patch on its own prerequisites alone, not in the series.")
    ] = False,
    prefix: Annotated[
        bool, typer.Option("--prefix", help="Every patch on the patches before it in the series.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run also what is known from before.")] = False,
    time_limit: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(
            "--time-limit",
            metavar="SECONDS",
            min=0.1,
            help="For each phase of a test. Default: 300, compile 1800.",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            "--jobs",
            "-j",
            metavar="N",
            min=1,
            help="Runs at the same time. Default: one per CPU that may be used.",
            show_default=False,
        ),
    ] = None,
    junit: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--junit", metavar="FILE", help="Write JUnit XML.", show_default=False),
    ] = None,
    results: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--results",
            metavar="FILE",
            help="What ci/gpu.sh wrote on a machine with a GPU; the tiers gpu, engine and pp judge it.",
            show_default=False,
        ),
    ] = None,
    index: Index = "",
    series_dir: Folder = None,
    as_json: Json = False,
) -> None:
    """Prove patches: their tests pass with them and fail without them, and vLLM's get no worse.

    Needs no GPU: what ran on one is judged from its results. Results are kept by content, so only what has
    changed is run again. Exit 1 means a failure, 6 that something was skipped where a run was demanded.
    """
    from vllm_series.commands.test import TestOptions
    from vllm_series.commands.test import test as command

    options = TestOptions(
        names=tuple(names) if names else None,
        onto=tuple(onto or ()),
        tiers=tuple(tier) if tier else None,
        record=record,
        keep=keep,
        every_base=every,
        each=each,
        prefix=prefix,
        fresh=fresh,
        time_limit=time_limit,
        jobs=jobs,
        junit=junit,
        results=results,
        index=index,
    )
    dispatch("test", as_json, lambda out: command(out, series_dir, options))


environments = typer.Typer(
    help="The Python environment of vLLM's tests: made in the cache folder, or packed for a GPU machine.",
    no_args_is_help=True,
    context_settings=CONTEXT,
)
app.add_typer(environments, name="env", rich_help_panel=MAINTAIN)


@environments.command("create")
def env_create(
    extra_index_url: Annotated[
        str,
        typer.Option(
            "--extra-index-url",
            metavar="URL",
            help="A further package index, where the default one has no CPU build of torch: "
            "https://download.pytorch.org/whl/cpu; default: $VLLM_SERIES_EXTRA_INDEX_URL.",
            show_default=False,
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Make the environment; nothing happens if it is there."""
    from vllm_series.commands.env import create as command

    dispatch("env create", as_json, lambda out: command(out, extra_index_url))


@environments.command("show")
def env_show(as_json: Json = False) -> None:
    """Show the environment that is used; exit 1 if it is not made yet."""
    from vllm_series.commands.env import show as command

    dispatch("env show", as_json, command)


@environments.command("remove")
def env_remove(
    every: Annotated[bool, typer.Option("--all", help="Also those of earlier requirement lists.")] = False,
    as_json: Json = False,
) -> None:
    """Remove the environment from the cache folder."""
    from vllm_series.commands.env import remove as command

    dispatch("env remove", as_json, lambda out: command(out, every))


@environments.command("pack")
def env_pack(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="New folder for the archive.")],
    wheels: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--wheels",
            metavar="FOLDER",
            help="Where wheels are, and downloads go. Default: in the cache.",
            show_default=False,
        ),
    ] = None,
    onto: Annotated[
        str,
        typer.Option(
            "--onto",
            metavar="REF",
            help="Release. Default: the pinned one.",
            show_default=False,
            callback=as_tags,
        ),
    ] = "",
    architecture: Annotated[
        int, typer.Option("--arch", metavar="NN", min=70, help="Of the GPU: 86 for a 3090, 90 for an H200.")
    ] = 90,
    part_size: Annotated[
        int, typer.Option("--part-size", metavar="MB", min=1, help="Largest size of a part.")
    ] = 60,
    index: Index = "",
    series_dir: Folder = None,
    as_json: Json = False,
) -> None:
    """Pack trees, wheels and tests for a GPU machine without a package index.

    Python, PyTorch with CUDA, Triton and transformers must be there. Of vLLM's compiled libraries only the
    code for one architecture is packed.
    """
    from vllm_series.commands.env import PackOptions
    from vllm_series.commands.env import pack as command

    options = PackOptions(folder, wheels, onto, architecture, part_size * 1_000_000, index)
    dispatch("env pack", as_json, lambda out: command(out, series_dir, options))


@environments.command("unpack")
def env_unpack(
    parts: Annotated[Path, typer.Argument(metavar="PARTS", help="The folder that env pack made.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="New folder to unpack into.")],
    as_json: Json = False,
) -> None:
    """Unpack an archive; where vllm-series is not installed: python3 PARTS/unpack.py PARTS FOLDER."""
    from vllm_series.commands.env import unpack as command

    dispatch("env unpack", as_json, lambda out: command(out, parts, folder))
