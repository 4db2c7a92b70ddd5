# SPDX-License-Identifier: Apache-2.0
"""Runs at the same time: one works, the others wait their turn or are told; nothing is mixed."""

from __future__ import annotations

import subprocess
from pathlib import Path

from series_support import CONSOLE_SCRIPT, NAMES, clean_env, copy_tree, git, state_of


def together(env: dict[str, str], *commands: tuple[str | Path, ...]) -> list[tuple[int, str]]:
    """Start all at once; exit code and standard error of each."""
    running = [
        subprocess.Popen(
            [CONSOLE_SCRIPT, *map(str, args)],
            env=clean_env(**env),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for args in commands
    ]
    return [(p.returncode, err.decode()) for p in running for _, err in [p.communicate()]]


def test_apply_to_one_checkout(cli, clone):
    ends = together(cli._env({}), *[("apply", "--vllm", clone)] * 4)
    assert {code for code, _ in ends} <= {0, 4}
    assert 0 in {code for code, _ in ends}
    assert all("in use by another vllm-series" in err for code, err in ends if code == 4)
    assert git(clone, "rev-list", "--count", "v0.33.0..HEAD") == str(len(NAMES))
    assert git(clone, "status", "--porcelain") == ""
    assert git(clone, "for-each-ref", "refs/vllm-series") == ""


def test_two_worktrees_of_one_repository(cli, clone, tmp_path):
    """Objects and references are shared, so they share the lock."""
    git(clone, "worktree", "add", "--quiet", "-b", "side", str(tmp_path / "side"), "v0.33.0")
    ends = together(cli._env({}), ("apply", "--vllm", clone), ("apply", "--vllm", tmp_path / "side"))
    for (code, _), tree in zip(ends, (clone, tmp_path / "side"), strict=True):
        count = git(tree, "rev-list", "--count", "v0.33.0..HEAD")
        assert (code, count) in ((0, "4"), (4, "0"))


def test_one_new_folder(cli, tmp_path):
    ends = together(cli._env({}), *[("apply", "--into", tmp_path / "new")] * 3)
    assert 0 in {code for code, _ in ends}
    assert {code for code, _ in ends} <= {0, 4}
    assert git(tmp_path / "new", "rev-list", "--count", "v0.33.0..HEAD") == str(len(NAMES))
    assert {p.name for p in tmp_path.iterdir()} <= {"new", "project", ".new.vllm-series.lock"}


def test_a_new_folder_that_appears_while_another_run_still_plans(cli, tmp_path, monkeypatch):
    from vllm_series.commands import apply

    other = []

    def late(*args):
        if not other:
            other.append(cli.script("apply", "--into", tmp_path / "new"))
        return check_compiles(*args)

    check_compiles = apply.check_compiles
    monkeypatch.setattr(apply, "check_compiles", late)
    done = cli("apply", "--into", tmp_path / "new")
    assert (other[0].code, done.code) == (0, 0), done
    assert "nothing to do" in done.out
    assert done.out.count("sched-log") == 1
    assert not list(tmp_path.glob(".new*"))


def test_one_empty_cache(cli, tmp_path, index):
    env = cli._env({"VLLM_SERIES_CACHE": str(tmp_path / "cache"), "VLLM_SERIES_INDEX": f"{index.url}simple/"})
    ends = together(env, *[("fetch",)] * 3)
    assert 0 in {code for code, _ in ends}
    assert {code for code, _ in ends} <= {0, 4}
    assert (
        git(tmp_path / "cache/vllm.git", "for-each-ref", "--format=%(refname)")
        == "refs/tags/v0.32.0\nrefs/tags/v0.33.0"
    )


def test_readers_beside_a_writer(cli, clone, project, world, tmp_path):
    """Looking takes no lock, and sees the old or the new."""
    cache = copy_tree(world.cache, tmp_path / "cache")
    path = project / "patches/worker-guard.patch"
    path.write_bytes(path.read_bytes() + b"-- \n2.39.5\n\n")
    readers = [("list",), ("status", "--vllm", clone), ("show", "worker-guard"), ("doctor", "--vllm", clone)]
    ends = together(
        cli._env({"VLLM_SERIES_CACHE": str(cache)}), ("refresh",), ("apply", "--vllm", clone), *readers
    )
    codes = [code for code, _ in ends]
    assert codes[:5] == [0] * 5, ends
    assert codes[5] in (0, 5), ends  # doctor may meet the move under way, or the file that is not canonical
    assert state_of(clone)["status"] == ""
