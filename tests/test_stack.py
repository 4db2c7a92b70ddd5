# SPDX-License-Identifier: Apache-2.0
"""Scenarios: ``before`` with ``x.patch`` gives ``after``, forwards, backwards and as ``git apply`` does it.

``scenarios/apply`` holds one folder per pitfall of reading and writing patches.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from series_support import commit, copy_tree, files_of, git, init
from vllm_series.build import commit_stack
from vllm_series.git import Repository
from vllm_series.patchfile import read_patch
from vllm_series.stack import apply_patch, take_back
from vllm_series.tree import CommitSource, Snapshot

SCENARIOS = sorted((Path(__file__).parent / "scenarios" / "apply").iterdir())


def tree_of(tmp_path: Path, folder: Path) -> tuple[Path, str]:
    """A repository with the files of ``folder``."""
    repo = copy_tree(folder, tmp_path / folder.name)
    init(repo)
    return repo, commit(repo, folder.name)


def files(root: Path) -> dict:
    # Folders without files are nothing to git, and permissions depend on who unpacked the scenario.
    return {
        path: (kind.replace("664", "644").replace("775", "755"), content)
        for path, (kind, content) in files_of(root).items()
        if kind != "dir"
    }


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda p: p.name)
def test_scenario(tmp_path, scenario):
    repo, base = tree_of(tmp_path, scenario / "before")
    repository = Repository.open(repo)
    patch = read_patch(scenario / "x.patch")
    application = apply_patch(Snapshot(CommitSource(repository, base)), patch)
    assert application.ok, application.first_problem()
    (built,) = commit_stack(repository, base, [application])
    git(repo, "checkout", "--quiet", built)
    assert files(repo) == files(scenario / "after")
    assert git(repo, "log", "-1", "--format=%s%n%an %ae").split("\n")[0] == patch.subject
    assert patch.subject.startswith("["), "[Bugfix][PP] is kept"

    back = take_back(Snapshot(CommitSource(repository, built)), patch)
    assert back is not None
    undone = Snapshot(CommitSource(repository, base))
    for path, file in back.items():
        assert undone.get(path) == file, path

    git(repo, "checkout", "--quiet", base)
    git(repo, "apply", "--index", "--whitespace=nowarn", str(scenario / "x.patch"))
    assert git(repo, "write-tree") == git(repo, "rev-parse", f"{built}^{{tree}}")


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda p: p.name)
def test_not_twice(tmp_path, scenario):
    """On its own result a patch does nothing, or is refused; it never changes anything."""
    repo, tip = tree_of(tmp_path, scenario / "after")
    patch = read_patch(scenario / "x.patch")
    application = apply_patch(Snapshot(CommitSource(Repository.open(repo), tip)), patch)
    assert not application.ok or application.empty


def test_through_a_linked_folder(tmp_path):
    """A patch must not write where a link leads: not in the tree, and not outside."""
    (tmp_path / "outside").mkdir()
    repo = init(tmp_path / "repo")
    (repo / "way").symlink_to("../outside")
    tip = commit(repo, "base", {"real/f": "a\n"})
    raw = (
        "From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\n"
        "From: A <a@b.c>\nDate: Mon, 30 Nov 2026 18:17:54 +0000\nSubject: [PATCH] x\n\nbody\n\n"
        "diff --git a/way/f b/way/f\nnew file mode 100644\n--- /dev/null\n+++ b/way/f\n@@ -0,0 +1 @@\n+x\n"
    )
    path = tmp_path / "x.patch"
    path.write_text(raw)
    application = apply_patch(Snapshot(CommitSource(Repository.open(repo), tip)), read_patch(path))
    assert application.first_problem() == "way/f: its parent way is no folder"
