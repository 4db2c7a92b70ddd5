# SPDX-License-Identifier: Apache-2.0
"""A newer small vLLM to carry the small series to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from series_support import RELEASE_33, Result, copy_tree, git, run_here, sdist

NEW = "v0.34.0"
Files = Mapping[str, bytes | str | None]


def with_release(
    cache: Path, target: Path, changes: Files, ref: str = NEW, files: Files = RELEASE_33
) -> Path:
    """A copy of a cache with one more release, ``files`` with ``changes``; returns it."""
    from vllm_series.store import Store

    copy_tree(cache, target)
    add_release(Store(target), target.parent, changes, ref, files)
    return target


def add_release(
    store: object, folder: Path, changes: Files, ref: str = NEW, files: Files = RELEASE_33
) -> None:
    """Put a release made of ``files`` with ``changes`` into a store."""
    from vllm_series import releases

    tree = {k: v for k, v in {**files, **changes}.items() if v is not None}
    archive = sdist(folder / f"vllm-{ref[1:]}.tar.gz", ref[1:], tree)
    releases.import_archive(store.repository, ref, archive)  # type: ignore[attr-defined]


@dataclass
class Rebaser:
    """Runs ``rebase`` and the other verbs on one project."""

    project: Path
    cache: Path

    @property
    def env(self) -> dict[str, str]:
        return {
            "VLLM_SERIES_CACHE": str(self.cache),
            "VLLM_SERIES_DIR": str(self.project),
            "VLLM_SERIES_INDEX": "http://127.0.0.1:9/simple/",
        }

    def run(self, *args: str | Path) -> Result:
        """Any verb, with ``--json``."""
        return run_here(*args, "--json", env=self.env)

    def __call__(self, *args: str | Path) -> Result:
        """``rebase`` with ``--json``."""
        return self.run("rebase", *args)

    @property
    def tree(self) -> Path:
        """The private working tree."""
        found = list((self.cache / "rebase").iterdir())
        assert len(found) == 1
        return found[0]

    def put(self, path: str, text: str) -> None:
        """Resolve one file of the private working tree."""
        (self.tree / path).parent.mkdir(parents=True, exist_ok=True)
        (self.tree / path).write_text(text)
        git(self.tree, "add", "--", path)

    def left(self) -> dict[str, object]:
        """What a finished or aborted rebase must not leave behind."""
        trees = list((self.cache / "rebase").glob("*")) if (self.cache / "rebase").exists() else []
        return {
            "refs": git(self.cache / "vllm.git", "for-each-ref", "refs/vllm-series"),
            "trees": [path.name for path in trees],
            "worktrees": git(self.cache / "vllm.git", "worktree", "list").count("\n"),
            "state": [p.name for p in (self.project / ".vllm-series").glob("*.json")],
        }


CLEAN = {"refs": "", "trees": [], "worktrees": 0, "state": []}
