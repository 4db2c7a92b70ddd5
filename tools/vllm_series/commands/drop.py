# SPDX-License-Identifier: Apache-2.0
"""``vllm-series drop``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vllm_series.commands.rework import Bench, Options, Shape, existing, one_line, rework
from vllm_series.dependencies import dependents, prerequisites
from vllm_series.errors import PreconditionError, UsageError
from vllm_series.facts import forget, lay_down
from vllm_series.oplog import Change
from vllm_series.output import Output
from vllm_series.patchfile import paths_of
from vllm_series.project import Project, find_project
from vllm_series.recipes import ordered
from vllm_series.tree import Snapshot


def drop(
    out: Output,
    series_dir: Path | None,
    names: Sequence[str],
    reason: str,
    with_dependents: bool,
    options: Options,
) -> int:
    """Take patches out of the series, and write down why."""
    project = find_project(series_dir)
    wanted = list(dict.fromkeys(existing(project, name) for name in names))
    if not reason.strip():
        raise UsageError("drop needs a reason", hint='say it with --reason "upstream has it since #123"')
    gone: dict[str, str] = {}

    def make(now: Project, bench: Bench) -> Shape:
        needed_by = _dependents(now, bench, wanted)
        if needed_by and not with_dependents:
            listed = ", ".join(f"{name} (needs {cause})" for name, cause in needed_by.items())
            raise PreconditionError(
                f"other patches need {', '.join(wanted)}: {listed}",
                hint="drop these too with --with-dependents, or edit them first",
                dependents=needed_by,
            )
        for name in now.series.names:
            if name in wanted:
                gone[name] = reason.strip()
            elif name in needed_by:
                gone[name] = f"{reason.strip()} (it needs {needed_by[name]})"
        series = now.series
        for name in gone:
            series = series.without(name)
        return Shape(series, ordered(series.names))

    def facts(change: Change) -> None:
        lay_down(change, gone)
        forget(change, [*gone])

    text = one_line(f"drop {', '.join(wanted)}: {reason}")
    return rework(out, project, "drop", text, make, options, facts)


def _dependents(project: Project, bench: Bench, names: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for ground in bench.grounds:
        patches = project.patches(ground.base)
        snapshot = Snapshot.at(bench.repository, ground.commit, paths_of(patches))
        found = {**dependents(prerequisites(snapshot, patches), names), **found}
    return found
