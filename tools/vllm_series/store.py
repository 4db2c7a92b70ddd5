# SPDX-License-Identifier: Apache-2.0
"""The cached bare repository with vLLM releases, one for all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vllm_series.bases import Base, version_of
from vllm_series.errors import EnvironmentFaultError, UsageError
from vllm_series.git import Repository
from vllm_series.locks import locked

#: Names the cache folder, before the platform's default.
CACHE_VARIABLE = "VLLM_SERIES_CACHE"

#: Makes a progress tracker for a download of so many bytes (None: unknown), see pypi_simple.
Progress = Callable[[int | None], "ProgressTracker"]


class ProgressTracker:
    """What a download reports to; this one is silent."""

    def __init__(self, total: int | None = None) -> None:
        self.total = total

    def __enter__(self) -> ProgressTracker:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def update(self, increment: int) -> None:
        """So many more bytes have come."""


def cache_folder() -> Path:
    """Where releases, their downloads and checked results are kept."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).expanduser().absolute()
    import platformdirs

    try:
        folder = Path(platformdirs.user_cache_dir("vllm-series"))
    except RuntimeError:
        folder = Path("~")
    if not folder.is_absolute():  # A user without a home, as in containers: `~` stays as it is.
        raise EnvironmentFaultError(
            "there is no home folder to keep releases in", hint=f"name a folder with {CACHE_VARIABLE}"
        )
    return folder


@dataclass(frozen=True)
class Fetched:
    """A release in the store: its commit, and whether this call brought it."""

    ref: str
    commit: str
    new: bool


@dataclass(frozen=True)
class Store:
    """The cache folder.

    Attributes:
        folder: Where it lies.

    """

    folder: Path

    @classmethod
    def default(cls) -> Store:
        """The store in :func:`cache_folder`."""
        return cls(cache_folder())

    @property
    def repository(self) -> Repository:
        """The bare repository; :meth:`ensure` makes it."""
        return Repository.bare(self.folder / "vllm.git")

    @property
    def lock_path(self) -> Path:
        """The file that writers lock."""
        return self.folder / "lock"

    def ensure(self) -> Repository:
        """Make the repository if there is none.

        Raises:
            EnvironmentFaultError: The folder cannot be written.

        """
        path = self.repository.git_dir
        if not (path / "HEAD").is_file():
            import git

            making = path.with_name("vllm.git.new")
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                shutil.rmtree(making, ignore_errors=True)
                git.Repo.init(making, mkdir=True, bare=True).close()
                making.rename(path)
            except (OSError, git.GitError) as error:
                raise EnvironmentFaultError(
                    f"cannot make the cache {path}: {error}",
                    hint=f"make the folder writable, or name another one with {CACHE_VARIABLE}",
                ) from None
        return self.repository

    def find(self, ref: str) -> str | None:
        """The commit of a release that is here already, or None."""
        if not (self.repository.git_dir / "HEAD").is_file():
            return None
        return self.repository.find_commit(f"refs/tags/{ref}")

    def fetch(
        self,
        ref: str,
        known: Base | None = None,
        *,
        progress: Progress = ProgressTracker,
        index: str = "",
    ) -> Fetched:
        """Bring a release into the store; nothing happens if it is here.

        Args:
            ref: Release tag, such as ``v0.33.0``.
            known: What the project knows of this release; digest and commit must agree.
            progress: Where to report the download.
            index: Address of the package index, empty for the default.

        Raises:
            UsageError: ``ref`` is no release tag, or the index has no such release.
            EnvironmentFaultError: No network, wrong digest, full disk.

        """
        if version_of(ref) is None:
            raise UsageError(
                f"{ref} is no vLLM release tag", hint="releases are named like v0.33.0; for any other"
                " commit use your own clone: --vllm PATH --onto REF"
            )  # fmt: skip
        found = self.find(ref)
        if found is None:
            from vllm_series import releases

            with locked(self.lock_path, f"the cache {self.folder}"):
                self.ensure()
                found = self.find(ref)
                if found is not None:
                    return Fetched(ref, found, False)  # Another run has brought it meanwhile.
                archive = releases.download(ref, self.folder / "downloads", known, progress, index)
                commit = releases.import_archive(self.repository, ref, archive, known)
            return Fetched(ref, commit, True)
        if known is not None and known.commit and found != known.commit:
            raise EnvironmentFaultError(
                f"the cache has another {ref} ({found[:12]}) than this series was made for "
                f"({known.commit[:12]})",
                hint=f"remove {self.repository.git_dir} and run the command again",
            )
        return Fetched(ref, found, False)
