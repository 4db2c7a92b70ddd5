# SPDX-License-Identifier: Apache-2.0
"""A person's checkout: whether it may be moved, moving it once, and what a kill left behind.

Files cannot all change in one step. A journal in the git directory says what is under way; whoever opens
the checkout next finishes the move if HEAD is there already, and takes it back if not.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from vllm_series.build import drop_build_ref
from vllm_series.errors import PreconditionError
from vllm_series.git import NO_COMMIT, CommitInfo, Repository, blob_id, path_bytes
from vllm_series.interrupt import point_of_no_return
from vllm_series.locks import locked
from vllm_series.moves import Move, remember
from vllm_series.swap import write_file

NAME_TRAILER = "Patch-Name"


@dataclass(frozen=True)
class Journal:
    """A move under way.

    Attributes:
        old: HEAD before.
        new: HEAD after.
        branch: The branch to be on afterwards, None for a detached HEAD.
        branch_old: Where that branch pointed, None if it did not exist.
        paths: Every path that changes.
        verb: The command.
        head: The branch that was checked out before, None for a detached HEAD.

    """

    old: str
    new: str
    branch: str | None
    branch_old: str | None
    paths: tuple[str, ...]
    verb: str = ""
    head: str | None = None

    @property
    def move(self) -> Move:
        """What is remembered of it."""
        return Move(self.verb, self.old, self.new, self.head, self.branch, self.branch_old, int(time.time()))


def _journal_path(repository: Repository) -> Path:
    return repository.git_dir / "vllm-series-move.json"


@contextmanager
def opened(path: Path, note: Callable[[str], None] | None = None) -> Iterator[Repository]:
    """The repository at ``path``, locked against other runs, with interrupted moves cleared up.

    Args:
        path: Its top level.
        note: Told in one line what was cleared up.

    """
    repository = Repository.open(path)
    with locked(repository.common_dir / "vllm-series.lock", str(repository.where)):
        done = recover(repository)
        if done is not None and note is not None:
            note(f"an interrupted run was {done}")
        try:
            yield repository
        finally:
            drop_build_ref(repository)


def interrupted(repository: Repository) -> bool:
    """Whether a move was killed, and :func:`opened` has to clear up."""
    return _journal_path(repository).exists()


def recover(repository: Repository) -> str | None:
    """Clear up after a move that was killed; says what was done, None if there was nothing."""
    drop_build_ref(repository)
    path = _journal_path(repository)
    if not path.exists():
        return None
    row = json.loads(path.read_text())
    journal = Journal(**{**row, "paths": tuple(row["paths"])})
    head = repository.find_commit("HEAD")
    if head not in (journal.old, journal.new):
        path.unlink()
        return "left as it is, since HEAD was moved elsewhere since"
    # Git inherits the lock, so no git of ours is alive, and these lock files are a dead one's.
    (repository.git_dir / "index.lock").unlink(missing_ok=True)
    (repository.git_dir / "HEAD.lock").unlink(missing_ok=True)
    if journal.branch is not None:
        (repository.common_dir / "refs" / "heads" / f"{journal.branch}.lock").unlink(missing_ok=True)
    saved = _save_edits(repository, journal)
    done = head == journal.new and repository.head_branch() == journal.branch
    repository.restore(journal.new if done else journal.old, journal.paths)
    if not done and journal.branch is not None:
        now = repository.find_commit(f"refs/heads/{journal.branch}")
        if now == journal.new and journal.branch_old != journal.new:
            repository.update_refs(
                [(f"refs/heads/{journal.branch}", journal.branch_old or NO_COMMIT, journal.new)],
                "vllm-series: take back an interrupted move",
            )
    if done:
        remember(repository, journal.move)
    path.unlink()
    text = "finished" if done else "taken back"
    return f"{text}; files edited since were put into {saved}" if saved else text


def _save_edits(repository: Repository, journal: Journal) -> Path | None:
    """Copy files that a person has edited since the kill; says where to, None if there are none."""
    before, after = (repository.entries(c, journal.paths) for c in (journal.old, journal.new))
    contents = repository.objects({e.oid for e in (*before.values(), *after.values()) if e.kind == "blob"})
    folder = repository.git_dir / "vllm-series-saved" / journal.new[:12]
    found = False
    for path in journal.paths:
        name = os.fsdecode(path_bytes(path))
        file = repository.where / name
        if file.is_symlink() or not file.is_file():
            continue
        content = file.read_bytes()
        sides = [side[path] for side in (before, after) if path in side]
        known = blob_id(content) in {side.oid for side in sides}
        # Git was killed while it wrote the file, or it converts line ends.
        texts = [contents.get(side.oid, b"") for side in sides]
        if known or any(t.startswith(content) or t == content.replace(b"\r\n", b"\n") for t in texts):
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        found = True
    return folder if found else None


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
        _require_free(repository, branch)
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
        verb=reason.removeprefix("vllm-series "),
        head=repository.head_branch(),
    )
    write_file(_journal_path(repository), json.dumps(asdict(journal)).encode())
    try:
        repository.switch(new, branch)
        point_of_no_return()
    except BaseException:
        done = recover(repository)
        if done is None or not done.startswith("finished"):
            raise
    else:
        remember(repository, journal.move)
    _journal_path(repository).unlink(missing_ok=True)
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
        _require_free(repository, branch)
    dirty = repository.dirty_paths(paths) if paths else []
    if dirty:
        shown = ", ".join(dirty[:3]) + (f" and {len(dirty) - 3} more" if len(dirty) > 3 else "")
        raise PreconditionError(
            f"{where}: {shown} would be overwritten",
            hint="commit these changes, or put them aside with: git stash --include-untracked",
            paths=dirty,
        )


def _require_free(repository: Repository, branch: str) -> None:
    elsewhere = repository.branch_worktrees().get(branch)
    if elsewhere is not None and elsewhere != repository.git_dir:
        raise PreconditionError(
            f"the branch {branch} is checked out in {elsewhere}",
            hint=f"name another one with --branch, or use: --vllm {elsewhere}",
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

    @property
    def edited(self) -> dict[str, CommitInfo]:
        """The commits that a person has changed, by patch name.

        This tool commits with the author as committer; git puts in whoever amends or rebases.
        """
        pairs = zip(self.names, self.commits, strict=True)
        return {name: commit for name, commit in pairs if commit.committer != commit.author}


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
