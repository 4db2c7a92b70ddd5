# SPDX-License-Identifier: Apache-2.0
"""``vllm-series log``."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from vllm_series.errors import EXIT_OK
from vllm_series.oplog import read_history
from vllm_series.output import Output
from vllm_series.project import find_project


def log(out: Output, series_dir: Path | None) -> int:
    """List the operations on the patch directory, the newest first."""
    project = find_project(series_dir)
    history = read_history(project.root)
    done = {operation.number for operation in history.done}
    undone = {operation.number for operation in history.undone}
    rows = []
    for operation in reversed(history.operations):
        state = "done" if operation.number in done else "undone" if operation.number in undone else ""
        rows.append((operation, state))
    out.table(
        ("number", "when", "verb", "what", "state"),
        [
            (
                str(operation.number),
                datetime.fromtimestamp(operation.seconds).isoformat(" ", "seconds"),
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
