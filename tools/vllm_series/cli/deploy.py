# SPDX-License-Identifier: Apache-2.0
"""Verbs of the person whose box serves the model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from vllm_series.cli.dispatch import dispatch
from vllm_series.cli.options import CONTEXT, USE, DryRun, Folder, Index, Json, as_tags, given

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
            "--onto",
            metavar="REF",
            help="The image's release, if its tag does not say.",
            show_default=False,
            callback=as_tags,
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


bench_app = typer.Typer(help="Measure a running server.", context_settings=CONTEXT)
app.add_typer(bench_app, name="bench", rich_help_panel=USE)


@bench_app.callback(invoke_without_command=True)
def bench(
    context: typer.Context,
    url: Annotated[str, typer.Option("--url", metavar="URL", help="The server.")] = "http://127.0.0.1:8000",
    model: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--model", metavar="NAME", help="As the server calls it; default: its only one."),
    ] = None,
    tokenizer: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--tokenizer",
            metavar="PATH",
            help="Folder of the checkpoint or tokenizer.json; default: what the server names, if it is here.",
            show_default=False,
        ),
    ] = None,
    into: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--into", metavar="DIR", help="New folder; default ./bench-DATE.", show_default=False),
    ] = None,
    only: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--only",
            metavar="NAME",
            help="prefill, decode, behind, burst, needle, tier or check; again for more. Default: all.",
            show_default=False,
        ),
    ] = None,
    contexts: Annotated[
        Optional[list[int]],  # noqa: UP045
        typer.Option(
            "--context",
            metavar="N",
            min=64,
            help="Prompt tokens; again for more.",
            show_default="1024, 8192, 32768",
        ),
    ] = None,
    users: Annotated[
        Optional[list[int]],  # noqa: UP045
        typer.Option(
            "--users",
            metavar="N",
            min=1,
            max=1024,
            help="Sessions at once; again for more.",
            show_default="1, 2, 4",
        ),
    ] = None,
    tokens: Annotated[int, typer.Option("--tokens", metavar="N", min=2, help="Generated tokens.")] = 128,
    repeat: Annotated[int, typer.Option("--repeat", metavar="N", min=1, help="Runs of each.")] = 3,
    burst: Annotated[
        int, typer.Option("--burst", metavar="N", min=1, max=1024, help="Long prompts at once.")
    ] = 7,
    evict: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            "--evict-tokens",
            metavar="N",
            min=1,
            help="Tokens that drive a prompt out of the KV cache; default: 1.2 times what vLLM states.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Decides every prompt.")] = 0,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="Longest silence of the server.")
    ] = 600.0,
    as_json: Json = False,
) -> None:
    """Measure a running OpenAI-compatible server: prefill, generation, queueing, needles, KV tiers, answers.

    Writes result.json, report.md and plots. What is there is kept when a run is interrupted.
    """
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    from vllm_series.commands.bench import BenchOptions
    from vllm_series.commands.bench import bench as command

    options = BenchOptions(
        url, model, tokenizer, into, tuple(only or ()), tuple(contexts or ()), tuple(users or ()),
        tokens, repeat, burst, evict, seed, timeout,
    )  # fmt: skip
    dispatch("bench", as_json, lambda out: command(out, options))


def _refuse_options(context: typer.Context) -> None:
    """Refuse options of a run in front of a subcommand, which would be dropped in silence."""
    for parameter in context.command.params:
        if parameter.name not in (None, "as_json") and given(context, parameter.name):
            raise typer.BadParameter(
                f"it does not go with {context.invoked_subcommand}", param_hint=f"'{parameter.opts[0]}'"
            )


@bench_app.command("compare")
def bench_compare(
    context: typer.Context,
    first: Annotated[Path, typer.Argument(metavar="A", help="Folder of a run.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Folder of another.")],
    as_json: Json = False,
) -> None:
    """Compare two runs, value by value."""
    from vllm_series.commands.bench import compare as command

    # `bench --json compare A B` is understood as well.
    as_json = as_json or bool(context.parent and context.parent.params["as_json"])
    dispatch("bench compare", as_json, lambda out: command(out, first, second))
