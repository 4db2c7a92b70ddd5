# SPDX-License-Identifier: Apache-2.0
"""``vllm-series undo`` and ``redo``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from vllm_series import undo as history
from vllm_series.checkout import opened
from vllm_series.errors import EXIT_OK
from vllm_series.git import Repository
from vllm_series.moves import Move
from vllm_series.oplog import Operation
from vllm_series.output import Output
from vllm_series.project import Project, find_project


def undo(out: Output, series_dir: Path | None, count: int, vllm: Path | None) -> int:
    """Take the last operations on the patch directory, or the last moves of a checkout, back."""
    if vllm is not None:
        return _moves(out, vllm, count, "undo", "took back", history.undo_move)
    project = find_project(series_dir)
    return _finish(out, project, "took back", history.undo(project, count))


def redo(out: Output, series_dir: Path | None, count: int, vllm: Path | None) -> int:
    """Do undone operations or moves again."""
    if vllm is not None:
        return _moves(out, vllm, count, "redo", "did again", history.redo_move)
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


def _moves(
    out: Output, vllm: Path, count: int, verb: str, did: str, step: Callable[[Repository, Path], Move]
) -> int:
    moves = []
    with opened(vllm.absolute(), out.note) as repository:
        history.require_moves(repository, vllm, count, verb)
        for _ in range(count):
            moves.append(step(repository, vllm))
            out.say(f"{did} {moves[-1].verb}: {moves[-1].old[:12]} to {moves[-1].new[:12]}")
    return out.finish(EXIT_OK, folder=str(vllm), moves=[vars(move) for move in moves])
