# SPDX-License-Identifier: Apache-2.0
"""``new`` and ``edit``: a patch in a checkout, whatever is done there, and whatever happens to it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from series_support import (
    NAMES,
    commit,
    copy_tree,
    die_at,
    files_of,
    git,
    message,
    patches_of,
    refused,
    run_here,
    write,
)
from vllm_series.patchfile import read_patch

TITLE = ("--title", "[Core] Be new")


@pytest.fixture
def cli(cli, tmp_path, monkeypatch):
    """With a person who is known to git, in a folder of their own."""
    home = tmp_path / "home"
    write(home, {".gitconfig": "[user]\n\tname = Eve\n\temail = eve@example.org\n"})
    cli.env.update(HOME=str(home), XDG_CONFIG_HOME=str(home))
    monkeypatch.chdir(home)
    return cli


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "open"


def names_of(project: Path) -> list[str]:
    return [line.removesuffix(".patch") for line in (project / "series").read_text().splitlines()[1:]]


def opened(cli, folder: Path, name: str, *args) -> Path:
    result = cli("edit", name, "--into", folder, *args)
    assert result.code == 0, result
    return folder


def replace(folder: Path, path: str, old: str, new: str) -> None:
    text = (folder / path).read_text()
    assert old in text
    (folder / path).write_text(text.replace(old, new))


# -- opening ----------------------------------------------------------------------------------------------


def test_the_checkout_has_the_series_up_to_the_patch(cli, project, folder):
    before = patches_of(project)
    opened(cli, folder, "worker-guard")
    assert git(folder, "log", "--format=%(trailers:key=Patch-Name,valueonly,separator=)", "-2").split() == [
        "worker-guard", "engine-fix",
    ]  # fmt: skip
    assert git(folder, "status", "--porcelain") == ""
    assert git(folder, "branch", "--show-current") == "worker-guard"
    assert "worker-guard is open in" in cli("edit").out
    assert patches_of(project) == before
    assert cli("edit", "--abort").code == 0
    assert not folder.exists()
    assert patches_of(project) == before
    assert not (project / ".vllm-series/edit.json").exists()


def test_while_one_is_open(cli, project, folder, tmp_path):
    opened(cli, folder, "worker-guard")
    for args in (
        ("edit", "engine-fix", "--into", tmp_path / "two"),
        ("new", "x", *TITLE, "--into", tmp_path / "two"),
        ("move", "worker-guard", "--before", "engine-fix"),
        ("drop", "sched-log", "--reason", "x"),
        ("refresh",),
    ):
        refused(cli, project, 4, *args, words="--abort")
    assert not (tmp_path / "two").exists()
    assert cli("status").code == 0
    assert cli("apply", "--into", tmp_path / "three").code == 0


def test_what_cannot_be_opened(cli, project, folder, tmp_path):
    refused(cli, project, 4, "edit", "--save", words="no patch is open")
    refused(cli, project, 2, "edit", "nope", words="no patch nope")
    refused(cli, project, 2, "edit", "sched-log", "--save", words="exclude")
    refused(cli, project, 2, "edit", "sched-log", "--onto", "v0.31.0", words="no supported base")
    refused(cli, project, 2, "new", "engine-fix", *TITLE, words="already")
    refused(cli, project, 2, "new", "x", words="--title")
    write(folder, {"mine": "x"})
    refused(cli, project, 4, "edit", "sched-log", "--into", folder, words="exists")
    assert (folder / "mine").read_text() == "x"
    path = project / "patches/worker-guard.patch"
    path.write_bytes(path.read_bytes().replace(b"load_4", b"lxxd_4"))
    refused(
        cli, project, 3, "edit", "sched-log", "--into", tmp_path / "x", words="worker-guard does not apply"
    )
    assert not (tmp_path / "x").exists()


def test_nothing_is_open(cli, project, folder):
    """To ask is no fault, nor to take back what is not there."""
    before = files_of(project)
    for args, words in (("edit",), "no patch is open; "), (("edit", "--abort"), "no patch was open; "):
        result = cli(*args)
        assert (result.code, result.err) == (0, ""), result
        assert result.out.startswith(words)
        assert cli(*args, "--json").document["name"] is None
    for args in ("edit", "--save"), ("rebase", "--continue"), ("rebase", "--skip", "why"):
        assert cli(*args).code == 4
    assert cli("rebase", "--abort").code == 0
    assert files_of(project) == before


# -- saving -----------------------------------------------------------------------------------------------


def test_nothing_changed(cli, project, folder):
    before = patches_of(project)
    opened(cli, folder, "worker-guard")
    result = cli("edit", "--save")
    assert result.code == 0, result
    assert "worker-guard was not changed" in result.out
    assert patches_of(project) == before
    assert not folder.exists()


@pytest.mark.parametrize("how", ["tree", "amend", "more"])
def test_edits_in_any_form(cli, project, folder, how, tmp_path):
    before = patches_of(project)
    opened(cli, folder, "worker-guard")
    replace(folder, "vllm/worker.py", "assert path\n", "assert path, 'none'\n")
    write(folder, {"vllm/guard.py": "# SPDX-License-Identifier: Apache-2.0\nON = True\n"})
    if how != "tree":
        git(folder, "add", "-A")
    if how == "amend":
        git(folder, "commit", "--quiet", "--amend", "--no-edit")
    if how == "more":
        git(folder, "commit", "--quiet", "-m", "fixup")
    result = cli("edit", "--save", "--json")
    assert result.code == 0, result
    assert result.document["written"] == ["worker-guard.patch"]
    old = {p: c for p, c in before.items() if p != "patches/worker-guard.patch"}
    assert {p: c for p, c in patches_of(project).items() if p != "patches/worker-guard.patch"} == old
    patch = read_patch(project / "patches/worker-guard.patch")
    assert "+        assert path, 'none'\n" in patch.diff_text
    assert "vllm/guard.py" in patch.paths
    assert patch.author.name == "Ada Lovelace"
    assert patch.subject == "[Core] Demand a path [kernel] [/x]"
    assert cli("refresh", "--check").code == 0
    assert cli("check").code == 0
    assert cli("apply", "--onto", "v0.32.0", "--into", tmp_path / "old").code == 0
    assert (tmp_path / "old/vllm/guard.py").exists()
    assert cli("undo").code == 0
    assert patches_of(project) == before


def test_a_new_message_and_author(cli, project, folder):
    opened(cli, folder, "worker-guard")
    text = message("worker-guard", "[Core] Another title", body="New words.")
    git(folder, "commit", "--quiet", "--amend", "--author=Bob <bob@x>", "-m", text)
    assert cli("edit", "--save").code == 0
    patch = read_patch(project / "patches/worker-guard.patch")
    assert (patch.subject, patch.author.name) == ("[Core] Another title", "Bob")
    # A message without the trailers gets them: it is the same patch.
    opened(cli, folder, "worker-guard")
    git(folder, "reset", "--quiet", "--soft", "HEAD~1")
    git(folder, "commit", "--quiet", "-m", "[Core] Short\n\nWords.\n\nReviewed-by: C <c@d>")
    assert cli("edit", "--save").code == 0
    patch = read_patch(project / "patches/worker-guard.patch")
    assert patch.body == "Words.\n\nReviewed-by: C <c@d>\nPatch-Name: worker-guard\nOrigin: own"
    assert cli("check").code == 0


def test_the_patches_behind_it_follow_or_refuse(cli, project, folder):
    """A line that the next patch changes too: the edit stays open until both fit."""
    opened(cli, folder, "engine-fix")
    replace(folder, "vllm/engine.py", "item += 1\n", "item += 100\n")
    result = refused(cli, project, 3, "edit", "--save", words="engine-more would not apply to v0.33.0")
    assert "--3way" in result.err
    assert folder.exists()
    replace(folder, "vllm/engine.py", "item += 100\n", "item += 1\n")
    loop = "        for item in batch:\n            total_3"
    replace(folder, "vllm/engine.py", loop, loop.replace("in batch", "in list(batch)"))
    # Now it is the context of the next patch.
    refused(cli, project, 3, "edit", "--save", words="engine-more would not apply")
    result = cli("edit", "--save", "--3way", "--json")
    assert result.code == 0, result
    assert {row["name"] for row in result.document["merged"]} == {"engine-more"}
    assert set(result.document["written"]) == {"engine-fix.patch", "engine-more.patch"}
    assert any("v0.32.0/engine-fix.patch is a text of its own" in w for w in result.document["warnings"])
    assert "in list(batch):\n" in (project / "patches/engine-more.patch").read_text()
    assert "+            item += 2\n" in (project / "patches/engine-more.patch").read_text()
    assert cli("status").code == 0


def test_the_older_base(cli, project, folder):
    opened(cli, folder, "worker-guard", "--onto", "v0.32.0")
    replace(folder, "vllm/worker.py", "assert path\n", "assert path, 'old'\n")
    before = patches_of(project)
    result = cli("edit", "--save", "--json")
    assert result.code == 0, result
    assert result.document["written"] == ["v0.32.0/worker-guard.patch"]
    assert before.items() <= patches_of(project).items()
    opened(cli, folder, "worker-guard", "--onto", "v0.32.0")
    replace(folder, "vllm/worker.py", "assert path, 'old'\n", "assert path\n")
    result = cli("edit", "--save", "--json")
    assert result.document["removed"] == ["v0.32.0/worker-guard.patch"]
    assert patches_of(project) == before


@pytest.mark.parametrize("committed", [False, True])
def test_new(cli, project, folder, committed):
    assert cli("new", "fresh", *TITLE, "--after", "engine-fix", "--into", folder).code == 0
    refused(cli, project, 4, "edit", "--save", words="would change nothing")
    replace(folder, "vllm/worker.py", "'.9'", "'.nine'")
    if committed:
        commit(folder, "[Core] My own words\n\nBecause.")
    result = cli("edit", "--save")
    assert result.code == 0, result
    assert names_of(project) == ["engine-fix", "fresh", *NAMES[1:]]
    patch = read_patch(project / "patches/fresh.patch")
    assert patch.author.name == ("Ada Lovelace" if committed else "Eve")
    assert patch.subject == ("[Core] My own words" if committed else "[Core] Be new")
    assert patch.trailers == (("Patch-Name", "fresh"), ("Origin", "own"))
    assert '[fresh]\nintent = "hold"' in (project / "patches/status.toml").read_text()
    assert cli("refresh", "--check").code == 0
    assert cli("undo").code == 0
    assert names_of(project) == list(NAMES)


def test_a_title_that_check_would_refuse(cli, project, folder):
    for title, words in (
        ("", "--title is empty"),
        (" ", "--title is empty"),
        ("be new", "'be new' is no title"),
    ):
        refused(cli, project, 2, "new", "t2", "--title", title, "--into", folder, words=words)
        args = ("split", "sched-log", "t2", "vllm/log.py", "--title", title)
        refused(cli, project, 2, *args, words=words)
    assert not folder.exists()


@pytest.mark.parametrize("text", ["", "Patch-Name: t2"])
def test_a_commit_without_a_title(cli, project, folder, text):
    assert cli("new", "t2", *TITLE, "--into", folder).code == 0
    commit(folder, "x", {"NEW.md": "x\n"})
    git(folder, "commit", "--quiet", "--amend", "--allow-empty-message", "-m", text)
    refused(cli, project, 4, "edit", "--save", words=f"in {folder} has no title")
    result = cli("edit", "--abort")
    assert result.out == "ok: t2 was given up, and is no patch\n"


# -- what people do to it ---------------------------------------------------------------------------------


def test_the_checkout_is_deleted_by_hand(cli, project, folder):
    before = patches_of(project)
    opened(cli, folder, "worker-guard")
    shutil.rmtree(folder)
    refused(cli, project, 4, "edit", "--save", words="edit --abort")
    assert "which is gone" in cli("edit").out
    assert cli("edit", "--abort").code == 0
    assert patches_of(project) == before
    opened(cli, folder, "worker-guard")
    assert cli("edit", "--save").code == 0


def test_another_folder_in_its_place_is_not_removed(cli, project, folder):
    opened(cli, folder, "worker-guard")
    shutil.rmtree(folder)
    write(folder, {"mine": "x", ".git/HEAD": "x"})
    refused(cli, project, 4, "edit", "--save")
    assert "is not ours and stays" in cli("edit", "--abort").out
    assert (folder / "mine").read_text() == "x"


def test_git_by_hand(cli, project, folder):
    opened(cli, folder, "worker-guard")
    replace(folder, "vllm/worker.py", "assert path\n", "assert path, 1\n")
    git(folder, "stash", "--quiet")
    replace(folder, "vllm/worker.py", "assert path\n", "assert path, 2\n")
    git(folder, "commit", "--quiet", "-am", "two")
    git(folder, "stash", "pop", check=False)
    refused(cli, project, 4, "edit", "--save", words="vllm/worker.py has a conflict")
    git(folder, "checkout", "--quiet", "--ours", "vllm/worker.py")
    git(folder, "add", "-A")
    git(folder, "checkout", "--quiet", "--detach", "v0.33.0")
    refused(cli, project, 4, "edit", "--save", words="checkout worker-guard")
    git(folder, "checkout", "--quiet", "worker-guard")
    (folder / ".git/MERGE_HEAD").write_text(git(folder, "rev-parse", "HEAD"))
    refused(cli, project, 4, "edit", "--save", words="a merge is in progress")
    (folder / ".git/MERGE_HEAD").unlink()
    commit(folder, message("sched-log", "[Core] Other"), {"OTHER.md": "x\n"})
    refused(cli, project, 4, "edit", "--save", words="a commit of sched-log")
    git(folder, "reset", "--quiet", "--hard", "HEAD~2")
    git(folder, "reset", "--quiet", "--hard", "HEAD~1")
    refused(cli, project, 4, "edit", "--save", words="would change nothing")
    git(folder, "reset", "--quiet", "--hard", "ORIG_HEAD")
    assert cli("edit", "--save").code == 0


def test_the_patch_directory_is_edited_by_hand(cli, project, folder):
    opened(cli, folder, "worker-guard")
    replace(folder, "vllm/worker.py", "assert path\n", "assert path, 1\n")
    path = project / "patches/worker-guard.patch"
    text = path.read_text()
    path.write_text(text.replace("Because it is needed.", "By hand."))
    refused(cli, project, 4, "edit", "--save", words="was written by hand since")
    path.write_text(text)
    series = (project / "series").read_text()
    (project / "series").write_text(series.replace("worker-guard.patch\n", ""))
    refused(cli, project, 4, "edit", "--save", words="has lost worker-guard")
    # Another patch may have changed meanwhile; it is what counts.
    (project / "series").write_text(series)
    other = project / "patches/sched-log.patch"
    other.write_text(other.read_text().replace("Because it is needed.", "By hand."))
    assert cli("edit", "--save").code == 0
    assert "By hand." in other.read_text()


def test_the_state_of_another_version(cli, project, folder):
    opened(cli, folder, "worker-guard")
    state = project / ".vllm-series/edit.json"
    for text in ('{"schema": 99}', "{", '{"schema": 1, "x": 1}', "[]"):
        state.write_text(text)
        refused(cli, project, 4, "edit", "--save", words="was not written by this version")
        refused(cli, project, 4, "edit", "--abort", words="remove that file")
    state.unlink()
    refused(cli, project, 4, "edit", "--save", words="no patch is open")


def test_message_that_a_mailbox_would_cut(cli, project, folder):
    opened(cli, folder, "worker-guard")
    text = message("worker-guard", "[Core] X", body="| a |\n---\n| b |")
    git(folder, "commit", "--quiet", "--amend", "-m", text)
    refused(cli, project, 4, "edit", "--save", words="would be cut")


# -- kills ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stride", [17, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_while_opening(cli, project, tmp_path, stride):
    """The patches are untouched, and the next command works or says how."""
    before = patches_of(project)
    for number in range(1, 2000, stride):
        work = copy_tree(project, tmp_path / f"work-{number}")
        folder = tmp_path / f"open-{number}"
        env = cli._env({"VLLM_SERIES_DIR": str(work)})
        args = ("edit", "worker-guard", "--into", folder)
        result = die_at(number, *args, after=bool(number % 2), env=env)
        assert patches_of(work) == before
        again = run_here(*args, env=env)
        if result is not None:
            assert result.code == 0, result
            assert again.code == 4, again
            break
        if again.code:
            assert again.code == 4, again
            assert "edit --save, or --abort" in again.err
            assert run_here("edit", "--abort", env=env).code == 0
            assert run_here(*args, env=env).code == 0
        assert run_here("edit", "--save", env=env).code == 0
        assert {p.name for p in tmp_path.iterdir() if f"open-{number}" in p.name} == set()
    assert number > 10


@pytest.mark.parametrize("stride", [97, pytest.param(7, marks=pytest.mark.slow)])
@pytest.mark.parametrize("end", ["--save", "--abort"])
def test_killed_while_closing(cli, project, tmp_path, stride, end):
    """The old patch or the new one; the same command finishes it."""
    before = patches_of(project)
    folder = tmp_path / "open"
    opened(cli, folder, "worker-guard")
    replace(folder, "vllm/worker.py", "assert path\n", "assert path, 1\n")
    other, kept = copy_tree(project, tmp_path / "other"), copy_tree(folder, tmp_path / "kept")
    assert run_here("edit", end, env=cli._env({"VLLM_SERIES_DIR": str(other)})).code == 0
    after = patches_of(other)
    for number in range(1, 2000, stride):
        work = copy_tree(project, tmp_path / f"work-{number}")
        if folder.exists():
            shutil.rmtree(folder)
        copy_tree(kept, folder)
        env = cli._env({"VLLM_SERIES_DIR": str(work)})
        result = die_at(number, "edit", end, after=bool(number % 2), env=env)
        assert run_here("list", env=env).code == 0
        assert patches_of(work) in (before, after)
        if result is not None:
            assert result.code == 0, result
            assert patches_of(work) == after
            return
        again = run_here("edit", end, env=env)
        if again.code == 4 and "no patch is open" not in again.err:
            # Killed between the patch and the end of the session, with the checkout gone.
            assert "edit --abort" in again.err
            assert run_here("edit", "--abort", env=env).code == 0
        assert patches_of(work) == after
        assert run_here("move", "worker-guard", "--before", "engine-fix", env=env).code == 0
    pytest.fail("it never came to its end")
