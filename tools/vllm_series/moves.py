# SPDX-License-Identifier: Apache-2.0
"""Which moves a checkout has gone through, kept in its git directory so that they can be taken back.

The commits themselves are kept by git: HEAD's reflog names every one of them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from vllm_series.errors import PreconditionError
from vllm_series.git import Repository
from vllm_series.swap import write_file

#: How many moves are remembered.
KEPT = 200


@dataclass(frozen=True)
class Move:
    """One move of a checkout.

    Attributes:
        verb: The command.
        old: HEAD before.
        new: HEAD after.
        head: The branch that was checked out before, None for a detached HEAD.
        branch: The branch afterwards.
        branch_old: Where that branch pointed before, None if it did not exist.
        seconds: When, since the epoch.

    """

    verb: str
    old: str
    new: str
    head: str | None
    branch: str | None
    branch_old: str | None
    seconds: int

    @property
    def count(self) -> int:
        """How many moves it took back or did again."""
        return int(self.verb in ("undo", "redo"))


def _path(repository: Repository) -> Path:
    return repository.git_dir / "vllm-series-moves.json"


def read_moves(repository: Repository) -> list[Move]:
    """Every remembered move, the oldest first.

    Raises:
        PreconditionError: The file is damaged.

    """
    path = _path(repository)
    if not path.exists():
        return []
    try:
        return [Move(**row) for row in json.loads(path.read_text("utf-8"))]
    except (ValueError, TypeError) as error:
        raise PreconditionError(
            f"{path} is no list of moves: {error}", hint="remove it; only undo and redo need it"
        ) from None


def remember(repository: Repository, move: Move) -> None:
    """Add a move; one that was remembered before a kill is not added again."""
    try:
        moves = read_moves(repository)
    except PreconditionError:
        moves = []  # A damaged list must not stop what has happened already.
    same = moves and (moves[-1].old, moves[-1].new, moves[-1].verb) == (move.old, move.new, move.verb)
    if not same:
        rows = [asdict(row) for row in (*moves, move)[-KEPT:]]
        write_file(_path(repository), (json.dumps(rows, indent=1) + "\n").encode())
