# SPDX-License-Identifier: Apache-2.0
"""The tool on the real releases, with the series of this checkout."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from series_support import files_of, git, link_or_copy, run_here
from vllm_series.bases import parse_bases
from vllm_series.git import Repository
from vllm_series.patchfile import read_patch
from vllm_series.store import Store

ROOT = Path(__file__).resolve().parents[1]
BASES = parse_bases((ROOT / "patches/base.toml").read_text())

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
def run(cache):
    env = {
        "VLLM_SERIES_CACHE": str(cache),
        "VLLM_SERIES_DIR": str(ROOT),
        "VLLM_SERIES_INDEX": "http://127.0.0.1:9/",
    }
    return lambda *args: run_here(*args, env=env)


def test_commit_ids_are_the_stated_ones(cache):
    for base in BASES:
        assert git(cache / "vllm.git", "rev-parse", base.ref) == base.commit


def test_nothing_generated_is_in_the_tree(cache):
    for base in BASES:
        names = git(cache / "vllm.git", "ls-tree", "-r", "--name-only", base.ref).split("\n")
        assert "vllm/__init__.py" in names
        assert not [n for n in names if n == "PKG-INFO" or "egg-info" in n or n == "vllm/_version.py"]


def test_the_series_applies_to_every_base(run, tmp_path):
    result = run("status", "--strict", "--json")
    assert result.code == 0, result
    for base in BASES:
        folder = tmp_path / base.ref
        applied = run("apply", "--onto", base.ref, "--into", folder, "--json")
        assert applied.code == 0, applied
        rows = applied.document["patches"]
        assert rows
        repository = Repository.open(folder)
        for row in rows:
            name = row["name"]
            variant = ROOT / "patches" / base.ref / f"{name}.patch"
            file = variant if variant.exists() and base != BASES[0] else ROOT / "patches" / f"{name}.patch"
            built = repository.format_patches(f"{row['commit']}^", row["commit"])
            if not row["offset"]:
                assert repository.patch_id(built) == repository.patch_id(read_patch(file).raw), name
        assert git(folder, "status", "--porcelain") == ""
        again = run("apply", "--onto", base.ref, "--into", folder, "--json")
        assert again.document["action"] == "unchanged"
        tip, last = git(folder, "rev-parse", "HEAD"), rows[-1]["name"]
        assert run("unapply", last, "--vllm", folder).code == 0
        picked = run("pick", last, "--vllm", folder, "--json")
        # What the branch has already is not named as a prerequisite.
        assert picked.document["skipped"] == []
        assert git(folder, "rev-parse", "HEAD") == tip


def test_the_files_are_as_they_should_be(run):
    before = files_of(ROOT / "patches")
    assert run("check").code == 0
    result = run("refresh", "--check")
    assert result.code == 0, result
    assert files_of(ROOT / "patches") == before


def test_two_clones_and_a_release_give_the_same_tree(run, tmp_path):
    ids = set()
    for name in ("one", "two"):
        assert run("apply", "--into", tmp_path / name).code == 0
        ids.add(git(tmp_path / name, "rev-parse", "HEAD"))
    assert len(ids) == 1


def test_the_real_pipeline_selects_the_homes_of_the_series_tests(cache):
    from vllm_series.gates.tests import pipeline_steps
    from vllm_series.subjects import read_pipeline

    steps = pipeline_steps(read_pipeline(Repository.bare(cache / "vllm.git"), BASES[0].commit))
    assert len(steps) > 100
    # Its CPU step takes the marked ones alone, and the step for the others is commented out.
    unit = "tests/v1/kv_connector/unit/offloading_connector/test_config.py"
    for path, text, selected in [
        ("tests/models/qwen4_exp/test_config.py", "", True),
        ("tests/models/qwen4_exp/test_ple.py", "", True),
        ("tests/v1/core/test_kv_cache_planning.py", "", True),
        ("tests/models/qwen4_exp/test_new.py", "", False),
        (unit, "", False),
        (unit, "pytestmark = pytest.mark.cpu_test\n", True),
    ]:
        assert any(step.selects(path, text) for step in steps) is selected, path


def test_every_patch_leaves_as_a_branch_that_git_am_rebuilds(cache, tmp_path):
    (tmp_path / ".gitconfig").write_text("[user]\nname = Maria Maintainer\nemail = maria@vllm-ampere.org\n")
    env = {"VLLM_SERIES_CACHE": str(cache), "VLLM_SERIES_DIR": str(ROOT), "HOME": str(tmp_path)}
    result = run_here("export", "--no-test", "--json", "--into", tmp_path / "export", env=env)
    assert result.code in (0, 1), result
    store, fresh = cache / "vllm.git", tmp_path / "fresh"
    git(tmp_path, "clone", "--quiet", "--shared", "--branch", BASES[0].ref, str(store), str(fresh))
    for row in result.document["patches"]:
        folder = Path(row["folder"])
        assert {"PULL_REQUEST.md", "SEND.md", "evidence.json"} <= {path.name for path in folder.iterdir()}
        mailbox = git(store, "format-patch", "--stdout", f"{BASES[0].ref}..{row['branch']}") + "\n"
        git(fresh, "checkout", "--quiet", "--detach", BASES[0].ref)
        git(fresh, "am", "--quiet", data=mailbox.encode("utf-8", "surrogateescape"))
        assert git(fresh, "rev-parse", "HEAD^{tree}") == git(store, "rev-parse", f"{row['branch']}^{{tree}}")
        for message in git(store, "log", "--format=%B%x00", f"{BASES[0].ref}..{row['branch']}").split("\0")[
            :-1
        ]:
            assert "Patch-Name" not in message
            assert message.count("Signed-off-by: Maria Maintainer <maria@vllm-ampere.org>") == 1
