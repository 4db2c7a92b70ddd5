# SPDX-License-Identifier: Apache-2.0
"""``vllm-series import``."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from vllm_series.build import commit_stack
from vllm_series.commands.move import place_of
from vllm_series.commands.rework import Bench, Options, conclude, one_line, workbench
from vllm_series.commands.split import require_new
from vllm_series.errors import EXIT_NO, EXIT_OK, ConflictError, UsageError
from vllm_series.facts import introduce, write_restacked
from vllm_series.git import Repository
from vllm_series.incoming import Incoming, parse_person, read_commits, read_source
from vllm_series.intake import Fate, Intake, Taken, refused
from vllm_series.oplog import recorded
from vllm_series.output import Output, plural
from vllm_series.patchfile import Patch, paths_of
from vllm_series.project import Project, find_project
from vllm_series.recipes import inserted
from vllm_series.restack import Restacked, restack
from vllm_series.rules import require_origin
from vllm_series.series import Series
from vllm_series.stack import apply_all
from vllm_series.tree import Snapshot


@dataclass(frozen=True)
class ImportOptions:
    """The arguments of ``import``, as documented on the command line."""

    sources: tuple[str, ...]
    vllm: Path | None = None
    name: str = ""
    before: str | None = None
    after: str | None = None
    author: str = ""
    origin: str = ""
    strip: int | None = None
    common: Options = field(default_factory=Options)


def import_(out: Output, series_dir: Path | None, options: ImportOptions) -> int:
    """Take foreign patches into the series: all of them, or none."""
    project = find_project(series_dir)
    place = place_of(project, options.before, options.after) or "at the end"
    if options.origin:
        require_origin(options.origin)
    incoming = _read(options)
    if options.name:
        if len(incoming) != 1:
            raise UsageError(f"--name is for one patch, and there are {len(incoming)}")
        require_new(project, options.name)
        incoming = [replace(incoming[0], name=options.name)]
    text = one_line(f"import {plural(len(incoming), 'patch')} from {', '.join(options.sources)} {place}")
    if options.common.dry_run:
        with workbench(out, project, options.common.index) as bench:
            rows, restacked, _ = _take_in(out, project, bench, incoming, options)
        return _finish(out, project, rows, restacked, None)
    with (
        workbench(out, project, options.common.index) as bench,
        recorded(project, "import", text) as change,
    ):
        rows, restacked, series = _take_in(out, change.project, bench, incoming, options)
        write_restacked(change, restacked, series.render())
        introduce(change, [row.name for row in rows if row.fate in (Fate.CLEAN, Fate.MERGED)])
    return _finish(out, project, rows, restacked, change.number)


def _read(options: ImportOptions) -> list[Incoming]:
    if options.vllm is not None:
        repository = Repository.open(options.vllm.absolute())
        return [one for source in options.sources for one in read_commits(repository, source)]
    author = parse_person(options.author) if options.author else None
    found = []
    for source in options.sources:
        path = Path(source)
        if not path.exists():
            hint = "name a file or a folder"
            if re.fullmatch(r"[0-9a-f]{7,40}|\S+\.\.\S*", source):
                hint = f"for a commit or range name its clone: vllm-series import {source} --vllm PATH"
            raise UsageError(f"{source} does not exist", hint=hint)
        found += read_source(path, author, options.strip)
    return found


def _take_in(
    out: Output, project: Project, bench: Bench, incoming: Sequence[Incoming], options: ImportOptions
) -> tuple[list[Taken], Restacked, Series]:
    before = options.before or (project.series.behind(options.after) if options.after else None)
    pinned = bench.grounds[0]
    below = project.patches(pinned.base)
    if before is not None:
        order = project.series.names
        below = [patch for patch in below if order.index(patch.name) < order.index(before)]
    tip = _tip(bench.repository, pinned.commit, below)
    files = {file.rpartition("/")[2].removesuffix(".patch") for file in project.files}
    known = {name: project.texts(name) for name in project.series.names}
    intake = Intake(bench.repository, tip, {*project.series.names, *files}, options.origin, known)
    with _progress(out, incoming) as rows_in:
        rows = intake.run(rows_in)
    bad = refused(rows, three_way=options.common.three_way)
    if bad:
        _report(out, rows)
        raise _refusal(rows, bad, pinned.base.ref)
    patches = intake.patches()
    series = project.series
    for patch in patches:
        series = series.inserted(patch.name, before)
    restacked = restack(
        project,
        bench.repository,
        bench.grounds,
        inserted(patches, series.names),
        series.names,
        three_way=options.common.three_way,
    )
    return rows, restacked, series


def _tip(repository: Repository, commit: str, patches: Sequence[Patch]) -> str:
    snapshot = Snapshot.at(repository, commit, paths_of(patches))
    applications, _ = apply_all(snapshot, patches)
    if applications and not applications[-1].ok:
        failed = applications[-1]
        raise ConflictError(
            f"{failed.patch.name} of the series does not apply itself: {failed.first_problem()}",
            hint="see where it stands: vllm-series status",
        )
    commits = commit_stack(repository, commit, applications)
    return commits[-1] if commits else commit


def _refusal(rows: Sequence[Taken], bad: Sequence[Taken], base: str) -> ConflictError:
    counts = Counter(row.fate for row in bad)
    kinds = ((Fate.CONFLICT, "in conflict"), (Fate.MERGED, "that only a three-way merge applies"))
    words = [f"{counts[fate]} {text}" for fate, text in kinds if counts[fate]]
    hint = "merge what has drifted with --3way" if Fate.CONFLICT not in counts else "mend these patches first"
    return ConflictError(
        f"{len(bad)} of {plural(len(rows), 'patch')} would not apply to {base}: {', '.join(words)}; "
        "nothing was imported",
        hint=hint,
        patches=_rows(rows),
    )


def _finish(
    out: Output, project: Project, rows: Sequence[Taken], restacked: Restacked, number: int | None
) -> int:
    _report(out, rows)
    taken = [row for row in rows if row.fate in (Fate.CLEAN, Fate.MERGED)]
    if not taken:
        there = any(row.fate is Fate.PRESENT for row in rows)
        out.say(f"nothing to import: {'all of it is there already' if there else 'it changes nothing'}")
        return out.finish(
            EXIT_OK if there else EXIT_NO, root=str(project.root), operation=None, patches=_rows(rows)
        )
    for row in taken:
        for note in row.notes:
            out.note(f"{row.name}: {note}")
    done = "would import" if number is None else "ok: imported"
    return conclude(
        out, project, f"{done} {plural(len(taken), 'patch')}", restacked, number, patches=_rows(rows)
    )


def _report(out: Output, rows: Sequence[Taken]) -> None:
    shown = [
        (row.incoming.label, row.name, f"{row.fate}" + (f": {row.detail}" if row.detail else ""))
        for row in rows
    ]
    out.table(("from", "patch", "result"), shown)


def _rows(rows: Sequence[Taken]) -> list[dict[str, object]]:
    return [
        {
            "from": row.incoming.label,
            "name": row.name,
            "result": row.fate,
            "detail": row.detail,
            "notes": list(row.notes),
        }
        for row in rows
    ]


@contextmanager
def _progress(out: Output, incoming: Sequence[Incoming]) -> Iterator[Iterable[Incoming]]:
    """The patches, with a bar on a terminal."""
    if out.json or not sys.stderr.isatty():
        yield incoming
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        yield bar.track(incoming, description="applying")
