# SPDX-License-Identifier: Apache-2.0
"""The patch directory: the series, the patch files and what is known about them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from vllm_series.bases import Base, parse_bases, serving_base, serving_file
from vllm_series.errors import PreconditionError, UsageError
from vllm_series.patchfile import Patch, read_patch
from vllm_series.series import Series, parse_series
from vllm_series.statusfile import StatusFile, parse_status

#: Names a folder that holds ``series`` and ``patches/``, before the current folder is looked at.
FOLDER_VARIABLE = "VLLM_SERIES_DIR"


@dataclass(frozen=True)
class Project:
    """A folder with ``series`` and ``patches/``.

    Attributes:
        root: The folder.
        installed: Whether it is the read-only copy inside the installed package.

    """

    root: Path
    installed: bool = False

    def require_writable(self) -> None:
        """Raise :class:`PreconditionError` for the installed copy, which the next install would replace."""
        if self.installed:
            raise PreconditionError(
                f"{self.root} is the copy inside the installed package",
                hint="work in a checkout of the project, or name one with --series-dir",
            )

    @property
    def series_path(self) -> Path:
        """The series file."""
        return self.root / "series"

    @property
    def patch_dir(self) -> Path:
        """The patch directory."""
        return self.root / "patches"

    @cached_property
    def series(self) -> Series:
        """The order of the patches."""
        return parse_series(_read(self.series_path), str(self.series_path))

    @cached_property
    def bases(self) -> tuple[Base, ...]:
        """The supported bases, the pinned one first."""
        path = self.patch_dir / "base.toml"
        return parse_bases(_read(path), str(path))

    @property
    def pinned(self) -> Base:
        """The base that the plain patch files are for."""
        return self.bases[0]

    @cached_property
    def status(self) -> StatusFile:
        """``status.toml``; empty if there is none."""
        path = self.patch_dir / "status.toml"
        return parse_status(_read(path) if path.exists() else "", str(path))

    @cached_property
    def files(self) -> frozenset[str]:
        """Every patch file, relative to the patch directory."""
        found = self.patch_dir.glob("**/*.patch")
        return frozenset(p.relative_to(self.patch_dir).as_posix() for p in found)

    def base_for(self, release: str | None) -> Base:
        """The supported base whose files serve a commit of ``release``."""
        return serving_base(self.bases, release)

    def file_for(self, name: str, base: Base) -> str | None:
        """The file that serves ``base``, relative to the patch directory; None if there is none."""
        return serving_file(name, base, self.pinned, self.files)

    def patch(self, name: str, base: Base) -> Patch | None:
        """The patch ``name`` for ``base``, or None if no file serves it.

        Raises:
            UsageError: There is no file of that name for any base.
            CorruptPatchError: The file is damaged.

        """
        file = self.file_for(name, base)
        if file is None:
            if not any(f.rpartition("/")[2] == f"{name}.patch" for f in self.files):
                raise UsageError(
                    f"{self.series_path} names {name}.patch, and {self.patch_dir} has no such file",
                    hint="restore the file, or take its line out of the series",
                )
            return None
        return read_patch(self.patch_dir / file, name)

    def texts(self, name: str) -> list[Patch]:
        """The texts of the patch ``name``: of every base, each file once."""
        files = dict.fromkeys(self.file_for(name, base) for base in self.bases)
        return [read_patch(self.patch_dir / file, name) for file in files if file is not None]

    def patches(self, base: Base, names: Iterable[str] | None = None) -> list[Patch]:
        """The patches that have a file for ``base``, in series order."""
        wanted = self.known(names)
        found = (self.patch(name, base) for name in self.series.names if name in wanted)
        return [patch for patch in found if patch is not None]

    def known(self, names: Iterable[str] | None) -> frozenset[str]:
        """``names`` (None: all), checked.

        Raises:
            UsageError: A name that the series does not have.

        """
        if names is None:
            return frozenset(self.series.names)
        import difflib

        for name in names:
            if name.removesuffix(".patch") not in self.series.names:
                near = difflib.get_close_matches(name, self.series.names, 1)
                raise UsageError(
                    f"the series has no patch {name}",
                    hint=f"did you mean {near[0]}?" if near else "list them with: vllm-series list",
                )
        return frozenset(name.removesuffix(".patch") for name in names)


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8") from None


def _is_project(folder: Path) -> bool:
    return (folder / "series").is_file() and (folder / "patches" / "base.toml").is_file()


def _recover(folder: Path) -> None:
    """Clear up a patch directory that a killed run has left half exchanged."""
    if (folder / "series").is_file():
        from vllm_series.swap import unfinished

        if unfinished(folder / "patches"):
            with writing(folder):
                pass


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """The project in ``folder``, locked for writing, cleared of what a killed run left behind."""
    from vllm_series.locks import locked
    from vllm_series.swap import recover_directory

    with locked(folder / ".vllm-series.lock", str(folder)):
        recover_directory(folder / "patches")
        yield


def find_project(folder: Path | None = None) -> Project:
    """The patch directory to work on.

    In this order: ``folder``, :data:`FOLDER_VARIABLE`, the current folder or one above it, the checkout
    that this module runs from, the copy in the installed package.

    Raises:
        UsageError: A named folder is none of a project.
        PreconditionError: There is no such folder.

    """
    named = folder or (Path(env) if (env := os.environ.get(FOLDER_VARIABLE)) else None)
    if named is not None:
        _recover(named)
        if not named.is_dir():
            raise PreconditionError(
                f"{named} is not a folder", hint="name the folder that has series and patches/"
            )
        if not _is_project(named):
            raise UsageError(f"{named} has no series file with a patches folder and base.toml")
        return Project(named.resolve())
    here = Path.cwd()
    package = Path(__file__).resolve().parent
    for candidate in (here, *here.parents, package.parent.parent):
        _recover(candidate)
        if _is_project(candidate):
            return Project(candidate)
    return Project(package / "_data", installed=True)
