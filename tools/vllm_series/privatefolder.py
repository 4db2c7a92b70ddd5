# SPDX-License-Identifier: Apache-2.0
"""Where the tool keeps what is about a patch directory and no part of it: paused work and its history.

Inside the git directory if the project is the top level of a repository, so that nothing of it is ever
committed; else in a folder beside the patches.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vllm_series.errors import EnvironmentFaultError, PreconditionError
from vllm_series.git import Repository

#: The folder's name in a project that is no repository.
NAME = ".vllm-series"
OPERATIONS = "refs/vllm-series/ops/"
#: Git keeps refs of this name for each linked working tree apart.
OPERATIONS_OF_WORKTREE = "refs/worktree/vllm-series/ops/"


@dataclass(frozen=True)
class PrivateFolder:
    """The folder of one project, which need not exist yet.

    Attributes:
        path: Where it is.
        repository: The project's own repository, None if it is in none.

    """

    path: Path
    repository: Repository | None = None

    @property
    def operations(self) -> str:
        """Below which refs the operations stand."""
        own = self.repository
        return OPERATIONS_OF_WORKTREE if own and own.git_dir != own.common_dir else OPERATIONS

    def log(self) -> Repository | None:
        """The repository with the operations, None if none was ever recorded."""
        if self.repository is not None:
            return self.repository
        path = self.path / "log.git"
        return Repository.bare(path) if path.is_dir() else None

    def ensure_log(self) -> Repository:
        """The repository with the operations, made if there is none."""
        found = self.log()
        if found is not None:
            return found
        import shutil

        import git

        self.ensure()
        making, path = self.path / "log.git.new", self.path / "log.git"
        try:
            shutil.rmtree(making, ignore_errors=True)
            git.Repo.init(making, mkdir=True, bare=True).close()
            making.rename(path)
        except (OSError, git.GitError) as error:
            raise EnvironmentFaultError(f"cannot make the log of operations {path}: {error}") from None
        return Repository.bare(path)

    def ensure(self) -> Path:
        """Make the folder."""
        self.path.mkdir(exist_ok=True)
        if self.repository is None and not (self.path / ".gitignore").exists():
            (self.path / ".gitignore").write_text("*\n")
        return self.path

    def state_of(self, verb: str) -> Path:
        """The file in which ``verb`` keeps its state while it is paused."""
        return self.path / f"{verb}.json"

    def require_idle(self, verb: str) -> None:
        """Raise if another verb than ``verb`` is paused."""
        for file in sorted(self.path.glob("*.json")):
            if file.stem != verb:
                raise PreconditionError(
                    f"vllm-series {file.stem} is in progress",
                    hint=f"finish it, or take it back with: vllm-series {file.stem} --abort",
                    paused=file.stem,
                )


def private_folder(root: Path) -> PrivateFolder:
    """The private folder of the project in ``root``."""
    if (root / ".git").exists():
        repository = Repository.open(root)
        return PrivateFolder(repository.git_dir / "vllm-series", repository)
    return PrivateFolder(root / NAME)
