# SPDX-License-Identifier: Apache-2.0
"""``vllm-series fold``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vllm_series.commands.rework import Bench, Options, Shape, existing, rework
from vllm_series.errors import UsageError
from vllm_series.facts import forget
from vllm_series.output import Output
from vllm_series.project import Project, find_project
from vllm_series.recipes import folded, require_foldable


def fold(out: Output, series_dir: Path | None, names: Sequence[str], into: str, options: Options) -> int:
    """Take patches into another one, whose name and message stay."""
    project = find_project(series_dir)
    into = existing(project, into)
    wanted = list(dict.fromkeys(existing(project, name) for name in names))
    if into in wanted:
        raise UsageError(f"{into} cannot be folded into itself")

    def make(now: Project, _: Bench) -> Shape:
        series = now.series
        for base in now.bases:
            require_foldable(now.patches(base), series.names, wanted, into)
        for name in wanted:
            series = series.without(name)
        return Shape(series, folded(wanted, into), same_result=True)

    text = f"fold {', '.join(wanted)} into {into}"
    return rework(out, project, "fold", text, make, options, lambda change: forget(change, wanted))
