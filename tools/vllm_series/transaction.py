# SPDX-License-Identifier: Apache-2.0
"""Replace many files below a folder as one: all of them, or none.

Everything that will be needed is put into a journal folder first: the new files, and a second name (a hard
link) of every old one. Only then are files replaced, each by one rename. Whoever comes after a kill takes
back what was done; a journal that was renamed to its final name belongs to a change that is whole.

Files are replaced, never written to: installers such as uv share one file between environments by links.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vllm_series.errors import EnvironmentFaultError, PreconditionError
from vllm_series.interrupt import point_of_no_return
from vllm_series.swap import sync


@dataclass(frozen=True)
class Put:
    """What a path becomes.

    Attributes:
        content: Bytes to write; None to take the file at ``source`` as it is, times and mode included.
        source: An existing file below the same folder.

    """

    content: bytes | None = None
    source: str = ""


#: New state by path below the folder; None removes a file.
Changes = Mapping[str, Put | None]


@dataclass(frozen=True)
class Recovered:
    """What :func:`recover` did.

    Attributes:
        undone: Whether an unfinished change was taken back.
        left: Paths that somebody else has changed since, and that were left alone.

    """

    undone: bool
    left: tuple[str, ...] = ()


def _staging(root: Path, name: str) -> Path:
    return root / f".{name}.new"


def _journal(root: Path, name: str) -> Path:
    return root / f".{name}.journal"


def _finished(root: Path, name: str) -> Path:
    return root / f".{name}.done"


def interrupted(root: Path, name: str) -> bool:
    """Whether a change was killed in its middle."""
    return _journal(root, name).is_dir()


def replace_files(root: Path, name: str, changes: Changes) -> None:
    """Bring the paths of ``changes`` to their new state.

    Args:
        root: The folder that they lie in; the caller holds a lock on it, and has called :func:`recover`.
        name: Names the journal folder.
        changes: What to do.

    Raises:
        PreconditionError: A parent folder of a path is a symbolic link or no folder.
        EnvironmentFaultError: A folder cannot be written. Nothing has been changed.

    """
    if not changes:
        return
    _require_changeable(root, changes)
    staging, journal, finished = _staging(root, name), _journal(root, name), _finished(root, name)
    try:
        _stage(root, staging, changes)
        staging.rename(journal)
        sync(root)
    except OSError as error:
        shutil.rmtree(staging, ignore_errors=True)
        raise EnvironmentFaultError(f"cannot prepare the change in {root}: {error.strerror}") from None
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    try:
        for path, put in sorted(changes.items()):
            target = root / path
            if put is None:
                target.unlink(missing_ok=True)
            else:
                _make_parents(root, target)
                (journal / "after" / path).replace(target)
        _remove_empty(root, [path for path, put in changes.items() if put is None])
        point_of_no_return()
        journal.rename(finished)
    except BaseException as error:
        recover(root, name)
        if isinstance(error, OSError):
            raise EnvironmentFaultError(
                f"cannot replace {error.filename or root}: {error.strerror}; everything was taken back"
            ) from None
        raise
    sync(root)
    shutil.rmtree(finished, ignore_errors=True)


def recover(root: Path, name: str) -> Recovered:
    """Take back a change that was killed, and remove what is left of finished ones."""
    for leftover in (_staging(root, name), _finished(root, name)):
        if leftover.exists():
            shutil.rmtree(leftover, ignore_errors=True)
    journal = _journal(root, name)
    if not journal.is_dir():
        return Recovered(False)
    rows = json.loads((journal / "journal.json").read_text())
    left = []
    for path, row in sorted(rows.items()):
        target = root / path
        now = digest_of(target)
        if now == row["before"]:
            continue
        if now != row["after"]:
            left.append(path)
        elif row["before"] is None:
            target.unlink()
        else:
            _make_parents(root, target)
            # A copy of the name: a second kill must find it here again.
            again = journal / "again"
            again.unlink(missing_ok=True)
            _link(journal / "before" / path, again)
            again.replace(target)
    _remove_empty(root, list(rows))
    journal.rename(_finished(root, name))
    shutil.rmtree(_finished(root, name), ignore_errors=True)
    return Recovered(True, tuple(left))


def digest_of(path: Path) -> str | None:
    """SHA-256 of a file, None if there is none."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _require_changeable(root: Path, changes: Changes) -> None:
    for path in sorted(changes):
        target = root / path
        for folder in reversed(target.parents[: len(path.split("/"))]):
            if folder.is_symlink() and folder != root:
                raise PreconditionError(
                    f"{folder} is a symbolic link to {folder.resolve()}",
                    hint="name the folder that the files really lie in",
                )
            if folder.exists() and not folder.is_dir():
                raise PreconditionError(f"{folder} is a file, and {path} cannot be put there")
            if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):
                raise EnvironmentFaultError(
                    f"{folder} cannot be written", hint="run the command as the user who owns it"
                )
        if target.is_dir():
            raise PreconditionError(f"{target} is a folder, and a file belongs there")


def _stage(root: Path, staging: Path, changes: Changes) -> None:
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    rows = {}
    for path, put in changes.items():
        target, before, after = root / path, staging / "before" / path, staging / "after" / path
        old = digest_of(target)
        if old is not None:
            before.parent.mkdir(parents=True, exist_ok=True)
            _link(target, before)
        if put is not None:
            after.parent.mkdir(parents=True, exist_ok=True)
            if put.content is None:
                _link(root / put.source, after)
            else:
                after.write_bytes(put.content)
                # As the file that it replaces; a new one as the umask says.
                if old is not None:
                    after.chmod(target.stat().st_mode & 0o7777)
                sync(after)
        rows[path] = {"before": old, "after": digest_of(after)}
    journal = staging / "journal.json"
    journal.write_text(json.dumps(rows))
    sync(journal)


def _link(source: Path, target: Path) -> None:
    """A second name for a file, or a copy where the file system has no such names."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EXDEV, errno.EMLINK, errno.EACCES):
            raise
        shutil.copy2(source, target, follow_symlinks=False)


def _make_parents(root: Path, target: Path) -> None:
    if not target.parent.is_dir():
        _make_parents(root, target.parent)
        target.parent.mkdir()


def _remove_empty(root: Path, paths: Sequence[str]) -> None:
    """Remove the folders of ``paths`` that are empty now."""
    for path in paths:
        folder = (root / path).parent
        while folder != root:
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass  # Not made yet when the run was killed, or removed for another path.
            except OSError:
                break
            folder = folder.parent
