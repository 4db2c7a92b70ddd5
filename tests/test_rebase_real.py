# SPDX-License-Identifier: Apache-2.0
"""The project's own series is carried from one release to another, as a maintainer would do it.

The resolutions are recorded. Those for the newer release are the project's own files, which were made and
proven by hand; so the result must be those files again. Those for a third, older release lie in
``scenarios/rebase-v0.31.0``: each is the difference between what the cherry-pick leaves, with the files in
conflict as upstream has them, and the patch as it reads there. Nothing of that release has been run.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tomlkit
from series_support import Result, files_of, git, link_or_copy, run_here
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

#: A release before those that the project supports.
THIRD = "v0.31.0"
RESOLUTIONS = ROOT / f"tests/scenarios/rebase-{THIRD}"

#: Patches whose target the third release does not have: it projects the indexer's keys apart from Q, K and V,
#: so there is no merge to refuse; and it has no fused kernel that writes the K/V cache, which is where the
#: 8-bit caches start. Each with the word in ``qsa.py`` that came with its target.
NO_TARGET = {
    "gptq-mixed-indexer": "fuse_indexer_projection",
    "qsa-int8-kv": "use_fused_qsa_prepare",
    "qsa-fp8-kv-sm80": "use_fused_qsa_prepare",
    "qsa-8bit-operands": "use_fused_qsa_prepare",
    "qsa-sm86-configs": "use_fused_qsa_prepare",
}

#: A patch that merges by itself, and imports in its test what the third release has elsewhere: nobody asks,
#: so it is put right in its commit when the next question comes.
AMENDED = "pp-embed-head-only-where-used"

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's cache, filled if it is not, as a copy that may be written to."""
    store = Store.default()
    for base in BASES:
        store.fetch(base.ref, base)
    target = tmp_path_factory.mktemp("real") / "cache"
    target.mkdir()
    shutil.copytree(store.repository.git_dir, target / "vllm.git", copy_function=link_or_copy)
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
    # The cache is a copy of the user's own, where exports may have left theirs.
    refs = git(cache / "vllm.git", "for-each-ref", "refs/vllm-series")
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
    assert git(cache / "vllm.git", "for-each-ref", "refs/vllm-series") == refs
    status = run_here("status", "--json", env=env)
    assert status.code == 0, status
    # And back again, byte for byte.
    assert run_here("undo", env=env).code == 0
    assert files_of(older / "patches") == before


def retire_without_target(root: Path) -> None:
    """Retire the patches without a target, as an older release asks for: its plain file would serve it."""
    path = root / "patches/status.toml"
    document = tomlkit.parse(path.read_text())
    for name, word in NO_TARGET.items():
        table = {
            "path": "vllm/models/qwen4_exp/nvidia/qsa.py",
            "pattern": rf"\A(?![\s\S]*\b{word}\b)",
        }
        document[name]["retire"] = table  # type: ignore[index]
    path.write_text(tomlkit.dumps(document))


def amend(tree: Path, name: str) -> None:
    """Change the commit of an earlier patch with plain git, once the patch in question is committed."""
    git(tree, "-c", "core.editor=true", "cherry-pick", "--continue")
    tip = git(tree, "rev-parse", "HEAD")
    target = git(tree, "log", "-1", "--format=%H", f"--grep=^Patch-Name: {name}$")
    git(tree, "checkout", "--quiet", "--detach", target)
    git(tree, "apply", "--index", str(RESOLUTIONS / f"{name}.diff"))
    git(tree, "commit", "--quiet", "--amend", "--no-edit")
    changed = git(tree, "rev-parse", "HEAD")
    git(tree, "checkout", "--quiet", "--detach", tip)
    git(tree, "rebase", "--quiet", "--onto", changed, target)


@pytest.mark.slow
def test_from_the_older_release_to_a_third_one(own, older, cache, tmp_path):
    users = Store.default()
    users.fetch(THIRD)
    tag = f"refs/tags/{THIRD}"
    git(cache / "vllm.git", "fetch", "--quiet", users.repository.git_dir, f"{tag}:{tag}")
    env = {"VLLM_SERIES_CACHE": str(cache), "VLLM_SERIES_DIR": str(older)}

    def run(*args: str | Path) -> Result:
        return run_here(*args, "--json", env=env)

    retire_without_target(older)
    before = files_of(older / "patches")
    result = run("rebase", THIRD)
    asked = []
    while result.code == 3:
        question = result.document["question"]
        asked.append((question["patch"], question["verdict"]))
        assert files_of(older / "patches") == before
        tree = Path(question["tree"])
        git(tree, "checkout", "--quiet", "--force", "HEAD", "--", *question["conflicts"])
        git(tree, "apply", "--index", str(RESOLUTIONS / f"{question['patch']}.diff"))
        if len(asked) == 6:
            amend(tree, AMENDED)
        result = run("rebase", "--continue")
    assert result.code == 0, (asked, result.err)
    document = result.document
    print(*asked, *document["carried"], *document["dropped"], document["report"], sep="\n")
    recorded = {path.stem for path in RESOLUTIONS.iterdir()}
    questions = [name for name in Project(older).series.names if name in recorded - {AMENDED}]
    assert asked == [(name, "conflict") for name in questions]
    assert len(asked) == len(recorded) - 1 == 6
    report = document["report"]
    assert report["ok"]
    assert report["unexplained"] == []
    assert {row["name"] for row in document["carried"] if row["how"] == "resolved"} == recorded
    assert {row["name"] for row in document["dropped"]} == set(NO_TARGET)
    names = [row["name"] for row in (*document["carried"], *document["dropped"])]
    assert sorted(names) == sorted(Project(older).series.names)
    # The older release stays the pinned one, and is served by the bytes that served it.
    found = Project(older)
    assert [base.ref for base in found.bases] == [OLD.ref, THIRD]
    for patch in own.patches(OLD):
        kept = found.patch(patch.name, found.pinned)
        assert kept is not None, patch.name
        assert kept.raw == patch.raw, patch.name
    # What was written applies by itself, and every file of it is Python.
    checkout = tmp_path / "vllm"
    result = run("apply", "--onto", THIRD, "--into", checkout)
    assert result.code == 0, result
    carried = [row["name"] for row in document["carried"]]
    names = git(checkout, "log", "--reverse", "--format=%(trailers:key=Patch-Name,valueonly)", f"{THIRD}..")
    assert names.split() == carried
    paths = git(checkout, "diff", "--name-only", "--diff-filter=d", THIRD, "--", "*.py").split("\n")
    assert len(paths) > len(carried)
    for path in paths:
        compile((checkout / path).read_bytes(), path, "exec")
    # And back again, byte for byte.
    assert run("undo").code == 0
    assert files_of(older / "patches") == before
