# SPDX-License-Identifier: Apache-2.0
"""``vllm-series log``."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from vllm_series.errors import EXIT_OK
from vllm_series.git import Repository
from vllm_series.moves import read_moves
from vllm_series.oplog import read_history, replay
from vllm_series.output import Output
from vllm_series.project import find_project


def log(out: Output, series_dir: Path | None, vllm: Path | None) -> int:
    """List the operations on the patch directory, or the moves of a checkout, the newest first."""
    if vllm is not None:
        return _moves(out, vllm)
    project = find_project(series_dir)
    history = read_history(project.root)
    done = {operation.number for operation in history.done}
    undone = {operation.number for operation in history.undone}
    rows = []
    for operation in reversed(history.operations):
        state = _state(operation.verb, operation.number in done, operation.number in undone)
        rows.append((operation, state))
    out.table(
        ("number", "when", "verb", "what", "state"),
        [
            (
                str(operation.number),
                _when(operation.seconds),
                operation.verb,
                operation.text,
                state,
            )
            for operation, state in rows
        ],
    )
    edited = bool(history.operations) and history.tree != history.operations[-1].after
    if edited:
        out.note("the files are not as the last operation left them: they were edited by hand since")
    return out.finish(
        EXIT_OK,
        root=str(project.root),
        edited=edited,
        operations=[
            {
                "number": operation.number,
                "verb": operation.verb,
                "text": operation.text,
                "seconds": operation.seconds,
                "state": state or None,
            }
            for operation, state in rows
        ],
    )


def _state(verb: str, done: bool, undone: bool) -> str:
    """``superseded`` was undone, and something else was done since: there is no redo of it any more."""
    if done or undone:
        return "done" if done else "undone"
    return "" if verb in ("undo", "redo") else "superseded"


def _when(seconds: int) -> str:
    return datetime.fromtimestamp(seconds).isoformat(" ", "seconds")


def _moves(out: Output, vllm: Path) -> int:
    moves = read_moves(Repository.open(vllm.absolute()))
    done, undone = replay(moves)
    rows = []
    for move in reversed(moves):
        state = _state(move.verb, move in done, move in undone)
        rows.append((_when(move.seconds), move.verb, move.old[:12], move.new[:12], move.branch or "-", state))
    out.table(("when", "verb", "from", "to", "branch", "state"), rows)
    return out.finish(EXIT_OK, folder=str(vllm), moves=[vars(move) for move in reversed(moves)])
