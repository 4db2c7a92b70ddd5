# SPDX-License-Identifier: Apache-2.0
"""What is remembered of a rebase between two runs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from vllm_series.errors import PreconditionError
from vllm_series.swap import write_file

SCHEMA = 1


@dataclass(frozen=True)
class Carried:
    """A patch that is in the new stack: ``how`` is clean, offset, merged or resolved."""

    name: str
    how: str


@dataclass(frozen=True)
class Gone:
    """A patch that the new base does without, and why."""

    name: str
    verdict: str
    reason: str


@dataclass(frozen=True)
class Paused:
    """Where a person is asked.

    Attributes:
        name: The patch; empty if it is about the result as a whole.
        verdict: What was found.
        evidence: What that rests on.
        ready: Whether the working tree is prepared; a kill may have come before.

    """

    name: str
    verdict: str
    evidence: str
    ready: bool = False


@dataclass(frozen=True)
class RebaseState:
    """A rebase under way.

    Attributes:
        ref: The release to rebase onto.
        source: The supported base whose patch files are carried over.
        old_base: Commit of ``source`` in the store.
        new_base: Commit of ``ref`` in the store.
        old_tip: The series on ``source``, as commits.
        tip: What there is of it on ``ref``.
        project: Tree of the patch directory when it began.
        vllm: A clone with upstream's history, empty if none was named.
        carried: The patches in ``tip``.
        gone: The patches that are not needed.
        paused: Where a person is asked. None if it can go on by itself: then nothing in the working tree
            counts any more.

    """

    ref: str
    source: str
    old_base: str
    new_base: str
    old_tip: str
    tip: str
    project: str
    vllm: str = ""
    carried: tuple[Carried, ...] = ()
    gone: tuple[Gone, ...] = ()
    paused: Paused | None = None

    @property
    def settled(self) -> frozenset[str]:
        """Names of the patches that are dealt with."""
        return frozenset([row.name for row in self.carried] + [row.name for row in self.gone])

    def how(self, name: str) -> str:
        """How a carried patch came over; ``resolved`` if a person did it."""
        return next((row.how for row in self.carried if row.name == name), "resolved")

    def dropped(self, name: str, verdict: str, reason: str) -> RebaseState:
        """The state with one more patch that is not needed."""
        return replace(self, gone=(*self.gone, Gone(name, verdict, reason)), paused=None)

    def write(self, path: Path) -> None:
        """Write the state in one step."""
        write_file(path, (json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2) + "\n").encode())


def read_state(path: Path) -> RebaseState | None:
    """The rebase under way, None if there is none.

    Raises:
        PreconditionError: The file is damaged, or another version's.

    """
    if not path.exists():
        return None
    try:
        row = json.loads(path.read_text("utf-8"))
        if row.pop("schema") != SCHEMA:
            raise PreconditionError(
                f"{path} was written by another version of vllm-series",
                hint="finish the rebase with that one",
            )
        row["carried"] = tuple(Carried(**item) for item in row["carried"])
        row["gone"] = tuple(Gone(**item) for item in row["gone"])
        row["paused"] = Paused(**row["paused"]) if row["paused"] else None
        return RebaseState(**row)
    except (ValueError, TypeError, KeyError) as error:
        raise PreconditionError(
            f"{path} is no state of a rebase: {error!r}", hint="vllm-series rebase --abort"
        ) from None
