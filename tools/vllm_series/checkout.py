# SPDX-License-Identifier: Apache-2.0
"""A person's checkout: whether it may be moved, moving it once, and what a kill left behind.

Files cannot all change in one step. A journal in the git directory says what is under way; whoever opens
the checkout next finishes the move if HEAD is there already, and takes it back if not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from vllm_series.errors import PreconditionError
from vllm_series.git import CommitInfo, Repository
from vllm_series.locks import locked
from vllm_series.swap import write_file

NAME_TRAILER = "Patch-Name"
NO_COMMIT = "0" * 40


@dataclass(frozen=True)
class Journal:
    """A move under way.

    Attributes:
        old: HEAD before.
        new: HEAD after.
        branch: The branch to be on afterwards, None for a detached HEAD.
        branch_old: Where that branch pointed, None if it did not exist.
        paths: Every path that changes.

    """

    old: str
    new: str
    branch: str | None
    branch_old: str | None
    paths: tuple[str, ...]


def _journal_path(repository: Repository) -> Path:
    return repository.git_dir / "vllm-series-move.json"


@contextmanager
def opened(path: Path) -> Iterator[Repository]:
    """The repository at ``path``, locked against other runs, with interrupted moves cleared up."""
    repository = Repository.open(path)
    with locked(repository.common_dir / "vllm-series.lock", str(repository.where)):
        recover(repository)
        yield repository


def recover(repository: Repository) -> str | None:
    """Clear up after a move that was killed; says what was done, None if there was nothing."""
    path = _journal_path(repository)
    if not path.exists():
        return None
    # The lock was inherited by git, so no git of ours is alive, and this lock file is a dead one's.
    (repository.git_dir / "index.lock").unlink(missing_ok=True)
    row = json.loads(path.read_text())
    journal = Journal(**{**row, "paths": tuple(row["paths"])})
    done = repository.find_commit("HEAD") == journal.new and repository.head_branch() == journal.branch
    repository.restore(journal.new if done else journal.old, journal.paths)
    if not done and journal.branch is not None:
        now = repository.find_commit(f"refs/heads/{journal.branch}")
        if now == journal.new and journal.branch_old != journal.new:
            (repository.common_dir / "refs" / "heads" / f"{journal.branch}.lock").unlink(missing_ok=True)
            repository.update_refs(
                [(f"refs/heads/{journal.branch}", journal.branch_old or NO_COMMIT, journal.new)],
                "vllm-series: take back an interrupted move",
            )
    path.unlink()
    return "finished" if done else "taken back"


def move(repository: Repository, new: str, branch: str | None, reason: str) -> list[str]:
    """Bring a checkout to commit ``new`` on ``branch``, files, index and HEAD.

    Args:
        repository: The checkout; a bare one has its branch moved alone.
        new: The commit.
        branch: The branch to be on, made or moved; None for a detached HEAD.
        reason: For the reflog.

    Returns:
        The changed paths.

    Raises:
        PreconditionError: An operation is in progress, a file in the way is dirty or not tracked, or
            the branch is checked out elsewhere. Nothing has been changed.

    """
    if repository.work_tree is None:
        if branch is None:
            raise PreconditionError(
                f"{repository.where} is bare and has no branch to move",
                hint="name one with --branch",
            )
        repository.update_refs([(f"refs/heads/{branch}", new, None)], reason)
        return []
    old = repository.find_commit("HEAD")
    if old is None:
        raise PreconditionError(f"{repository.where} has no commit yet", hint="check out a vLLM release")
    paths = repository.changed_paths(old, new)
    require_movable(repository, paths, branch)
    if old == new and repository.head_branch() == branch:
        return []
    journal = Journal(
        old=old,
        new=new,
        branch=branch,
        branch_old=repository.find_commit(f"refs/heads/{branch}") if branch else None,
        paths=tuple(paths),
    )
    write_file(_journal_path(repository), json.dumps(asdict(journal)).encode())
    try:
        repository.switch(new, branch)
    except BaseException:
        recover(repository)
        raise
    _journal_path(repository).unlink()
    return paths


def require_movable(repository: Repository, paths: Sequence[str], branch: str | None) -> None:
    """Raise unless ``paths`` can be changed and ``branch`` be taken."""
    where = repository.where
    operation = repository.operation()
    if operation is not None:
        raise PreconditionError(
            f"{where}: a {operation} is in progress",
            hint=f"finish or abort it first: git -C {where} status",
        )
    if (repository.git_dir / "index.lock").exists():
        raise PreconditionError(
            f"{where}: another git is at work (index.lock)", hint="wait until it has ended"
        )
    if branch is not None and branch != repository.head_branch():
        elsewhere = repository.branch_worktrees().get(branch)
        if elsewhere is not None:
            raise PreconditionError(
                f"the branch {branch} is checked out in {elsewhere}",
                hint="name another one with --branch",
            )
    dirty = repository.dirty_paths(paths) if paths else []
    if dirty:
        shown = ", ".join(dirty[:3]) + (f" and {len(dirty) - 3} more" if len(dirty) > 3 else "")
        raise PreconditionError(
            f"{where}: {shown} would be overwritten",
            hint="commit these changes, or put them aside with: git stash --include-untracked",
            paths=dirty,
        )


@dataclass(frozen=True)
class StackState:
    """The series commits on top of a checkout's HEAD.

    Attributes:
        base: The first commit below them.
        commits: The commits, the oldest first; each has a ``Patch-Name`` trailer.

    """

    base: str
    commits: tuple[CommitInfo, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Patch names in order."""
        return tuple(commit.trailer(NAME_TRAILER) or "" for commit in self.commits)

    def require_unedited(self, where: Path) -> None:
        """Raise if a person has changed one of the commits, whose work would be lost.

        This tool commits with the author as committer; git puts in whoever amends or rebases.
        """
        for commit in self.commits:
            if commit.committer != commit.author:
                name = commit.trailer(NAME_TRAILER)
                raise PreconditionError(
                    f"{where}: the commit {commit.oid[:12]} of {name} was edited by hand",
                    hint=f"take it into the patch files with: vllm-series refresh --from {where}",
                    patch=name,
                )


def read_stack(repository: Repository, tip: str) -> StackState:
    """Find the series commits at ``tip``."""
    found: list[CommitInfo] = []
    limit = 64
    while True:
        history = list(repository.commits(tip, limit))
        found = []
        for commit in history:
            if commit.trailer(NAME_TRAILER) is None or len(commit.parents) != 1:
                return StackState(commit.oid, tuple(reversed(found)))
            found.append(commit)
        if len(history) < limit:
            raise PreconditionError(f"every commit of {tip[:12]} is a series commit; there is no base")
        limit *= 4
