# SPDX-License-Identifier: Apache-2.0
"""The project's own series is carried from its older release to the newer one, as a maintainer would do it.

The resolutions are recorded: they are the project's own files for the newer release, which were made and
proven by hand. So the result must be those files again.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from series_support import Result, files_of, git, run_here
from vllm_series.bases import parse_bases
from vllm_series.dropped import parse_dropped
from vllm_series.patchfile import Patch
from vllm_series.project import Project
from vllm_series.store import Store

ROOT = Path(__file__).resolve().parents[1]
BASES = parse_bases((ROOT / "patches/base.toml").read_text())
NEW, OLD = BASES[0], BASES[1]

#: Patches that apply as they are, and whose new tests were written anew for the newer release.
OTHER_TESTS = {"pp-embed-head-only-where-used"}

pytestmark = pytest.mark.network


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's cache, filled if it is not, as a copy that may be written to."""
    store = Store.default()
    for base in BASES:
        store.fetch(base.ref, base)
    target = tmp_path_factory.mktemp("real") / "cache"
    target.mkdir()
    shutil.copytree(store.repository.git_dir, target / "vllm.git", copy_function=_link)
    return target


@pytest.fixture(scope="module")
def own() -> Project:
    return Project(ROOT)


@pytest.fixture
def older(own: Project, tmp_path: Path) -> Path:
    """The project as it was when the older release was the only base."""
    root = tmp_path / "older"
    (root / "patches").mkdir(parents=True)
    patches = own.patches(OLD)
    for patch in patches:
        (root / "patches" / f"{patch.name}.patch").write_bytes(patch.raw)
    (root / "series").write_text("".join(f"{patch.name}.patch\n" for patch in patches))
    rows = "".join(f'{key} = "{value}"\n' for key, value in vars(OLD).items())
    (root / "patches/base.toml").write_text(f"# Bases.\n[[base]]\n{rows}")
    shutil.copy(ROOT / "patches/status.toml", root / "patches/status.toml")
    return root


@pytest.fixture(scope="module")
def answers(own: Project, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout of the newer release with the project's own series: one commit per patch."""
    folder = tmp_path_factory.mktemp("answers") / "vllm"
    env = {"VLLM_SERIES_CACHE": str(cache), "VLLM_SERIES_DIR": str(ROOT)}
    result = run_here("apply", "--onto", NEW.ref, "--into", folder, env=env)
    assert result.code == 0, result
    return folder


def resolve(answers: Path, tree: Path, name: str) -> None:
    """Bring the files of the patch in question to what they are in the recorded stack."""
    commit = git(answers, "log", "-1", "--format=%H", f"--grep=^Patch-Name: {name}$")
    git(tree, "fetch", "--quiet", str(answers), commit)
    paths = git(tree, "diff-tree", "-r", "--name-only", "--no-commit-id", commit).split("\n")
    mine = git(tree, "diff", "--name-only", "HEAD").split("\n")
    for path in sorted({*paths, *filter(None, mine)}):
        if git(tree, "ls-tree", commit, "--", path):
            git(tree, "checkout", "--quiet", "--force", commit, "--", path)
        else:
            git(tree, "rm", "--quiet", "--force", "--ignore-unmatch", "--", path)


def change_of(patch: Patch) -> list[object]:
    """What a patch does: per file its hunks, wherever they stand."""
    skipped = "tests/" if patch.name in OTHER_TESTS else "\0"
    return [(c.path, [h.lines for h in c.hunks]) for c in patch.changes if not c.path.startswith(skipped)]


def test_from_the_older_release_to_the_newer_one(own, older, cache, answers):
    env = {"VLLM_SERIES_CACHE": str(cache), "VLLM_SERIES_DIR": str(older)}

    def run(*args: str) -> Result:
        return run_here("rebase", *args, "--json", env=env)

    before = files_of(older / "patches")
    result = run(NEW.ref)
    asked = []
    while result.code == 3:
        question = result.document["question"]
        asked.append((question["patch"], question["verdict"]))
        assert files_of(older / "patches") == before
        tree = Path(question["tree"])
        resolve(answers, tree, question["patch"])
        result = run("--continue")
    assert result.code == 0, (asked, result.err)
    document = result.document
    print(*asked, *document["carried"], *document["dropped"], document["report"], sep="\n")
    assert document["report"]["ok"]
    assert document["report"]["unexplained"] == []
    # Every patch is there or was said to be not needed; nothing else can have got lost.
    names = [row["name"] for row in (*document["carried"], *document["dropped"])]
    assert sorted(names) == sorted(Project(older).series.names)
    assert [row["name"] for row in document["dropped"]] == ["gptq-ple-unquantized"]
    found = Project(older)
    assert [base.ref for base in found.bases] == [NEW.ref, OLD.ref]
    for patch in own.patches(NEW):
        mine = found.patch(patch.name, found.pinned)
        assert mine is not None, patch.name
        assert change_of(patch) == change_of(mine), patch.name
    # The older release is served by the bytes that served it.
    for patch in own.patches(OLD):
        kept = found.patch(patch.name, found.bases[1])
        assert kept is not None, patch.name
        assert kept.raw == patch.raw, patch.name
    rows = parse_dropped((older / "patches/dropped.toml").read_text())
    assert [(row.name, row.base, row.verdict) for row in rows] == [
        ("gptq-ple-unquantized", NEW.ref, "retired")
    ]
    assert not (cache / "rebase" / tree.name).exists()
    assert git(cache / "vllm.git", "for-each-ref", "refs/vllm-series") == ""
    status = run_here("status", "--json", env=env)
    assert status.code == 0, status
    # And back again, byte for byte.
    assert run_here("undo", env=env).code == 0
    assert files_of(older / "patches") == before
