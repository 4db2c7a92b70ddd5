# SPDX-License-Identifier: Apache-2.0
"""``vllm-series rebase``: what goes by itself, where it asks, and that nothing gets lost in between."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from rebase_support import CLEAN, NEW, Files, Rebaser, with_release
from series_support import (
    ENGINE,
    RELEASE_33,
    SCHEDULER,
    WORKER,
    commit,
    copy_tree,
    die_at,
    engine_fix,
    files_of,
    git,
    message,
    run_here,
    with_test,
    write,
)
from vllm_series.dropped import parse_dropped
from vllm_series.errors import EnvironmentFaultError
from vllm_series.project import Project

UNRELATED = {"NEWS.md": "News.\n", "vllm/engine.py": '"""New head."""\n' + ENGINE}
#: Upstream has changed the line that engine-fix changes.
ENGINE_34 = ENGINE.replace("            total_3 += item * 3\n", "            total_3 += 3 * item\n")
CONFLICT = {"vllm/engine.py": ENGINE_34}
FIXED = engine_fix(ENGINE)
FIXED_34 = ENGINE_34.replace(
    "            total_3 += 3 * item\n", "            total_3 += item * 33\n            item += 1\n"
)
GUARDED = WORKER.replace(
    "    def load_4(self, path):\n", "    def load_4(self, path):\n        assert path\n"
)
TESTED = with_test(str(RELEASE_33["tests/test_engine.py"]), "worker-guard")

Make = Callable[..., Rebaser]


@pytest.fixture
def make(world, project, tmp_path) -> Make:
    """A project and a cache that has one release more."""

    def build(changes: Files, ref: str = NEW, files: Files = RELEASE_33) -> Rebaser:
        return Rebaser(project, with_release(world.cache, tmp_path / "cache", changes, ref, files))

    return build


def supported(project: Path, before: Path) -> None:
    """Every base that was supported is served by the same bytes as before."""
    old, new = Project(before), Project(project)
    for base in old.bases:
        assert base in new.bases
        for name in old.series.names:
            one, two = old.patch(name, base), new.patch(name, base)
            assert (one and one.raw) == (two and two.raw), (name, base.ref)


def test_nothing_in_the_way(make, world):
    rebase = make(UNRELATED)
    before = files_of(rebase.project / "patches")
    result = rebase(NEW)
    assert result.code == 0, result
    document = result.document
    assert [(row["name"], row["how"]) for row in document["carried"]] == [
        ("engine-fix", "offset"),
        ("worker-guard", "clean"),
        ("engine-more", "offset"),
        ("sched-log", "clean"),
    ]
    assert all(p["patch_id"] and p["lines"] and not p["scopes"] for p in document["report"]["patches"])
    assert document["report"]["explained"] == 0
    assert document["files"] == ["base.toml"]
    after = files_of(rebase.project / "patches")
    assert {k for k in after if after[k] != before.get(k)} == {"base.toml"}
    assert [base.ref for base in Project(rebase.project).bases] == [NEW, "v0.33.0", "v0.32.0"]
    supported(rebase.project, world.project)
    assert rebase.left() == CLEAN
    assert rebase.run("status").code == 0
    assert rebase.run("check").code == 0
    again = rebase(NEW)
    assert (again.code, again.document["action"]) == (0, "unchanged")
    assert rebase("v0.33.0").code == 2


def test_usage(make):
    rebase = make(UNRELATED)
    before = files_of(rebase.project)
    for args, code in (
        ((), 2),
        ((NEW, "--abort"), 2),
        (("main",), 2),
        (("--skip", " "), 2),
        (("v9.9.9",), 5),
        (("--continue",), 4),
        (("--skip", "why"), 4),
        (("--abort",), 0),
        ((NEW, "--vllm", rebase.project), 4),
    ):
        assert rebase(*args).code == code, args
    rebase.run("rebase", "--abort")
    assert files_of(rebase.project / "patches") == {
        k.removeprefix("patches/"): v for k, v in before.items() if k.startswith("patches/")
    }


def test_a_conflict_pauses_and_goes_on(make, world):
    rebase = make(CONFLICT)
    before = files_of(rebase.project / "patches")
    result = rebase(NEW)
    assert result.code == 3, result
    question = result.document["question"]
    assert (question["patch"], question["number"], question["total"]) == ("engine-fix", 1, 4)
    assert question["conflicts"] == ["vllm/engine.py"]
    (change,) = question["upstream"]
    assert change["sources"] == ["v0.33.0 to v0.34.0"]
    assert change["lines"] == [
        "-            total_3 += item * 3",
        "+            total_3 += 3 * item",
    ]
    assert f"git -C {rebase.tree} add vllm/engine.py && vllm-series rebase --continue" in result.err
    assert "or drop the patch: vllm-series rebase --skip 'REASON'" in result.err
    assert "<<<<<<<" in (rebase.tree / "vllm/engine.py").read_text()
    # Nothing of what is not finished is taken.
    for prepare, words in (
        (lambda: None, "not resolved"),
        (lambda: git(rebase.tree, "add", "-A"), "conflict markers"),
        (lambda: (rebase.put("vllm/engine.py", FIXED_34), write(rebase.tree, {"x": "x"})), "not staged"),
        (lambda: (rebase.tree / "x").unlink(), ""),
    ):
        prepare()
        if words:
            again = rebase("--continue")
            assert again.code == 4, again
            assert words in again.err
            assert files_of(rebase.project / "patches") == before
    for args in (("refresh",), ("undo",), ("rebase", NEW)):
        refused = rebase.run(*args)
        assert refused.code == 4, refused
        assert "rebase is in progress" in refused.err
    result = rebase("--continue")
    # The next patch on these lines goes by itself again.
    assert result.code == 0, result
    assert [row["how"] for row in result.document["carried"]] == ["resolved", "clean", "clean", "clean"]
    assert result.document["report"]["unexplained"] == []
    supported(rebase.project, world.project)
    assert (rebase.project / "patches/v0.33.0/engine-fix.patch").read_bytes() == (
        world.project / "patches/engine-fix.patch"
    ).read_bytes()
    assert b"-            total_3 += 3 * item" in (rebase.project / "patches/engine-fix.patch").read_bytes()
    assert rebase.left() == CLEAN
    assert rebase.run("check").code == 0, rebase.run("check")
    assert rebase.run("refresh", "--check").code == 0
    assert rebase.run("undo").code == 0
    assert files_of(rebase.project / "patches") == before
    assert rebase.run("redo").code == 0
    assert rebase.run("status").code == 0


def test_an_empty_resolution_is_refused(make):
    rebase = make(CONFLICT)
    assert rebase(NEW).code == 3
    git(rebase.tree, "checkout", "--quiet", "HEAD", "--", ".")
    result = rebase("--continue")
    assert result.code == 4
    assert "would be empty" in result.err
    again = next(word for word in result.err.split() if len(word) == 12 and word.isalnum())
    git(rebase.tree, "cherry-pick", again, check=False)
    assert "<<<<<<<" in (rebase.tree / "vllm/engine.py").read_text()


def test_abort_leaves_everything_as_it_was(make):
    rebase = make(CONFLICT)
    before, refs = files_of(rebase.project / "patches"), git(rebase.cache / "vllm.git", "for-each-ref")
    assert rebase(NEW).code == 3
    rebase.put("vllm/engine.py", FIXED_34)
    result = rebase("--abort")
    assert result.code == 0, result
    # What a person did is not gone.
    saved = next(word for word in result.err.split() if len(word) == 40)
    assert git(rebase.cache / "vllm.git", "show", f"{saved}:vllm/engine.py") + "\n" == FIXED_34
    assert files_of(rebase.project / "patches") == before
    assert git(rebase.cache / "vllm.git", "for-each-ref") == refs
    assert rebase.left() == CLEAN


def test_what_upstream_has_is_asked_about(make, world):
    rebase = make({"vllm/worker.py": GUARDED, "tests/test_engine.py": TESTED})
    result = rebase(NEW)
    assert result.code == 3, result
    question = result.document["question"]
    assert (question["patch"], question["verdict"]) == ("worker-guard", "upstream-equivalent")
    assert rebase("--continue").code == 4
    result = rebase("--skip", "squashed into\n#123")
    assert result.code == 0, result
    assert [row["name"] for row in result.document["carried"]] == ["engine-fix", "engine-more", "sched-log"]
    supported(rebase.project, world.project)
    (row,) = parse_dropped((rebase.project / "patches/dropped.toml").read_text())
    assert (row.name, row.base, row.verdict, row.reason) == (
        "worker-guard",
        NEW,
        "upstream-equivalent",
        "squashed into #123",
    )
    assert not (rebase.project / "patches/worker-guard.patch").exists()
    assert rebase.run("status", "--onto", NEW).code == 0


def history(root: Path, world, *commits: tuple[str, Files]) -> Path:
    """A clone of upstream whose new release has these commits."""
    clone = root / "clone"
    git(root, "clone", "--quiet", str(world.upstream), str(clone))
    git(clone, "checkout", "--quiet", "-B", "main", "v0.33.0")
    for text, files in commits:
        commit(clone, text, files)
    git(clone, "tag", NEW)
    return clone


def test_an_exact_match_goes_by_itself(make, world, tmp_path):
    changes = {"vllm/worker.py": GUARDED, "tests/test_engine.py": TESTED}
    clone = history(tmp_path, world, ("Demand a path (#123)", changes), ("More", UNRELATED))
    rebase = make({**changes, **UNRELATED})
    result = rebase(NEW, "--vllm", clone)
    assert result.code == 0, result
    (row,) = result.document["dropped"]
    assert (row["name"], row["verdict"]) == ("worker-guard", "upstream-exact")
    assert git(clone, "rev-parse", "main~1")[:12] in row["reason"]
    supported(rebase.project, world.project)


def test_a_commit_that_was_reverted_is_no_match(make, world, tmp_path):
    changes = {"vllm/worker.py": GUARDED, "tests/test_engine.py": TESTED}
    back = {name: RELEASE_33[name] for name in changes}
    clone = history(tmp_path, world, ("Demand a path (#123)", changes), ("Revert", {**back, "R.md": "r\n"}))
    result = make({"R.md": "r\n"})(NEW, "--vllm", clone)
    assert result.code == 0, result
    assert result.document["dropped"] == []


def test_the_commit_that_is_in_the_way_is_named(make, world, tmp_path):
    clone = history(tmp_path, world, ("Other lines", UNRELATED), ("Reorder factors (#7)", CONFLICT))
    result = make(CONFLICT)(NEW, "--vllm", clone)
    assert result.code == 3, result
    (change,) = result.document["question"]["upstream"]
    assert change["sources"] == [f"{git(clone, 'rev-parse', 'main')[:12]} Reorder factors (#7)"]


def test_part_of_a_patch_is_there(make):
    rebase = make({"vllm/engine.py": FIXED})
    result = rebase(NEW)
    assert result.code == 3, result
    question = result.document["question"]
    assert (question["patch"], question["verdict"]) == ("engine-fix", "upstream-partial")
    assert [(h["path"], h["state"]) for h in question["hunks"]] == [
        ("tests/test_engine.py", "clean"),
        ("vllm/engine.py", "present"),
    ]
    # What is left is committed already, to be looked at.
    assert git(rebase.tree, "diff", "--name-only", "HEAD~1") == "tests/test_engine.py"
    result = rebase("--continue")
    assert result.code == 0, result
    assert result.document["carried"][0]["how"] == "resolved"
    assert result.document["report"]["unexplained"] == []


def test_a_retire_condition_holds(make, world):
    rebase = make({"vllm/engine.py": ENGINE + "SOLVED_1 = True\n"})
    result = rebase(NEW)
    assert result.code == 0, result
    (row,) = result.document["dropped"]
    assert (row["name"], row["verdict"]) == ("worker-guard", "retired")
    assert "SOLVED_1" in row["reason"]
    supported(rebase.project, world.project)


def test_a_file_has_moved(make, world):
    rebase = make({"vllm/worker.py": None, "vllm/worker/base.py": WORKER})
    result = rebase(NEW)
    assert result.code == 3, result
    question = result.document["question"]
    assert (question["patch"], question["verdict"]) == ("worker-guard", "target-moved")
    assert question["candidates"] == ["vllm/worker/base.py"]
    # Git follows the rename; a person looks at it.
    assert "vllm/worker/base.py" in git(rebase.tree, "show", "--stat", "HEAD")
    result = rebase("--continue")
    assert result.code == 0, result
    supported(rebase.project, world.project)
    assert b"vllm/worker/base.py" in (rebase.project / "patches/worker-guard.patch").read_bytes()
    assert rebase.run("status").code == 0


def test_the_same_lines_in_the_wrong_place(make):
    """The lines that a patch was made for are gone, and others like them are elsewhere."""
    text = "def one():\n    x = 1\n    y = 2\n    z = 3\n    return x\n"
    start = "# SPDX-License-Identifier: Apache-2.0\n" + "# head\n" * 9
    old = start + text + "\n\n" + text.replace("one", "two") + "# tail\n" * 9
    new = start + "\n\n" + text.replace("one", "two") + "# tail\n" * 9
    rebase = make({"vllm/twice.py": new})
    store = with_release(rebase.cache, rebase.cache.with_name("more"), {"vllm/twice.py": old}, "v0.33.1")
    rebase.cache = store
    assert rebase("v0.33.1").code == 0
    folder = rebase.project.parent / "work"
    assert rebase.run("apply", "--into", folder).code == 0
    changed = old.replace("    y = 2\n", "    y = 22\n", 1)
    commit(folder, message("twice", "[Core] Twice"), {"vllm/twice.py": changed})
    (rebase.project / "series").write_text((rebase.project / "series").read_text() + "twice.patch\n")
    patch = git(folder, "format-patch", "--stdout", "--full-index", "--no-stat", "-N", "--zero-commit", "-1")
    (rebase.project / "patches/twice.patch").write_text(patch + "\n")
    result = rebase(NEW)
    assert result.code == 3, result
    question = result.document["question"]
    assert (question["patch"], question["verdict"]) == ("twice", "conflict")


def test_an_older_release_gets_variants(make, world):
    old = {**RELEASE_33, "vllm/engine.py": ENGINE.replace("total_3", "sum_3").replace("import os\n", "")}
    rebase = make({"vllm/worker.py": WORKER.replace("load_4", "fetch_4")}, "v0.31.0", old)
    before = files_of(rebase.project / "patches")
    result = rebase("v0.31.0")
    assert result.code == 3, result
    assert result.document["source"] == "v0.32.0"
    assert result.document["question"]["patch"] == "worker-guard"
    assert "--skip" not in result.err
    refused = rebase("--skip", "not there")
    assert refused.code == 4, refused
    assert "would serve it" in refused.err
    rebase.put("vllm/worker.py", GUARDED.replace("load_4", "fetch_4"))
    result = rebase("--continue")
    assert result.code == 0, result
    assert [base.ref for base in Project(rebase.project).bases] == ["v0.33.0", "v0.32.0", "v0.31.0"]
    after = files_of(rebase.project / "patches")
    assert all(after[k] == before[k] for k in before if k != "base.toml")
    assert {k for k in after if k not in before} == {
        "v0.31.0",
        "v0.31.0/engine-fix.patch",
        "v0.31.0/worker-guard.patch",
        "v0.31.0/engine-more.patch",
    }
    assert rebase.run("status").code == 0, rebase.run("status")
    supported(rebase.project, world.project)


# -- a person's own git commands in between ---------------------------------------------------------------


def test_finished_with_git(make):
    rebase = make(CONFLICT)
    assert rebase(NEW).code == 3
    rebase.put("vllm/engine.py", FIXED_34)
    git(rebase.tree, "-c", "core.editor=true", "cherry-pick", "--continue")
    result = rebase("--continue")
    assert result.code == 0, result
    assert result.document["carried"][0] == {"name": "engine-fix", "how": "resolved"}
    # Who made the patch stays who made it.
    assert Project(rebase.project).patches(Project(rebase.project).pinned)[0].author.name == "Ada Lovelace"


def test_an_earlier_patch_was_amended_with_git(make):
    scheduler = SCHEDULER.replace("    return picked\n", "    return picked + []\n")
    rebase = make({"vllm/scheduler.py": scheduler})
    assert rebase(NEW).code == 3
    rebase.put("vllm/scheduler.py", scheduler.replace("    return", "    print(len(picked))\n    return"))
    git(rebase.tree, "-c", "core.editor=true", "cherry-pick", "--continue")
    # worker-guard, two below, gets one more line.
    tip = git(rebase.tree, "rev-parse", "HEAD")
    target = git(rebase.tree, "log", "-1", "--format=%H", "--grep=Patch-Name: worker-guard")
    git(rebase.tree, "checkout", "--quiet", "--detach", target)
    write(rebase.tree, {"vllm/worker.py": GUARDED.replace("assert path\n", "assert path, path\n", 1)})
    git(rebase.tree, "commit", "--quiet", "--amend", "--no-edit", "-a")
    changed = git(rebase.tree, "rev-parse", "HEAD")
    git(rebase.tree, "checkout", "--quiet", "--detach", tip)
    git(rebase.tree, "rebase", "--quiet", "--onto", changed, target)
    result = rebase("--continue")
    assert result.code == 0, result
    assert {row["name"]: row["how"] for row in result.document["carried"]} == {
        "engine-fix": "clean",
        "worker-guard": "resolved",
        "engine-more": "clean",
        "sched-log": "resolved",
    }
    assert b"assert path, path" in (rebase.project / "patches/worker-guard.patch").read_bytes()


@pytest.mark.parametrize(
    ("commands", "words"),
    [
        ([("commit", "-qm", "mine", "--allow-empty")], "is of no patch"),
        ([("reset", "--hard", "v0.33.0")], "is not on top of"),
        ([("commit", "-qm", "x\n\nPatch-Name: nobody", "--allow-empty")], "is no patch of the series"),
        (
            [
                ("commit", "-qm", "x\n\nPatch-Name: engine-fix"),
                ("commit", "-qm", "x\n\nPatch-Name: engine-fix", "--allow-empty"),
            ],
            "squash them",
        ),
        ([("commit", "-qm", "x"), ("reset", "--soft", "HEAD~1")], ""),
    ],
)
def test_strange_git_commands(make, commands, words):
    rebase = make(CONFLICT)
    assert rebase(NEW).code == 3
    rebase.put("vllm/engine.py", FIXED_34)
    for command in commands:
        git(rebase.tree, *command)
    result = rebase("--continue")
    if not words:
        assert result.code == 0, result
        return
    assert result.code == 4, result
    assert words in result.err
    assert rebase("--abort").code == 0
    assert rebase.left() == CLEAN


def test_a_commit_that_was_done_is_gone(make):
    scheduler = SCHEDULER.replace("    return picked\n", "    return picked + []\n")
    rebase = make({"vllm/scheduler.py": scheduler})
    assert rebase(NEW).code == 3
    git(rebase.tree, "reset", "--quiet", "--hard", "HEAD~1")
    result = rebase("--continue")
    assert result.code == 4
    assert "has no commit of engine-more any more" in result.err
    command = next(line for line in result.err.splitlines() if "reset --hard" in line)
    git(rebase.tree, *command.split("git -C ")[1].split()[1:])
    state = json.loads((rebase.project / ".vllm-series/rebase.json").read_text())
    git(rebase.tree, "cherry-pick", state["old_tip"], check=False)
    rebase.put("vllm/scheduler.py", scheduler.replace("    return", "    print(len(picked))\n    return"))
    assert rebase("--continue").code == 0


def test_the_working_tree_was_deleted(make):
    rebase = make(CONFLICT)
    assert rebase(NEW).code == 3
    tree = rebase.tree
    shutil.rmtree(tree)
    result = rebase("--continue")
    assert result.code == 3, result
    assert "prepared again" in result.err
    assert "<<<<<<<" in (tree / "vllm/engine.py").read_text()
    rebase.put("vllm/engine.py", FIXED_34)
    git(tree, "-c", "core.editor=true", "cherry-pick", "--continue")
    shutil.rmtree(tree)  # What was committed there is not lost.
    result = rebase("--continue")
    assert result.code == 0, result
    assert result.document["carried"][0]["how"] == "resolved"


@pytest.mark.parametrize("last", ["--continue", "--abort"])
def test_ended_from_within_the_working_tree(make, last):
    rebase = make(CONFLICT)
    before = files_of(rebase.project / "patches")
    assert rebase(NEW).code == 3
    rebase.put("vllm/engine.py", FIXED_34)
    result = run_here("rebase", last, "--json", cwd=rebase.tree / "vllm", env=rebase.env)
    assert result.code == 0, result
    assert rebase.left() == CLEAN
    assert (files_of(rebase.project / "patches") == before) == (last == "--abort")


def test_the_patch_directory_was_edited_meanwhile(make):
    rebase = make(CONFLICT)
    assert rebase(NEW).code == 3
    rebase.put("vllm/engine.py", FIXED_34)
    path = rebase.project / "patches/status.toml"
    text = path.read_text()
    path.write_text(text + "# by hand\n")
    for args in (("--continue",), ("--skip", "x")):
        result = rebase(*args)
        assert result.code == 4, result
        assert "edited since" in result.err
    path.write_text(text)
    assert rebase("--continue").code == 0


def test_a_start_that_cannot_be_remembered(make, monkeypatch):
    """No refs stay in the cache if the state cannot be written: nobody could take them back."""
    import vllm_series.rebasestate as module

    def full(path: Path, _content: bytes) -> None:
        raise EnvironmentFaultError(f"cannot write {path}: No space left on device")

    rebase = make(CONFLICT)
    with monkeypatch.context() as patched:
        patched.setattr(module, "write_file", full)
        assert rebase(NEW).code == 5
    assert rebase.left() == CLEAN
    assert rebase(NEW).code == 3


def test_a_damaged_or_foreign_state(make):
    rebase = make(CONFLICT)
    assert rebase(NEW).code == 3
    state = rebase.project / ".vllm-series/rebase.json"
    row = json.loads(state.read_text())
    for text in ("{", json.dumps({**row, "schema": 99}), json.dumps({**row, "more": 1}), "[]"):
        state.write_text(text)
        for args in (("--continue",), ("--skip", "x")):
            assert rebase(*args).code == 4
    assert rebase("--abort").code == 0
    assert rebase.left() == CLEAN


# -- dying ------------------------------------------------------------------------------------------------


def outcome(rebase: Rebaser) -> dict[str, object]:
    """What a rebase comes to: the files."""
    return {k: v for k, v in files_of(rebase.project / "patches").items() if k != "dropped.toml"}


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("command", ["start", "continue", "skip", "abort"])
def test_killed_at_every_step(make, tmp_path, command, after):
    """The directory is the old or the new one, and the commands that the tool names finish the work."""
    rebase = make(CONFLICT)
    original = files_of(rebase.project / "patches")
    if command != "start":
        assert rebase(NEW).code == 3
        rebase.put("vllm/engine.py", FIXED_34)
    template = rebase
    args = {"start": NEW, "continue": "--continue", "skip": "--skip", "abort": "--abort"}[command]
    numbers = range(2 if after else 1, 400, 19)
    died = 0
    for number in numbers:
        # Paths are part of the state, so the copies take the places of the originals.
        keep = tmp_path / "keep"
        if not keep.exists():
            copy_tree(template.project, keep / "project")
            copy_tree(template.cache, keep / "cache")
        for name, place in (("project", template.project), ("cache", template.cache)):
            shutil.rmtree(place)
            copy_tree(keep / name, place)
        extra = ["why"] if command == "skip" else []
        result = die_at(number, "rebase", args, *extra, after=after, env=rebase.env)
        if result is not None:
            assert result.code in (0, 3), result
            break
        died += 1
        found = files_of(rebase.project / "patches")
        looked = run_here("list", env=rebase.env)
        assert looked.code == 0, looked
        if command in ("start", "abort"):
            assert found == original
        finish(rebase, command)
        assert rebase.left() == CLEAN, number
        if command in ("start", "continue"):
            assert (
                b"-            total_3 += 3 * item"
                in (rebase.project / "patches/engine-fix.patch").read_bytes()
            )
    assert died > 2


@pytest.mark.parametrize("command", ["start", "continue", "abort"])
def test_interrupted_says_what_is_left(make, tmp_path, command):
    """Ctrl-C: taken back, or in progress, and the message says which."""
    rebase = make(CONFLICT)
    if command != "start":
        assert rebase(NEW).code == 3
        rebase.put("vllm/engine.py", FIXED_34)
    args = {"start": NEW, "continue": "--continue", "abort": "--abort"}[command]
    state = rebase.project / ".vllm-series/rebase.json"
    before = state.read_bytes() if state.exists() else None
    copy_tree(rebase.project, tmp_path / "keep/project")
    copy_tree(rebase.cache, tmp_path / "keep/cache")
    kept = 0
    for number in range(5, 400, 23):
        for name, place in (("project", rebase.project), ("cache", rebase.cache)):
            shutil.rmtree(place)
            copy_tree(tmp_path / "keep" / name, place)
        result = die_at(number, "rebase", args, "--json", send=signal.SIGINT, env=rebase.env)
        assert result is not None
        if result.code != 130:
            assert result.code in (0, 3), result
            break
        assert result.document["error"]["kind"] == "interrupted"
        if "rolled back" in result.err:
            assert (state.read_bytes() if state.exists() else None) == before
        else:
            assert "vllm-series rebase --continue" in result.document["error"]["hint"]
            assert state.exists()
            kept += 1
    assert kept


def finish(rebase: Rebaser, command: str) -> None:
    """Do what a person would do who reads what the tool says."""
    for _ in range(8):
        state = rebase.project / ".vllm-series/rebase.json"
        if command == "abort":
            assert rebase("--abort").code == 0
            return
        if not state.exists():
            refs = [base.ref for base in Project(rebase.project).bases]
            if NEW in refs:
                # Killed when all was done but the clearing up of the working tree.
                assert rebase("--abort").code == 0
                return
            result = rebase(NEW)
        else:
            result = rebase("--continue")
        if result.code == 0:
            return
        if result.code == 3 or "not resolved" in result.err:
            if command == "skip":
                if rebase("--skip", "why").code == 0:
                    return
                continue
            rebase.put("vllm/engine.py", FIXED_34)
        elif "would be empty" in result.err:
            rebase.put("vllm/engine.py", FIXED_34)
        else:
            raise AssertionError(result)
    raise AssertionError("it does not end")
