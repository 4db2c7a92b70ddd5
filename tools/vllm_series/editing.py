# SPDX-License-Identifier: Apache-2.0
"""A patch that is open in a checkout: what is remembered of it, and what has become of it there.

The state lies in the project's private folder while the patch is open. The checkout is a repository of its
own: nothing breaks if it is deleted by hand or the cache is emptied.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from vllm_series.checkout import NAME_TRAILER
from vllm_series.errors import PreconditionError
from vllm_series.git import CommitInfo, Ident, Repository
from vllm_series.messages import with_trailers
from vllm_series.newtree import staging_of
from vllm_series.patchfile import Patch
from vllm_series.privatefolder import private_folder
from vllm_series.refresh import export
from vllm_series.swap import write_file

SCHEMA = 1
VERB = "edit"
#: In the git directory of a checkout that this tool may remove.
_MARK = "vllm-series-edit"


@dataclass(frozen=True)
class Session:
    """A patch that is open.

    Attributes:
        name: The patch.
        base: The supported base that it is edited for.
        folder: The checkout.
        start: The commit below the patch there.
        sha256: Digest of the patch file when it was opened, empty for a new patch.
        title: Title of a new patch, empty for one that exists.
        before: The patch that a new one stands before, None for the end.

    """

    name: str
    base: str
    folder: str
    start: str
    sha256: str = ""
    title: str = ""
    before: str | None = None

    @property
    def new(self) -> bool:
        """Whether the patch does not exist yet."""
        return not self.sha256


def _state(root: Path) -> Path:
    return private_folder(root).state_of(VERB)


def read_session(root: Path) -> Session | None:
    """The patch of a project that is open, or None.

    Raises:
        PreconditionError: Another version of this tool has written the state.

    """
    path = _state(root)
    if not path.is_file():
        return None
    try:
        row = json.loads(path.read_text("utf-8"))
        if row.pop("schema") != SCHEMA:
            raise ValueError("another schema")
        return Session(**row)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise PreconditionError(
            f"{path} was not written by this version of vllm-series",
            hint="finish with the version that began, or remove that file to give the edit up",
        ) from None


def require_session(root: Path) -> Session:
    """The patch of a project that is open.

    Raises:
        PreconditionError: There is none.

    """
    session = read_session(root)
    if session is None:
        raise PreconditionError("no patch is open", hint="open one with: vllm-series edit NAME")
    return session


def open_session(root: Path, session: Session) -> None:
    """Write the state down; the caller holds the project's lock."""
    private_folder(root).ensure()
    write_file(_state(root), (json.dumps({"schema": SCHEMA, **asdict(session)}, indent=2) + "\n").encode())


def close_session(root: Path) -> None:
    """Forget the state."""
    _state(root).unlink(missing_ok=True)


def mark(checkout: Repository, session: Session) -> None:
    """Let the checkout be known as one that may be removed."""
    (checkout.git_dir / _MARK).write_text(f"{session.name}\n")


def discard(session: Session) -> bool:
    """Remove the checkout if it is the one that was made for the session; whether it was."""
    folder = Path(session.folder)
    leaving = staging_of(folder)
    shutil.rmtree(leaving, ignore_errors=True)
    try:
        own = (folder / ".git" / _MARK).read_text() == f"{session.name}\n"
    except OSError:
        return False
    if own:
        folder.rename(leaving)  # A kill while it is being removed leaves nothing that looks whole.
        shutil.rmtree(leaving, ignore_errors=True)
    return own


def edited_patch(session: Session, old: Patch | None, author: Ident) -> Patch:
    """The patch as it is in the checkout now: every commit on top of the start, and what is not committed.

    Args:
        session: What is open.
        old: The patch as it was, None for a new one.
        author: Author of a new patch that was not committed.

    Raises:
        PreconditionError: The checkout is gone, in the middle of something, or not on top of the start;
            or the patch would be empty.

    """
    folder = Path(session.folder)
    if not (folder / ".git").exists():
        raise PreconditionError(
            f"the checkout {folder} is gone",
            hint="put it back, or give the edit up: vllm-series edit --abort",
        )
    checkout = Repository.open(folder)
    _require_quiet(checkout, session)
    tree = checkout.working_tree()
    if tree == checkout.trees([session.start])[0]:
        raise PreconditionError(
            f"{session.name} would change nothing",
            hint="edit the files there first" if session.new else f"drop it: vllm-series drop {session.name}",
        )
    commits = list(checkout.commits_between(session.start, "HEAD"))
    who, message = _message(session, old, commits, author)
    commit = checkout.commit_tree(tree, session.start, who, message)
    (patch,) = export(checkout, session.start, commit)
    return patch


def _require_quiet(checkout: Repository, session: Session) -> None:
    where = checkout.where
    operation = checkout.operation()
    if operation is not None:
        raise PreconditionError(
            f"{where}: a {operation} is in progress", hint=f"finish or abort it first: git -C {where} status"
        )
    unmerged = checkout.unmerged_paths()
    if unmerged:
        raise PreconditionError(
            f"{where}: {unmerged[0]} has a conflict that is not resolved", hint=f"git -C {where} status"
        )
    if not checkout.is_ancestor(session.start, "HEAD"):
        raise PreconditionError(
            f"{where}: HEAD is not on top of {session.start[:12]}, where {session.name} begins",
            hint=f"go back with: git -C {where} checkout {session.name}",
        )


def _message(
    session: Session, old: Patch | None, commits: Sequence[CommitInfo], author: Ident
) -> tuple[Ident, str]:
    """Author and message: of the commit that bears the name, else of the first, else of the old patch."""
    for commit in commits:
        name = commit.trailer(NAME_TRAILER)
        if name not in (None, session.name):
            raise PreconditionError(
                f"{session.folder} has a commit of {name} on top of {session.name}",
                hint="edit one patch at a time; for several at once see: vllm-series refresh --from",
            )
    named = [commit for commit in commits if commit.trailer(NAME_TRAILER) == session.name]
    chosen = named[-1] if named else commits[0] if commits else None
    if chosen is None and old is not None:
        return old.author, old.message
    subject, _, body = (chosen.message if chosen else session.title).partition("\n")
    body = body.strip("\n")
    if not subject.strip() or subject.startswith(f"{NAME_TRAILER}:"):
        what = f"the commit {chosen.oid[:12]} in {session.folder}" if chosen else f"{session.name}"
        raise PreconditionError(
            f"{what} has no title", hint=f"give it one: git -C {session.folder} commit --amend"
        )
    trailers = [(NAME_TRAILER, session.name)] if not named else []
    if chosen is None or chosen.trailer("Origin") is None:
        trailers.append(("Origin", (old.trailer("Origin") or ("own",))[0] if old else "own"))
    message = f"{subject}\n\n{with_trailers(body, trailers) if trailers else body}\n"
    return (chosen.author if chosen else author), message
