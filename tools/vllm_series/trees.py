# SPDX-License-Identifier: Apache-2.0
"""Folders with the files of git trees, kept in the cache by tree id.

A vLLM tree has some 8,500 files and a series needs two or three trees per patch, so a tree is made from the
base's folder by hard links, with the changed files written anew. Python's compiled files are linked too:
they hold the size and time of a source that is the very same file. So the base is compiled once, and a new
tree imports as fast as an old one.

A test may write into its tree. So a folder is compared with its tree each time before it is used, and made
anew if a file differs, as soon as nobody uses it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition

from vllm_series.errors import EnvironmentFaultError
from vllm_series.git import Repository, path_bytes

#: Folders that are kept from run to run; the least recently used go first.
KEPT = 12
#: A link changes the time of an inode, not of the file's content.
_CONFIG = ("core.trustctime=false", "core.checkStat=minimal", "core.fileMode=true")


@dataclass(frozen=True)
class Trees:
    """The folders.

    Attributes:
        folder: Where they lie.
        repository: Where the trees' objects are.
        compiler: The Python that compiles a base's folder; None leaves that to the first import.

    """

    folder: Path
    repository: Repository
    compiler: Path | None = None
    _changed: Condition = field(default_factory=Condition, repr=False, compare=False)
    _users: Counter[str] = field(default_factory=Counter, repr=False, compare=False)

    @contextmanager
    def use(self, tree: str, base: str | None = None) -> Iterator[Path]:
        """The folder from :meth:`get` for the body of a ``with``; threads may share it, one makes it."""
        with self._changed:
            self._changed.wait_for(lambda: self._may_get(tree, base))
            place = self.get(tree, base)
            self._users[tree] += 1
        try:
            yield place
        finally:
            with self._changed:
                self._users[tree] -= 1
                self._changed.notify_all()

    def _may_get(self, tree: str, base: str | None) -> bool:
        """Whether no folder that is in use would be made anew."""
        wanted = [tree] if base in (None, tree) or self.is_intact(tree) else [tree, str(base)]
        return not any(self._users[name] and not self.is_intact(name) for name in wanted)

    def get(self, tree: str, base: str | None = None) -> Path:
        """A folder with exactly the files of ``tree`` (and compiled ones).

        Args:
            tree: Id of the tree.
            base: A tree that differs little, to link unchanged files from.

        Raises:
            EnvironmentFaultError: The folder cannot be written.

        """
        place = self.folder / tree
        if not self.is_intact(tree):
            source = self.get(base) if base is not None and base != tree else None
            try:
                self._make(tree, source, base)
                if source is None:
                    self._compile(place)
            except OSError as error:
                raise EnvironmentFaultError(
                    f"cannot write the tree {place}: {error.strerror or error}",
                    hint="free some disk space, or name another cache folder with VLLM_SERIES_CACHE",
                ) from None
        os.utime(place)
        return place

    def is_intact(self, tree: str) -> bool:
        """Whether the folder of ``tree`` is there and every file is as git has it."""
        if not self._index(tree).is_file() or not (self.folder / tree).is_dir():
            return False
        # A file whose times alone differ is read and compared, and its new times are noted.
        self._git(tree, "update-index", "-q", "--refresh", fails=True)
        return self._git(tree, "diff-files", "--quiet", fails=True)

    def prune(self, keep: Iterable[str] = (), limit: int = KEPT) -> None:
        """Remove the folders that were not used for longest, all but ``limit``."""
        if not self.folder.is_dir():
            return
        kept = set(keep)
        trees = [place for place in self.folder.iterdir() if place.is_dir() and not place.suffix]
        found = sorted(trees, key=lambda place: place.stat().st_mtime, reverse=True)
        for place in found[limit:]:
            if place.name not in kept:
                self._remove(place.name)

    def _compile(self, place: Path) -> None:
        if self.compiler is not None and (place / "vllm").is_dir():
            # Only speed depends on it, and some files of vLLM's are templates that do not compile.
            command = [str(self.compiler), "-I", "-m", "compileall", "-qq", "-j0", str(place / "vllm")]
            subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL)

    def _index(self, tree: str) -> Path:
        return self.folder / f"{tree}.index"

    def _git(self, tree: str, *args: str, data: bytes | None = None, fails: bool = False) -> bool:
        place = self.folder / tree
        repository = self.repository.with_work_tree(place)
        env = {"GIT_INDEX_FILE": str(self._index(tree))}
        if fails:
            return repository.execute(*args, data=data, env=env, config=_CONFIG).returncode == 0
        repository.run(*args, data=data, env=env, config=_CONFIG)
        return True

    def _remove(self, tree: str) -> None:
        self._index(tree).unlink(missing_ok=True)
        for suffix in ("", ".cache"):
            shutil.rmtree(self.folder / f"{tree}{suffix}", ignore_errors=True)

    def _make(self, tree: str, source: Path | None, base: str | None) -> None:
        self._remove(tree)
        place = self.folder / tree
        place.mkdir(parents=True)
        paths: list[str] | None = None
        if source is not None and base is not None:
            paths = self.repository.changed_paths(base, tree)
            link_folder(source, place)
            for path in paths:
                _forget(place, path)
        # The index is what marks a whole folder, and gets its name last.
        index = self._index(tree)
        env = {"GIT_INDEX_FILE": str(index.with_suffix(".new"))}
        repository = self.repository.with_work_tree(place)
        repository.run("read-tree", tree, env=env, config=_CONFIG)
        if paths is None:
            repository.run("checkout-index", "--all", "--force", env=env, config=_CONFIG)
        else:
            there = self.repository.entries(tree, paths)
            names = b"".join(path_bytes(path) + b"\0" for path in sorted(there))
            repository.run("checkout-index", "--force", "-z", "--stdin", data=names, env=env, config=_CONFIG)
        repository.execute("update-index", "-q", "--refresh", env=env, config=_CONFIG)
        index.with_suffix(".new").rename(index)


def link_folder(source: Path, target: Path) -> None:
    """Fill the folder ``target`` with hard links to the files of ``source``; copies where links fail."""
    for folder, names, files in os.walk(source):
        here = target / Path(folder).relative_to(source)
        for name in names:
            if (Path(folder) / name).is_symlink():
                _link(Path(folder) / name, here / name)
            else:
                (here / name).mkdir(exist_ok=True)
        for name in files:
            _link(Path(folder) / name, here / name)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except FileNotFoundError:
        return  # A compiled file that was just replaced.
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def _forget(place: Path, path: str) -> None:
    """Remove a file, the compiled forms of it, and the folders that this leaves empty."""
    file = place / os.fsdecode(path_bytes(path))
    if file.is_symlink() or file.exists():
        file.unlink()
    compiled = file.parent / "__pycache__"
    for stale in compiled.glob(f"{file.stem}.*.pyc") if file.suffix == ".py" else ():
        stale.unlink()
    for folder in (compiled, *file.parents):
        if folder == place or not folder.is_dir():
            continue
        if any(folder.iterdir()):
            break
        folder.rmdir()
