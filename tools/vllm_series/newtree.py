# SPDX-License-Identifier: Apache-2.0
"""Make a new checkout beside its final place, and move it there in one step."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vllm_series.errors import EnvironmentFaultError
from vllm_series.git import Repository
from vllm_series.interrupt import point_of_no_return
from vllm_series.store import Store
from vllm_series.swap import sync


def staging_of(folder: Path) -> Path:
    """Where a checkout is made, and what a killed run leaves, before it becomes ``folder``."""
    return folder.with_name(f".{folder.name}.vllm-series.new")


@contextmanager
def new_checkout(store: Store, ref: str, folder: Path) -> Iterator[Repository]:
    """A fresh repository with the release ``ref`` and its tag; it becomes ``folder`` at the end.

    If the body raises, nothing is left. A killed run leaves a hidden folder that the next run removes.
    """
    import git

    staging = staging_of(folder)
    try:
        try:
            shutil.rmtree(staging, ignore_errors=True)
            git.Repo.init(staging, mkdir=True).close()
        except (OSError, git.GitError) as error:
            raise EnvironmentFaultError(
                f"cannot make {staging}: {error}", hint="name a folder that can be written with --into"
            ) from None
        repository = Repository(staging / ".git", staging / ".git", staging)
        repository.fetch_from(store.repository, f"refs/tags/{ref}")
        yield repository
        point_of_no_return()
        staging.rename(folder)  # An empty folder may be there.
        sync(folder.parent)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
