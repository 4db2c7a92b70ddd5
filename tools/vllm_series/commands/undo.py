# SPDX-License-Identifier: Apache-2.0
"""``vllm-series undo`` and ``redo``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vllm_series import undo as history
from vllm_series.errors import EXIT_OK
from vllm_series.oplog import Operation
from vllm_series.output import Output
from vllm_series.project import Project, find_project


def undo(out: Output, series_dir: Path | None, count: int) -> int:
    """Take the last operations on the patch directory back."""
    project = find_project(series_dir)
    return _finish(out, project, "took back", history.undo(project, count))


def redo(out: Output, series_dir: Path | None, count: int) -> int:
    """Do undone operations again."""
    project = find_project(series_dir)
    return _finish(out, project, "did again", history.redo(project, count))


def _finish(out: Output, project: Project, did: str, operations: Sequence[Operation]) -> int:
    for operation in operations:
        out.say(f"{did} {operation.number}: {operation.verb}: {operation.text}")
    return out.finish(
        EXIT_OK,
        root=str(project.root),
        operations=[{"number": o.number, "verb": o.verb, "text": o.text} for o in operations],
    )
