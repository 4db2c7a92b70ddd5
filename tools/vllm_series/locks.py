# SPDX-License-Identifier: Apache-2.0
"""One writer at a time per repository or patch directory.

The kernel drops the lock with its holder, so a dead holder's lock is no lock. A git command that runs
under a lock holds it too: it may outlive a killed vllm-series.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vllm_series import git
from vllm_series.errors import EnvironmentFaultError, PreconditionError


@contextmanager
def locked(path: Path, what: str, *, keep: bool = True) -> Iterator[None]:
    """Hold the lock file ``path`` while the body runs.

    Args:
        path: The lock file; its folder is made if missing.
        what: What is locked, for the message.
        keep: Whether the file stays afterwards; else it is removed.

    Raises:
        PreconditionError: Another process holds it.
        EnvironmentFaultError: The file cannot be made.

    """
    descriptor = _open(path, what)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            while not _is(path, descriptor):
                # Its last holder removed it after it was opened here: this lock would lock out nobody.
                os.close(descriptor)
                descriptor = _open(path, what)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
            raise PreconditionError(
                f"{what} is in use by another vllm-series (process {holder})",
                hint="wait until it has ended, then run the command again",
            ) from None
        git.INHERITED.add(descriptor)
        with suppress(OSError):  # On a full disk the message lacks the number.
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        if descriptor in git.INHERITED and not keep:
            path.unlink(missing_ok=True)
        git.INHERITED.discard(descriptor)
        os.close(descriptor)


def _open(path: Path, what: str) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except (FileExistsError, NotADirectoryError):
        raise EnvironmentFaultError(
            f"cannot lock {what}: {path.parent} is no folder", hint="name a folder, or move what is there"
        ) from None
    except OSError as error:
        raise EnvironmentFaultError(
            f"cannot lock {what}: {path}: {error.strerror}",
            hint="make the folder writable, or name another one",
        ) from None


def _is(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
