# SPDX-License-Identifier: Apache-2.0
"""What was done to the patch directory, so that it can be undone.

Every verb that writes to the series does so inside :func:`recorded`: it gets the lock, says what the files
shall be, and at the end everything changes by one exchange. Before that, a commit with the files as they
will be, on top of one with the files as they are, is kept below ``refs/vllm-series/ops/``. The log only
grows: ``undo`` and ``redo`` are operations too.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from vllm_series.build import quote_path
from vllm_series.errors import PreconditionError
from vllm_series.git import NO_COMMIT, path_bytes
from vllm_series.privatefolder import PrivateFolder, private_folder
from vllm_series.project import Project, writing
from vllm_series.swap import PASSENGER, staging_directory, swap_directory
from vllm_series.tree import File

SCHEMA = 1
SERIES = "series"
PATCHES = "patches/"
_WHO = "vllm-series <vllm-series@vllm-ampere-multigpu.invalid>"


@dataclass(frozen=True)
class Operation:
    """One entry of the log.

    Attributes:
        number: Counts from 1.
        verb: The command.
        text: What it did, one line.
        seconds: When, since the epoch.
        count: How many operations it took back or did again, 0 if it is no ``undo`` or ``redo``.
        before: Tree of the files before.
        after: Tree of the files after.

    """

    number: int
    verb: str
    text: str
    seconds: int
    count: int
    before: str
    after: str


@dataclass
class Change:
    """What an operation wants to change, collected in memory.

    Attributes:
        project: The project as it is under the lock.
        number: The operation's number in the log, None until it is done or if nothing changed.

    """

    project: Project
    number: int | None = None
    _files: dict[str, File | None] = field(default_factory=dict)

    def write(self, path: str, content: bytes) -> None:
        """Set a file: ``series``, or one below ``patches/``."""
        self.put(path, File("100644", content))

    def remove(self, path: str) -> None:
        """Take a file away; none need be there."""
        self.put(path, None)

    def put(self, path: str, file: File | None) -> None:
        """Set a file with its mode, or take it away."""
        if path != SERIES and not path.startswith(PATCHES):
            raise ValueError(f"{path} is no part of the series")
        self._files[path] = file


@contextmanager
def recorded(project: Project, verb: str, text: str, *, count: int = 0) -> Iterator[Change]:
    """Change the patch directory in one step that ``undo`` can take back.

    The body holds the project's lock. If it raises, or wants nothing that is not there already, nothing is
    written. A kill at any moment leaves the old files or the new ones, ``series`` included.

    Args:
        project: The project. Inside, use :attr:`Change.project`: others may have written before the lock.
        verb: The command, such as ``drop``.
        text: What is done, for ``log``, where it is one line.
        count: For ``undo`` and ``redo``: how many operations.

    Raises:
        PreconditionError: The project is an installed copy, another run holds the lock, or another verb
            is paused.

    """
    project.require_writable()
    with writing(project.root):
        place = private_folder(project.root)
        place.require_idle(verb)
        change = Change(Project(project.root))
        yield change
        before = read_files(project.root)
        after = {k: v for k, v in {**before, **change._files}.items() if v is not None}
        if after == before:
            return
        number, ref = _record(place, verb, text, count, before, after)
        try:
            _exchange(project.root, before, after)
        except BaseException:
            if read_files(project.root) == before:
                place.ensure_log().update_refs([(ref, NO_COMMIT, None)], "not done")
            raise
        change.number = number


def read_files(root: Path) -> dict[str, File]:
    """The files that make up the state of a project, by path."""
    found = {SERIES: File("100644", (root / SERIES).read_bytes())}
    for folder, _, names in os.walk(root / "patches"):
        for name in names:
            path = Path(folder, name)
            key = path.relative_to(root).as_posix()
            if path.is_symlink():
                found[key] = File("120000", os.fsencode(path.readlink()))
            else:
                mode = "100755" if path.stat().st_mode & 0o100 else "100644"
                found[key] = File(mode, path.read_bytes())
    return found


def _exchange(root: Path, before: Mapping[str, File], after: Mapping[str, File]) -> None:
    staging = staging_directory(root / "patches")
    for path in before.keys() - after.keys():
        (staging / path.removeprefix(PATCHES)).unlink()
        with suppress(OSError):  # Unless it was the folder's last file.
            (staging / path.removeprefix(PATCHES)).parent.rmdir()
    for path, file in after.items():
        if before.get(path) == file:
            continue
        target = staging / (PASSENGER if path == SERIES else path.removeprefix(PATCHES))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        if file.mode == "120000":
            target.symlink_to(os.fsdecode(file.content))
        else:
            target.write_bytes(file.content)
            target.chmod(target.stat().st_mode | (0o111 if file.mode == "100755" else 0))
    swap_directory(root / "patches", staging)


def _record(
    place: PrivateFolder,
    verb: str,
    text: str,
    count: int,
    before: Mapping[str, File],
    after: Mapping[str, File],
) -> tuple[int, str]:
    repository = place.ensure_log()
    known = read_log(place)
    number = known[-1].number + 1 if known else 1
    ref = f"{place.operations}{number}"
    text, seconds = " ".join(text.split()), int(time.time())
    values = {"schema": SCHEMA, "verb": verb, "text": text, "seconds": seconds, "count": count}
    message = f"{verb}: {text}\n\n{json.dumps(values)}\n"
    stream = bytearray(b"feature done\n")
    for mark, files in ((1, before), (2, after)):
        data = (message if mark == 2 else f"before {message}").encode()
        stream += b"commit %b\nmark :%d\ncommitter %b %d +0000\n" % (
            ref.encode(),
            mark,
            _WHO.encode(),
            seconds,
        )
        stream += b"data %d\n%b\n" % (len(data), data)
        stream += b"from :1\ndeleteall\n" if mark == 2 else b"deleteall\n"
        for path, file in sorted(files.items()):
            stream += b"M %b inline %b\ndata %d\n%b\n" % (
                file.mode.encode(),
                quote_path(path),
                len(file.content),
                file.content,
            )
    repository.fast_import(bytes(stream) + b"done\n", loose=True)
    return number, ref


def read_log(place: PrivateFolder) -> list[Operation]:
    """Every operation, the oldest first."""
    repository = place.log()
    if repository is None:
        return []
    rows = repository.messages(place.operations)
    trees = repository.trees([parent for _, _, parent, _, _ in rows])
    found = []
    for (ref, _, _, tree, message), tree_before in zip(rows, trees, strict=True):
        values = json.loads(message.splitlines()[2])
        if values["schema"] != SCHEMA:
            raise PreconditionError(f"{ref} was written by another version of vllm-series")
        number = int(ref.rpartition("/")[2])
        del values["schema"]
        found.append(Operation(number=number, before=tree_before, after=tree, **values))
    return sorted(found, key=lambda operation: operation.number)


def tree_of(files: Mapping[str, File]) -> str:
    """The id of the tree that git makes of ``files``."""
    rows: dict[bytes, bytes] = {}
    folders: dict[str, dict[str, File]] = {}
    for path, file in files.items():
        first, slash, rest = path.partition("/")
        if slash:
            folders.setdefault(first, {})[rest] = file
        else:
            rows[path_bytes(first)] = _row(file.mode, first, file.oid)
    for name, below in folders.items():
        # Git sorts a folder as if its name ended with a slash.
        rows[path_bytes(f"{name}/")] = _row("40000", name, tree_of(below))
    data = b"".join(row for _, row in sorted(rows.items()))
    return hashlib.sha1(b"tree %d\0%b" % (len(data), data), usedforsecurity=False).hexdigest()


def _row(mode: str, name: str, oid: str) -> bytes:
    return b"%b %b\0%b" % (mode.encode(), path_bytes(name), bytes.fromhex(oid))


@dataclass(frozen=True)
class History:
    """Where a project stands in its log.

    Attributes:
        operations: Every operation, the oldest first.
        done: Those in effect, the oldest first.
        undone: Those that ``redo`` would do, the next one last.
        tree: The tree of the files as they are.

    """

    operations: tuple[Operation, ...]
    done: tuple[Operation, ...]
    undone: tuple[Operation, ...]
    tree: str


def happened(operations: Sequence[Operation], tree: str) -> list[Operation]:
    """The operations without those that were killed between their record and the change itself.

    Args:
        operations: The log.
        tree: The tree of the files as they are.

    """
    found = []
    for number, operation in enumerate(operations):
        rest = operations[number + 1 :]
        then = rest[0].before if rest else tree
        if then == operation.after or then != operation.before:
            found.append(operation)
    return found


class Recorded(Protocol):
    """What can be undone: ``count`` says how many others it took back or did again."""

    @property
    def verb(self) -> str:
        """The command."""

    @property
    def count(self) -> int:
        """0 if it is no ``undo`` or ``redo``."""


R = TypeVar("R", bound=Recorded)


def replay(operations: Sequence[R]) -> tuple[list[R], list[R]]:
    """Which operations are in effect, and which are undone, the next one to redo last."""
    done: list[R] = []
    undone: list[R] = []
    for operation in operations:
        if operation.verb == "undo":
            undone += [done.pop() for _ in range(operation.count)]
        elif operation.verb == "redo":
            done += [undone.pop() for _ in range(operation.count)]
        else:
            done.append(operation)
            undone.clear()
    return done, undone


def read_history(root: Path) -> History:
    """Where the project in ``root`` stands."""
    operations = read_log(private_folder(root))
    tree = tree_of(read_files(root))
    done, undone = replay(happened(operations, tree))
    return History(tuple(operations), tuple(done), tuple(undone), tree)
