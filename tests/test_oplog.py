# SPDX-License-Identifier: Apache-2.0
"""The log of operations: what is recorded, undone, done again, and refused."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import pytest
from series_support import commit, copy_tree, die_at, files_of, git, init, run_here
from vllm_series.errors import PreconditionError
from vllm_series.oplog import Operation, happened, read_files, read_history, recorded, replay, tree_of
from vllm_series.privatefolder import private_folder
from vllm_series.project import Project


@pytest.fixture(params=["folder", "repository", "linked worktree"])
def root(request, project, tmp_path) -> Path:
    """A project that is no repository, one that is, and one that is a linked working tree."""
    if request.param == "folder":
        return project
    init(project)
    commit(project, "start")
    if request.param == "repository":
        return project
    git(project, "worktree", "add", "--quiet", "--detach", str(tmp_path / "linked"))
    return tmp_path / "linked"


def state(root: Path) -> dict:
    files = files_of(root / "patches")
    return {**files, "series": (root / "series").read_bytes()}


def change(root: Path, number: int) -> None:
    """Change series and patches at once."""
    with recorded(Project(root), "drop", f"number {number}") as it:
        it.write("series", it.project.series.render().encode() + b"# %d\n" % number)
        it.write(f"patches/v0.1.0/new-{number}.txt", b"new\n")
        if number == 1:
            it.remove("patches/sched-log.patch")


def test_tree_ids_are_those_of_git(root):
    (root / "patches/a").mkdir()
    (root / "patches/a/x").write_text("x")
    (root / "patches/a.b").write_text("x")
    (root / "patches/a-b").symlink_to("a.b")
    (root / "patches/a.b").chmod(0o755)
    repository = init(root.parent / "check")
    copy_tree(root / "patches", repository / "patches")
    shutil.copy(root / "series", repository / "series")
    git(repository, "add", "-A")
    assert tree_of(read_files(root)) == git(repository, "write-tree")


def test_undo_and_redo_bring_back_the_bytes(cli, root):
    cli.project = root
    (root / "patches/link").symlink_to("status.toml")
    (root / "patches/status.toml").chmod(0o755)
    states = [state(root)]
    for number in (1, 2, 3):
        change(root, number)
        states.append(state(root))
    assert states[1] != states[0]
    assert cli("undo").code == 0
    assert state(root) == states[2]
    assert cli("undo", "-n", "2").code == 0
    assert state(root) == states[0]
    for args in (("undo",), ("undo", "-n", "0"), ("redo", "-n", "4")):
        assert cli(*args).code == 2
    assert cli("redo", "-n", "3").code == 0
    assert state(root) == states[3]
    assert cli("undo").code == 0
    change(root, 4)
    assert cli("redo").code == 2
    result = cli("log", "--json")
    assert result.code == 0
    rows = [(row["verb"], row["state"]) for row in result.document["operations"]]
    assert rows == [
        ("drop", "done"),
        ("undo", None),
        ("redo", None),
        ("undo", None),
        ("undo", None),
        ("drop", "superseded"),
        ("drop", "done"),
        ("drop", "done"),
    ]
    assert "number 4" in cli("log").out
    if (root / ".git").exists():
        shown = git(root, "status", "--porcelain").split("\n")
        assert [row for row in shown if "vllm-series" in row] == ["?? .vllm-series.lock"]


def test_hand_made_edits_stop_it(cli, root):
    cli.project = root
    change(root, 1)
    path = root / "patches/status.toml"
    text = path.read_text()
    path.write_text(text + "# by hand\n")
    before = state(root)
    result = cli("undo", "--json")
    assert result.code == 4, result
    assert result.document["error"]["paths"] == ["patches/status.toml"]
    assert state(root) == before
    assert cli("log", "--json").document["edited"] is True
    # An edit between two operations is not lost either.
    change(root, 2)
    assert cli("undo").code == 0
    assert state(root) == before
    result = cli("undo")
    assert result.code == 4, result
    assert "edited by hand since" in result.err
    path.write_text(text)
    assert cli("undo").code == 0
    path.write_text(text + "# again\n")
    assert cli("redo").code == 4


def test_two_at_once_hide_an_edit_between_them(cli, root):
    cli.project = root
    change(root, 1)
    (root / "patches/status.toml").write_text("# by hand\n")
    change(root, 2)
    result = cli("undo", "-n", "2")
    assert result.code == 4, result
    assert "edited by hand between two operations" in result.err


def test_a_text_of_several_lines_is_one_line_of_the_log(cli, root):
    with recorded(Project(root), "drop", "it:\nsolved\u2028upstream ") as it:
        it.write("series", (root / "series").read_bytes() + b"# more\n")
    (operation,) = read_history(root).operations
    assert operation.text == "it: solved upstream"
    done = cli("log", "--series-dir", root)
    assert done.code == 0, done
    assert "it: solved upstream" in done.out


def test_what_changes_nothing_is_not_recorded(root):
    with recorded(Project(root), "refresh", "nothing") as it:
        it.write("series", (root / "series").read_bytes())
        it.remove("patches/nothing.patch")
    assert it.number is None
    assert read_history(root).operations == ()
    with contextlib.suppress(KeyError), recorded(Project(root), "refresh", "fails") as it:
        it.write("series", b"")
        raise KeyError
    assert read_history(root).operations == ()
    assert (root / "series").read_bytes() != b""
    with pytest.raises(ValueError, match="no part"), recorded(Project(root), "refresh", "x") as it:
        it.write("README.md", b"")


def test_another_verb_is_paused(cli, root):
    cli.project = root
    place = private_folder(root)
    place.ensure()
    place.state_of("edit").write_text("{}")
    with pytest.raises(PreconditionError, match="edit is in progress"):
        change(root, 1)
    assert cli("undo").code == 4
    with recorded(Project(root), "edit", "its own") as it:
        it.write("patches/x.txt", b"x\n")
    assert it.number == 1


def test_working_trees_of_one_repository_have_logs_of_their_own(cli, project, tmp_path):
    init(project)
    commit(project, "start")
    linked = tmp_path / "linked"
    git(project, "worktree", "add", "--quiet", "--detach", str(linked))
    change(project, 1)
    assert read_history(linked).operations == ()
    cli.project = linked
    assert cli("undo").code == 2


def operation(number: int, before: str, after: str, verb: str = "drop", count: int = 0) -> Operation:
    return Operation(number, verb, "", 0, count, before, after)


def test_what_was_recorded_and_did_not_happen():
    one, two = operation(1, "a", "b"), operation(2, "a", "c")
    assert happened([one, two], "c") == [two]
    assert happened([one, two], "a") == []
    assert happened([one], "x") == [one]
    assert replay([one, operation(2, "b", "a", "undo", 1), operation(3, "a", "b", "redo", 1)]) == ([one], [])


@pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "two renames"])
@pytest.mark.parametrize("after", [False, True])
def test_killed_at_every_step(cli, project, tmp_path, monkeypatch, exchange, after):
    """Series and patches are both old or both new for whoever looks next."""
    from vllm_series import swap

    if not exchange:
        monkeypatch.setattr(swap, "_exchange", lambda *_: False)
    old = state(project)
    change(project, 1)
    new = state(project)
    cli.project = None
    died = 0
    for number in range(2 if after else 1, 400, 7):
        work = copy_tree(project, tmp_path / f"work-{number}")
        env = cli._env({"VLLM_SERIES_DIR": str(work)})
        result = die_at(number, "undo", after=after, env=env)
        if result is not None:
            assert result.code == 0, result
            break
        died += 1
        looked = run_here("log", "--json", env=env)
        assert looked.code == 0, looked
        assert state(work) in (old, new), number
        again = run_here("undo", env=env)
        assert again.code == (0 if state(work) == old and again.code == 0 else 2), again
        assert state(work) == old
        assert run_here("redo", env=env).code == 0
        assert state(work) == new
        assert not list(work.glob(".patches*"))
    assert died > 3


def test_a_log_of_another_version(cli, project):
    change(project, 1)
    repository = private_folder(project).ensure_log()
    ref = "refs/vllm-series/ops/1"
    row = json.dumps({"schema": 99})
    tree = repository.trees([ref])[0]
    text = git(repository.git_dir, "commit-tree", tree, "-p", ref + "^", "-m", f"x: y\n\n{row}")
    git(repository.git_dir, "update-ref", ref, text)
    result = cli("log")
    assert result.code == 4, result
    assert "another version" in result.err
