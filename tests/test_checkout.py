# SPDX-License-Identifier: Apache-2.0
"""Moving a person's checkout: killed or interrupted anywhere, it is the old one or the new one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from series_support import (
    CONSOLE_SCRIPT,
    NAMES,
    clean_env,
    commit,
    copy_tree,
    die_at,
    git,
    state_of,
    write,
)
from vllm_series.checkout import Journal, interrupted, recover
from vllm_series.git import Repository


def start(clone: Path, target: Path) -> Path:
    """A checkout with local work that the series does not touch."""
    copy_tree(clone, target)
    write(
        target, {"README.md": "my words\n", "notes/mine.txt": "untracked\n", "vllm/__init__.py": "# mine\n"}
    )
    git(target, "add", "vllm/__init__.py")
    return target


#: What is run, beginning from what.
RUNS = {
    "apply": ("apply", "--vllm"),
    "apply to another release": ("apply", "--onto", "v0.32.0", "--vllm"),
    "apply to a branch": ("apply", "--onto", "v0.33.0", "--branch", "there", "--vllm"),
    "pick": ("pick", "sched-log", "--vllm"),
    "unapply": ("unapply", "sched-log", "--vllm"),
}


@pytest.mark.parametrize(
    ("run", "after", "stride"),
    [
        ("apply", False, 1),
        ("apply", True, 1),
        ("apply to another release", True, 2),
        ("apply to a branch", False, 2),
        ("pick", False, 3),
        ("unapply", True, 3),
    ],
)
def test_killed_at_every_step(cli, clone, applied, tmp_path, run, after, stride):
    source = applied if run == "unapply" else clone
    if run == "apply to another release":
        git(source, "checkout", "--quiet", "--detach", "v0.33.0")  # README.md differs between the releases.
    if run == "apply to a branch":
        git(source, "branch", "there", "v0.32.0")
    first = start(source, tmp_path / "first")
    if run == "apply to another release":
        git(first, "checkout", "--", "README.md")
    old = state_of(first)
    last = copy_tree(first, tmp_path / "last")
    assert cli(*RUNS[run], last).code == 0
    new = state_of(last)
    assert new["commit"] != old["commit"]
    ends = set()
    for number in range(1, 200, stride):
        work = copy_tree(first, tmp_path / f"work-{number}")
        result = die_at(number, *RUNS[run], work, after=after, env=cli._env({}))
        if result is not None:
            assert (result.code, state_of(work)) == (0, new), number
            break
        # Looking is enough: whatever opens the checkout next clears up.
        dry = cli("pick", "engine-fix", "--vllm", work, "--dry-run")
        assert dry.code in (0, 4), dry
        found = state_of(work)
        assert found in (old, new), (number, dry)
        ends.add(found == new)
        assert not (work / ".git/index.lock").exists()
        if found == old and number % 3 == 1:
            again = cli(*RUNS[run], work)
            assert again.code == 0, again
            assert state_of(work) == new
    else:
        raise AssertionError("it never came to an end")
    assert ends == {False, True}
    assert number > 10


@pytest.mark.parametrize("number", [*range(6, 30, 4)])
def test_interrupted_rolls_back(cli, clone, tmp_path, number):
    """SIGTERM, Ctrl-C and a closed terminal: exit 130 with everything as it was."""
    work = start(clone, tmp_path / "work")
    old = state_of(work)
    for send in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        result = die_at(number, "apply", "--vllm", work, "--json", send=send, env=cli._env({}))
        assert result is not None
        if result.code == 0:
            return  # It was done before.
        assert result.code == 130, result
        assert result.document["error"]["kind"] == "interrupted"
        assert state_of(work) == old
        assert not (work / ".git/vllm-series-move.json").exists()


@pytest.mark.parametrize("delay", [0.02, 0.05, 0.08, 0.12])
def test_killed_with_its_git(cli, clone, tmp_path, delay):
    """The whole process group at once, wherever it is: as when the power goes."""
    work = start(clone, tmp_path / "work")
    old = state_of(work)
    # A fork of this process begins at once; its git commands are killed with it.
    child = os.fork()
    if child == 0:
        os.setsid()
        from series_support import run_here

        try:
            run_here("apply", "--vllm", work, env=cli._env({}))
        finally:
            os._exit(0)
    time.sleep(delay)
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert cli("pick", "engine-fix", "--vllm", work, "--dry-run").code == 0
    found = state_of(work)
    if found != old:
        assert found["files"]["vllm/log.py"]
        assert git(work, "rev-list", "--count", "v0.33.0..HEAD") == "4"
    assert cli("apply", "--vllm", work).code == 0
    assert git(work, "rev-list", "--count", "v0.33.0..HEAD") == "4"


def half_moved(clone: Path, applied: Path) -> tuple[Repository, str, str]:
    """A journal as a kill in the middle leaves it: one file is new, HEAD is old."""
    import json
    from dataclasses import asdict

    git(clone, "fetch", "--quiet", str(applied), "main:refs/heads/patched")
    repository = Repository.open(clone)
    old, new = git(clone, "rev-parse", "HEAD"), git(clone, "rev-parse", "patched")
    git(clone, "branch", "-D", "patched")
    journal = Journal(old, new, "main", old, tuple(repository.changed_paths(old, new)))
    (clone / ".git/vllm-series-move.json").write_text(json.dumps(asdict(journal)))
    write(clone, {"vllm/worker.py": (applied / "vllm/worker.py").read_bytes(), "vllm/log.py": b"# SP"})
    return repository, old, new


def test_what_a_person_edits_after_the_kill_is_kept(clone, applied):
    repository, _, _ = half_moved(clone, applied)
    write(clone, {"vllm/engine.py": "my edit\n"})
    assert interrupted(repository)
    said = recover(repository)
    saved = list((clone / ".git/vllm-series-saved").rglob("engine.py"))
    assert [p.read_text() for p in saved] == ["my edit\n"]
    assert "vllm-series-saved" in said
    assert git(clone, "status", "--porcelain") == ""
    assert not interrupted(repository)
    # Half-written and whole files of the tool's own are nobody's edits.
    assert not list((clone / ".git/vllm-series-saved").rglob("worker.py"))
    assert not list((clone / ".git/vllm-series-saved").rglob("log.py"))


def test_a_person_who_moved_on_is_left_alone(clone, applied):
    repository, _, _ = half_moved(clone, applied)
    git(clone, "reset", "--quiet", "--hard")
    (clone / "vllm/log.py").unlink(missing_ok=True)
    commit(clone, "mine", {"vllm/worker.py": "mine\n"})
    write(clone, {"vllm/engine.py": "my edit\n"})
    before = state_of(clone)
    assert "left as it is" in recover(repository)
    assert state_of(clone) == before


def test_lock_files_of_a_dead_git_go(cli, clone, applied):
    half_moved(clone, applied)
    for name in ("index.lock", "HEAD.lock", "refs/heads/main.lock"):
        (clone / ".git" / name).write_text("")
    result = cli("apply", "--vllm", clone)
    assert result.code == 0, result
    assert "interrupted run was taken back" in result.err


def test_nothing_is_removed_through_a_link(clone, applied, tmp_path):
    """The path of a file that was to be made leads elsewhere by now."""
    repository, _, _ = half_moved(clone, applied)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/x").write_text("precious\n")
    (clone / "fresh").symlink_to(tmp_path / "outside")
    repository.restore("HEAD", ["fresh/x"])
    assert (tmp_path / "outside/x").read_text() == "precious\n"


def test_status_and_doctor_do_not_clear_up(cli, clone, applied):
    """They only look, also beside a running apply."""
    half_moved(clone, applied)
    before = state_of(clone)
    cli("status", "--vllm", clone)
    result = cli("doctor", "--vllm", clone)
    assert "interrupted" in result.out
    assert state_of(clone) == before


def test_a_new_folder_killed_at_every_step(cli, tmp_path):
    for number in range(1, 200):
        result = die_at(number, "apply", "--into", tmp_path / "new", env=cli._env({}))
        if result is not None:
            break
        if (tmp_path / "new").exists():
            assert git(tmp_path / "new", "rev-list", "--count", "v0.33.0..HEAD") == str(len(NAMES))
            assert git(tmp_path / "new", "status", "--porcelain") == ""
            break
    assert number > 10
    assert cli("apply", "--into", tmp_path / "new").code == 0
    git(tmp_path / "new", "fsck", "--strict")
    leftovers = {p.name for p in tmp_path.iterdir()} - {"new", "project"}
    assert leftovers <= {".new.vllm-series.lock"}, "a killed run leaves at most its lock file"


def test_ctrl_c_in_a_terminal(cli, clone, tmp_path):
    """The console script itself, with the signal to its whole group, as a terminal sends it."""
    work = start(clone, tmp_path / "work")
    old = state_of(work)
    process = subprocess.Popen(
        [CONSOLE_SCRIPT, "apply", "--vllm", work],
        env=clean_env(**cli._env({})), stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode in (0, 130), err
    assert b"Traceback" not in err
    if process.returncode == 130:
        assert state_of(work) == old
    assert sys.version_info >= (3, 11)
