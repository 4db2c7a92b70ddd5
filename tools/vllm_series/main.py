# SPDX-License-Identifier: Apache-2.0
"""The command line: arguments, dispatch, exit codes.

Each verb's code is imported when the verb runs, so that ``--help`` and completion stay quick.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Optional

import typer

from vllm_series import __version__
from vllm_series.errors import EXIT_BUG, EXIT_ENVIRONMENT, EXIT_INTERRUPTED, SeriesError
from vllm_series.output import Output

USE = "Use: get a patched vLLM"
MAINTAIN = "Maintain: keep the series alive"
UPSTREAM = "Upstream: know what vLLM has"

app = typer.Typer(
    name="vllm-series",
    help="Apply a series of patches to vLLM, and carry it until upstream has taken every one.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

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


def _dispatch(verb: str, as_json: bool, body: Callable[[Output], int]) -> None:
    """Run a verb, and turn what it raises into a line and an exit code."""
    from vllm_series import git, interrupt

    interrupt.install()
    git.isolate_process()
    out = Output(verb, as_json)
    try:
        code = body(out)
    except SeriesError as error:
        out.note(f"vllm-series: error: {error.message}")
        if error.hint:
            out.note(f"  {error.hint}")
        code = out.finish(
            error.exit_code,
            error={
                "kind": error.kind,
                "message": error.message,
                "hint": error.hint,
                **error.details,
            },
        )
    except KeyboardInterrupt:
        out.note("vllm-series: interrupted, rolled back")
        code = out.finish(
            EXIT_INTERRUPTED, error={"kind": "interrupted", "message": "interrupted", "hint": ""}
        )
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        out.note(f"vllm-series: error: {name}{error.strerror or error}")
        code = out.finish(
            EXIT_ENVIRONMENT,
            error={
                "kind": "environment",
                "message": f"{name}{error.strerror or error}",
                "hint": "",
            },
        )
    except Exception as error:
        import traceback

        traceback.print_exc()
        out.note("vllm-series: this is a bug; please report it with the lines above")
        code = out.finish(EXIT_BUG, error={"kind": "bug", "message": repr(error), "hint": ""})
    out.close()
    raise typer.Exit(code)


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
    _dispatch("apply", as_json, lambda out: command(out, series_dir, options))


@app.command(rich_help_panel=USE)
def pick(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Patches, by name.")],
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

    _dispatch("pick", as_json, lambda out: command(out, series_dir, names, vllm, three_way, dry_run))


@app.command(rich_help_panel=USE)
def unapply(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Patches, by name.")],
    vllm: Annotated[
        Path, typer.Option("--vllm", metavar="PATH", help="Your checkout of vLLM; default: here.")
    ] = Path(),
    with_dependents: Annotated[
        bool, typer.Option("--with-dependents", help="Also take off the patches that need them.")
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Take patches off a checkout; the others stay."""
    from vllm_series.commands.unapply import unapply as command

    _dispatch("unapply", as_json, lambda out: command(out, names, vllm, with_dependents, dry_run))


@app.command(rich_help_panel=USE)
def fetch(
    refs: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(
            metavar="REF",
            help="Release tags; default: the supported bases.",
            show_default=False,
        ),
    ] = None,
    index: Index = "",
    series_dir: Folder = None,
    as_json: Json = False,
) -> None:
    """Bring vLLM releases into the cache, from the package index."""
    from vllm_series.commands.fetch import fetch as command

    _dispatch("fetch", as_json, lambda out: command(out, series_dir, refs, index))


@app.command(rich_help_panel=USE)
def doctor(vllm: Clone = None, series_dir: Folder = None, as_json: Json = False) -> None:
    """Check this machine: git, disk, cache, network, the patch directory, a checkout."""
    from vllm_series.commands.doctor import doctor as command

    _dispatch("doctor", as_json, lambda out: command(out, series_dir, vllm))


@app.command("list", rich_help_panel=MAINTAIN)
def list_(series_dir: Folder = None, as_json: Json = False) -> None:
    """List the patches in order."""
    from vllm_series.commands.list import list_patches as command

    _dispatch("list", as_json, lambda out: command(out, series_dir))


@app.command(rich_help_panel=MAINTAIN)
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The patch.")],
    onto: Onto = None,
    text: Annotated[bool, typer.Option("--patch", help="Print the patch file itself.")] = False,
    series_dir: Folder = None,
    as_json: Json = False,
) -> None:
    """Show one patch: message, files, which file serves which base."""
    from vllm_series.commands.show import show as command

    _dispatch("show", as_json, lambda out: command(out, series_dir, name, onto, text))


@app.command(rich_help_panel=MAINTAIN)
def check(series_dir: Folder = None, as_json: Json = False) -> None:
    """Check the whole patch directory without network; all findings at once."""
    from vllm_series.commands.check import check as command

    _dispatch("check", as_json, lambda out: command(out, series_dir))


@app.command(rich_help_panel=MAINTAIN)
def refresh(
    source: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--from",
            metavar="PATH",
            help="A checkout whose series commits were edited.",
            show_default=False,
        ),
    ] = None,
    only_check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 1 if something would be written.")
    ] = False,
    index: Index = "",
    series_dir: Folder = None,
    as_json: Json = False,
) -> None:
    """Write the patch files anew, in canonical form; unchanged ones stay as they are."""
    from vllm_series.commands.refresh import refresh as command

    _dispatch("refresh", as_json, lambda out: command(out, series_dir, source, only_check, index))


@app.command(rich_help_panel=UPSTREAM)
def status(
    onto: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--onto", metavar="REF", help="Release or commit; again for more.", show_default=False),
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
    _dispatch("status", as_json, lambda out: command(out, series_dir, options))


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
        ),
    ] = None,
    tier: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--tier",
            metavar="TIER",
            help="static, cpu, interpret or compile; again for more. Default: all that a patch has tests in.",
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
    index: Index = "",
    series_dir: Folder = None,
    as_json: Json = False,
) -> None:
    """Prove patches: their tests pass with them and fail without them, and vLLM's get no worse.

    Needs no GPU. Results are kept by content, so only what has changed is run again. Exit 1 means a failure,
    6 that something was skipped where a run was demanded.
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
        index=index,
    )
    _dispatch("test", as_json, lambda out: command(out, series_dir, options))


environments = typer.Typer(
    help="The Python environment of vLLM's tests: made in the cache folder, without a GPU.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
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

    _dispatch("env create", as_json, lambda out: command(out, extra_index_url))


@environments.command("show")
def env_show(as_json: Json = False) -> None:
    """Show the environment that is used; exit 1 if it is not made yet."""
    from vllm_series.commands.env import show as command

    _dispatch("env show", as_json, command)


@environments.command("remove")
def env_remove(
    every: Annotated[bool, typer.Option("--all", help="Also those of earlier requirement lists.")] = False,
    as_json: Json = False,
) -> None:
    """Remove the environment from the cache folder."""
    from vllm_series.commands.env import remove as command

    _dispatch("env remove", as_json, lambda out: command(out, every))


def run() -> None:
    """The console script."""
    app()
