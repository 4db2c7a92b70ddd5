# SPDX-License-Identifier: Apache-2.0
"""``vllm-series diff``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from vllm_series.errors import EXIT_OK, UsageError
from vllm_series.output import Output
from vllm_series.patchfile import Patch
from vllm_series.privatefolder import private_folder
from vllm_series.project import Project, find_project
from vllm_series.seriesdiff import compare_series


def diff(out: Output, series_dir: Path | None, old: str, new: str | None, quiet: bool) -> int:
    """Compare two states of the series: supported bases, or revisions of the project's repository."""
    project = find_project(series_dir)
    sides = [_patches(project, old), _patches(project, new)]
    rows = compare_series(*sides)
    for row in rows:
        places = [f"{place or '-':>3}" for place in (row.old, row.new)]
        out.say(f"{places[0]} {row.mark} {places[1]}  {row.name}")
        if not quiet:
            for line in row.lines:
                out.say(f"      {line}")
    return out.finish(
        EXIT_OK,
        root=str(project.root),
        same=all(row.mark == "=" and row.old == row.new for row in rows),
        patches=[
            {"name": row.name, "mark": row.mark, "old": row.old, "new": row.new, "diff": list(row.lines)}
            for row in rows
        ],
    )


def _patches(project: Project, state: str | None) -> Sequence[Patch]:
    """The patches of a base, of a revision, or (None) as they stand for the pinned base."""
    if state is None:
        return project.patches(project.pinned)
    base = next((base for base in project.bases if base.ref == state), None)
    if base is not None:
        return project.patches(base)
    repository = private_folder(project.root).repository
    commit = repository.find_commit(state) if repository else None
    if repository is None or commit is None:
        raise UsageError(
            f"{state} is neither a supported base nor a revision of {project.root}",
            hint="supported: " + ", ".join(base.ref for base in project.bases),
        )
    entries = {
        path: entry
        for path, entry in repository.all_entries(commit).items()
        if path == "series" or path.startswith("patches/")
    }
    if "series" not in entries:
        raise UsageError(f"{project.root} has no series at {state}")
    contents = repository.objects(entry.oid for entry in entries.values())
    with tempfile.TemporaryDirectory(prefix="vllm-series-diff-") as name:
        for path, entry in entries.items():
            target = Path(name) / os.fsdecode(path.encode("utf-8", "surrogateescape"))
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(contents[entry.oid])
        then = Project(Path(name))
        return then.patches(then.pinned)
