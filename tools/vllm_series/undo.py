# SPDX-License-Identifier: Apache-2.0
"""Take operations on the patch directory, or moves of a checkout, back, or do them again.

Only what the log knows is ever replaced: files that somebody has edited since, or between two operations,
stop it.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from vllm_series.checkout import move
from vllm_series.errors import PreconditionError, UsageError
from vllm_series.git import NO_COMMIT, Repository
from vllm_series.moves import Move, read_moves
from vllm_series.oplog import Change, History, Operation, R, read_files, read_history, recorded, replay
from vllm_series.output import plural
from vllm_series.privatefolder import private_folder
from vllm_series.project import Project
from vllm_series.tree import File


def undo(project: Project, count: int) -> list[Operation]:
    """Take the last ``count`` operations back; returns them, the newest first.

    Raises:
        UsageError: There are not so many.
        PreconditionError: Files were edited by hand since, which would be lost.

    """
    with recorded(project, "undo", f"take back {plural(count, 'operation')}", count=count) as change:
        history = read_history(change.project.root)
        found = _last(history.done, count, "undo")
        tree = history.tree
        for operation in found:
            _require(change, history, tree, operation.after, operation)
            tree = operation.before
        _restore(change, tree)
    return found


def redo(project: Project, count: int) -> list[Operation]:
    """Do the last ``count`` undone operations again; returns them in their order.

    Raises:
        UsageError: There are not so many.
        PreconditionError: Files were edited by hand since, which would be lost.

    """
    with recorded(project, "redo", f"do {plural(count, 'operation')} again", count=count) as change:
        history = read_history(change.project.root)
        found = _last(history.undone, count, "redo")
        tree = history.tree
        for operation in found:
            _require(change, history, tree, operation.before, operation)
            tree = operation.after
        _restore(change, tree)
    return found


def require_moves(repository: Repository, where: Path, count: int, verb: str) -> None:
    """Raise :class:`UsageError` unless there are ``count`` moves of a checkout to undo or redo."""
    done, undone = replay(read_moves(repository))
    _last(done if verb == "undo" else undone, count, verb, where)


def undo_move(repository: Repository, where: Path) -> Move:
    """Bring a checkout back to before its last move.

    Raises:
        UsageError: There is none.
        PreconditionError: HEAD was moved by hand since, or files in the way are dirty.

    """
    done, _ = replay(read_moves(repository))
    (last,) = _last(done, 1, "undo", where)
    _require_head(repository, where, last.new, last.branch, last)
    move(repository, last.old, last.head, "vllm-series undo")
    if last.branch is not None and last.branch != last.head:
        ref = f"refs/heads/{last.branch}"
        repository.update_refs([(ref, last.branch_old or NO_COMMIT, last.new)], "vllm-series undo")
    return last


def redo_move(repository: Repository, where: Path) -> Move:
    """Do the last undone move of a checkout again.

    Raises:
        UsageError: There is none.
        PreconditionError: HEAD was moved by hand since, or files in the way are dirty.

    """
    _, undone = replay(read_moves(repository))
    (last,) = _last(undone, 1, "redo", where)
    _require_head(repository, where, last.old, last.head, last)
    move(repository, last.new, last.branch, "vllm-series redo")
    return last


def _require_head(repository: Repository, where: Path, commit: str, branch: str | None, last: Move) -> None:
    if repository.find_commit("HEAD") != commit or repository.head_branch() != branch:
        there = f"{branch} at {commit[:12]}" if branch else commit[:12]
        raise PreconditionError(
            f"{where} was moved by hand since the {last.verb}: HEAD is not {there}",
            hint=f"go there first, or use git's own way back: git -C {where} reflog",
        )
    if repository.find_commit(last.old) is None or repository.find_commit(last.new) is None:
        raise PreconditionError(f"{where} no longer has the commits of the {last.verb}")


def _last(operations: Sequence[R], count: int, verb: str, where: Path | None = None) -> list[R]:
    if count < 1:
        raise UsageError(f"{count} operations cannot be meant", hint=f"name a number from 1: {verb} -n 1")
    if count > len(operations):
        of = f" --vllm {shlex.quote(str(where))}" if where is not None else ""
        there = plural(len(operations), "operation") if operations else "nothing"
        raise UsageError(f"there is {there} to {verb}", hint=f"see: vllm-series log{of}")
    return list(reversed(operations[len(operations) - count :]))


def _require(change: Change, history: History, tree: str, expected: str, operation: Operation) -> None:
    if tree == expected:
        return
    log = private_folder(change.project.root).ensure_log()
    paths = log.changed_paths(expected, tree) if tree != history.tree else _edited(change, expected)
    shown = ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
    since = "since" if tree == history.tree else "between two operations"
    raise PreconditionError(
        f"{shown}: edited by hand {since}; {operation.verb} (operation {operation.number}) does not fit "
        "any more",
        hint="take the edits back (git diff shows them), or make the change that you want by hand",
        paths=paths,
    )


def _edited(change: Change, tree: str) -> list[str]:
    kept = private_folder(change.project.root).ensure_log().all_entries(tree)
    here = read_files(change.project.root)
    old = {path: (entry.mode, entry.oid) for path, entry in kept.items()}
    new = {path: (file.mode, file.oid) for path, file in here.items()}
    return sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))


def _restore(change: Change, tree: str) -> None:
    """Let the files become those of a tree of the log."""
    log = private_folder(change.project.root).ensure_log()
    entries = log.all_entries(tree)
    contents = log.objects(entry.oid for entry in entries.values())
    for path in read_files(change.project.root).keys() - entries.keys():
        change.remove(path)
    for path, entry in entries.items():
        change.put(path, File(entry.mode, contents[entry.oid]))
