# SPDX-License-Identifier: Apache-2.0
"""Verbs that change which patches there are, and ``verify``, which says which ones are in force."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from vllm_series.cli.dispatch import dispatch
from vllm_series.cli.options import (
    MAINTAIN,
    USE,
    Clone,
    DryRun,
    Folder,
    Index,
    Json,
    Onto,
    ThreeWay,
    as_tags,
    not_empty,
)
from vllm_series.output import Output

app = typer.Typer()

Name = Annotated[str, typer.Argument(metavar="NAME", help="The patch.")]
SomeNames = Annotated[list[str], typer.Argument(metavar="NAME...", help="Patches, by name.")]
Before = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--before", metavar="NAME", help="Put it before this patch.", show_default=False),
]
After = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--after", metavar="NAME", help="Put it behind this patch.", show_default=False),
]

Into = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--into", metavar="DIR", help="The checkout; default ./vllm-edit-NAME.", show_default=False),
]


@app.command(rich_help_panel=USE)
def verify(
    path: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="A checkout, site-packages, or a virtual environment."),
    ],
    names: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(
            metavar="NAME...", help="Patches that should be there; default: all.", show_default=False
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


@app.command("import", rich_help_panel=MAINTAIN)
def import_(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="Patch files, mailboxes, plain diffs, a folder of them, a quilt series; with --vllm, a "
            "commit or a range A..B of that clone.",
        ),
    ],
    vllm: Clone = None,
    name: Annotated[
        str,
        typer.Option(
            "--name",
            metavar="NAME",
            help="Name of the one patch.",
            show_default=False,
            callback=not_empty,
        ),
    ] = "",
    before: Before = None,
    after: After = None,
    author: Annotated[
        str,
        typer.Option(
            "--author",
            metavar="'NAME <MAIL>'",
            help="Author of diffs that name none.",
            show_default=False,
            callback=not_empty,
        ),
    ] = "",
    origin: Annotated[
        str,
        typer.Option(
            "--origin",
            metavar="TEXT",
            help="own, backport, a URL, or 'upstream, COMMIT'.",
            show_default=False,
            callback=not_empty,
        ),
    ] = "",
    strip: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            "-p", metavar="N", min=0, help="Leading folders to strip from paths.", show_default=False
        ),
    ] = None,
    three_way: ThreeWay = False,
    dry_run: DryRun = False,
    index: Index = "",
    series_dir: Folder = None,
    as_json: Json = False,
) -> None:
    """Take foreign patches into the series: all of them, or none.

    Author, date and message are kept. The report says what applies, what only a three-way merge applies, what
    conflicts and what is there already.
    """
    from vllm_series.commands.import_ import ImportOptions
    from vllm_series.commands.import_ import import_ as command
    from vllm_series.commands.rework import Options

    options = ImportOptions(
        tuple(sources), vllm, name, before, after, author, origin, strip, Options(three_way, dry_run, index)
    )
    dispatch("import", as_json, lambda out: command(out, series_dir, options))


@app.command(rich_help_panel=MAINTAIN)
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new patch.")],
    title: Annotated[
        str,
        typer.Option(
            "--title",
            metavar="TEXT",
            help="Its title, '[Area] Do this', unless you commit: then the commit's message is the patch's.",
        ),
    ],
    before: Before = None,
    after: After = None,
    into: Into = None,
    index: Index = "",
    series_dir: Folder = None,
    as_json: Json = False,
) -> None:
    """Begin a patch: opens a checkout at its place in the series; `edit --save` makes the patch of it."""
    from vllm_series.commands.edit import new as command

    dispatch("new", as_json, lambda out: command(out, series_dir, name, title, before, after, into, index))


@app.command(rich_help_panel=MAINTAIN)
def edit(
    name: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(metavar="NAME", help="The patch to open.", show_default=False),
    ] = None,
    save: Annotated[bool, typer.Option("--save", help="Make the patch anew, apply the rest to it.")] = False,
    abort: Annotated[bool, typer.Option("--abort", help="Throw the checkout away.")] = False,
    onto: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--onto",
            metavar="REF",
            help="Edit it for this supported base.",
            show_default=False,
            callback=as_tags,
        ),
    ] = None,
    into: Into = None,
    three_way: ThreeWay = False,
    index: Index = "",
    series_dir: Folder = None,
    as_json: Json = False,
) -> None:
    """Open a patch in a checkout, and save it when it is done; alone, say what is open.

    The checkout has the series up to the patch. Change files, amend the commit or add commits to it; --save
    takes all of it, and applies the patches behind it to the result.
    """
    from vllm_series.commands.edit import abort as aborted
    from vllm_series.commands.edit import save as saved
    from vllm_series.commands.edit import show, start
    from vllm_series.errors import UsageError

    def body(out: Output) -> int:
        if save + abort + (name is not None) > 1:
            raise UsageError("a name, --save and --abort exclude each other")
        if save:
            return saved(out, series_dir, three_way, index)
        if abort:
            return aborted(out, series_dir)
        return start(out, series_dir, name, onto, into, index) if name else show(out, series_dir)

    dispatch("edit", as_json, body)


@app.command(rich_help_panel=MAINTAIN)
def move(
    name: Name,
    before: Before = None,
    after: After = None,
    three_way: ThreeWay = False,
    dry_run: DryRun = False,
    index: Index = "",
    series_dir: Folder = None,
    as_json: Json = False,
) -> None:
    """Give a patch another place in the series; the patched files stay what they are."""
    from vllm_series.commands.move import move as command
    from vllm_series.commands.rework import Options

    options = Options(three_way, dry_run, index)
    dispatch("move", as_json, lambda out: command(out, series_dir, name, before, after, options))


@app.command(rich_help_panel=MAINTAIN)
def drop(
    names: SomeNames,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; goes to dropped.toml.")],
    with_dependents: Annotated[
        bool, typer.Option("--with-dependents", help="Also drop the patches that need them.")
    ] = False,
    three_way: ThreeWay = False,
    dry_run: DryRun = False,
    index: Index = "",
    series_dir: Folder = None,
    as_json: Json = False,
) -> None:
    """Take patches out of the series, and write down why."""
    from vllm_series.commands.drop import drop as command
    from vllm_series.commands.rework import Options

    options = Options(three_way, dry_run, index)
    dispatch("drop", as_json, lambda out: command(out, series_dir, names, reason, with_dependents, options))


@app.command(rich_help_panel=MAINTAIN)
def fold(
    names: SomeNames,
    into: Annotated[str, typer.Option("--into", metavar="NAME", help="The patch that takes them in.")],
    three_way: ThreeWay = False,
    dry_run: DryRun = False,
    index: Index = "",
    series_dir: Folder = None,
    as_json: Json = False,
) -> None:
    """Take patches into another one; the patched files stay what they are."""
    from vllm_series.commands.fold import fold as command
    from vllm_series.commands.rework import Options

    options = Options(three_way, dry_run, index)
    dispatch("fold", as_json, lambda out: command(out, series_dir, names, into, options))


@app.command(rich_help_panel=MAINTAIN)
def split(
    name: Name,
    new: Annotated[str, typer.Argument(metavar="NEW", help="Name of the new patch.")],
    parts: Annotated[
        list[str],
        typer.Argument(metavar="PART...", help="What goes into it: a file, a folder, or FILE:1,3 for hunks."),
    ],
    title: Annotated[str, typer.Option("--title", metavar="TEXT", help="Its title.")],
    before: Annotated[
        bool, typer.Option("--before", help="Put the new patch before the rest, not behind it.")
    ] = False,
    three_way: ThreeWay = False,
    dry_run: DryRun = False,
    index: Index = "",
    series_dir: Folder = None,
    as_json: Json = False,
) -> None:
    """Make a new patch of some files or hunks of a patch; the patched files stay what they are."""
    from vllm_series.commands.rework import Options
    from vllm_series.commands.split import split as command

    options = Options(three_way, dry_run, index)
    dispatch("split", as_json, lambda out: command(out, series_dir, name, new, parts, title, before, options))
