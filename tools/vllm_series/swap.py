# SPDX-License-Identifier: Apache-2.0
"""Replace a file or a folder in one step, so that a kill leaves the old or the new one.

A folder may bring a file along that belongs beside it: it travels inside the folder under the name
:data:`PASSENGER`, and is moved to its place after the exchange. The exchange decides for both.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path

from vllm_series.errors import EnvironmentFaultError
from vllm_series.interrupt import point_of_no_return

_RENAME_EXCHANGE = 2
_AT_FDCWD = -100

#: What a new patch directory calls the series file that comes with it.
PASSENGER = ".series"


def sync(path: Path) -> None:
    """Bring a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, content: bytes) -> None:
    """Write ``path`` in one step.

    Raises:
        EnvironmentFaultError: No space, or no permission. The old file is unchanged.

    """
    temporary = None
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".new", dir=path.parent)
        temporary = Path(name)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_UMASK
        temporary.chmod(mode)
        temporary.replace(path)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise EnvironmentFaultError(f"cannot write {path}: {error.strerror}") from None


def _read_umask() -> int:
    value = os.umask(0)
    os.umask(value)
    return value


#: Reading it sets it, which no thread may do under another.
_UMASK = _read_umask()


def _retired(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _staging(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")


def staging_directory(path: Path) -> Path:
    """A full copy of the folder ``path`` beside it, to be changed and then swapped in.

    Raises:
        EnvironmentFaultError: No space, or no permission.

    """
    staging = _staging(path)
    try:
        shutil.rmtree(staging, ignore_errors=True)
        shutil.copytree(path, staging, symlinks=True)
    except (OSError, shutil.Error) as error:
        shutil.rmtree(staging, ignore_errors=True)
        reason = getattr(error, "strerror", None) or str(error)
        raise EnvironmentFaultError(f"cannot copy {path}: {reason}") from None
    return staging


def swap_directory(path: Path, staging: Path) -> None:
    """Put the folder ``staging`` in the place of ``path``, and remove what was there."""
    for entry in staging.rglob("*"):
        if entry.is_file():
            sync(entry)
    retired = _retired(path)
    shutil.rmtree(retired, ignore_errors=True)
    point_of_no_return()
    if _exchange(staging, path):
        staging.rename(retired)
    else:
        # Between these two renames only recover_directory() finds the folder.
        path.rename(retired)
        staging.rename(path)
    sync(path.parent)
    _hand_out(path)
    shutil.rmtree(retired, ignore_errors=True)


def _hand_out(path: Path) -> None:
    """Move the passenger of the folder ``path`` to its place."""
    passenger = path / PASSENGER
    if passenger.exists():
        passenger.replace(path.with_name(PASSENGER.removeprefix(".")))
        sync(path.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two paths atomically (Linux ``renameat2``); False if the system cannot."""
    import ctypes

    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    result = rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    if result == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL):
        return False
    raise EnvironmentFaultError(f"cannot replace {other}: {os.strerror(code)}")


def lost(path: Path) -> bool:
    """Whether a kill inside :func:`swap_directory` has left no folder at ``path``."""
    return not path.exists() and _retired(path).is_dir()


def unfinished(path: Path) -> bool:
    """Whether :func:`recover_directory` has something to do before ``path`` may be read."""
    return lost(path) or (path / PASSENGER).exists()


def recover_directory(path: Path) -> None:
    """Undo or finish what a kill left behind; the caller holds the lock."""
    if lost(path):
        _retired(path).rename(path)
    _hand_out(path)
    for leftover in (_retired(path), _staging(path)):
        shutil.rmtree(leftover, ignore_errors=True)
