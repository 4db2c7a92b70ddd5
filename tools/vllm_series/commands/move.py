# SPDX-License-Identifier: Apache-2.0
"""``vllm-series move``."""

from __future__ import annotations

from pathlib import Path

from vllm_series.commands.rework import Bench, Options, Shape, existing, rework
from vllm_series.errors import UsageError
from vllm_series.output import Output
from vllm_series.project import Project, find_project
from vllm_series.recipes import ordered


def move(
    out: Output, series_dir: Path | None, name: str, before: str | None, after: str | None, options: Options
) -> int:
    """Give a patch another place in the series."""
    project = find_project(series_dir)
    name = existing(project, name)
    place = place_of(project, before, after)
    if place is None:
        raise UsageError("move needs --before or --after", hint=f"vllm-series move {name} --before OTHER")
    if name == (before or after):
        raise UsageError(f"{name} cannot stand before or after itself")

    def make(now: Project, _: Bench) -> Shape:
        where = now.series.without(name).behind(after) if after else before
        series = now.series.moved(name, before=where)
        return Shape(series, ordered(series.names), same_result=True)

    return rework(out, project, "move", f"move {name} {place}", make, options)


def place_of(project: Project, before: str | None, after: str | None) -> str | None:
    """A place in the series in words, checked; None if none is named."""
    if before and after:
        raise UsageError("--before and --after exclude each other")
    if before:
        return f"before {existing(project, before)}"
    return f"behind {existing(project, after)}" if after else None
