# SPDX-License-Identifier: Apache-2.0
"""``move``, ``drop``, ``fold`` and ``split``: another series, the same patched files, nothing lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from series_support import (
    NAMES,
    commit,
    copy_tree,
    die_at,
    files_of,
    git,
    patches_of,
    refused,
    run_here,
)
from vllm_series.dropped import parse_dropped
from vllm_series.patchfile import read_patch


def names_of(project: Path) -> list[str]:
    lines = (project / "series").read_text().splitlines()
    return [line.removesuffix(".patch") for line in lines if not line.startswith("#")]


def trees(cli, tmp_path: Path, name: str) -> list[str]:
    """What applying the series gives on each base."""
    found = []
    for ref in ("v0.33.0", "v0.32.0"):
        folder = tmp_path / f"{name}-{ref}"
        result = cli("apply", "--onto", ref, "--into", folder)
        assert result.code == 0, result
        found.append(git(folder, "rev-parse", "HEAD^{tree}"))
    return found


def changed(before: dict, after: dict) -> set[str]:
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


# -- move -------------------------------------------------------------------------------------------------


def test_move(cli, project, tmp_path):
    before, was = patches_of(project), trees(cli, tmp_path, "before")
    result = cli("move", "worker-guard", "--before", "engine-fix", "--json")
    assert result.code == 0, result
    assert names_of(project) == ["worker-guard", "engine-fix", "engine-more", "sched-log"]
    # What a patch changes is the same, so its file is the same, byte for byte.
    assert changed(before, patches_of(project)) == {"series"}
    assert (project / "series").read_text().startswith("# In order.\n")
    assert trees(cli, tmp_path, "after") == was
    assert cli("move", "worker-guard", "--after", "engine-fix").code == 0
    assert patches_of(project) == before
    assert cli("undo", "-n", "2").code == 0
    assert patches_of(project) == before


def test_a_comment_beside_a_name_travels(cli, project):
    series = project / "series"
    series.write_text(series.read_text().replace("guard.patch", "guard.patch # why"))
    assert cli("move", "worker-guard", "--after", "engine-more").code == 0
    assert series.read_text().endswith("engine-more.patch\nworker-guard.patch # why\nsched-log.patch\n")


def test_moves_that_cannot_be(cli, project):
    refused(
        cli, project, 3, "move", "engine-more", "--before", "engine-fix", words="engine-more would not apply"
    )
    # It says that it needs the other, though git cannot see it.
    refused(
        cli, project, 4, "move", "sched-log", "--before", "worker-guard", words="Depends-on: worker-guard"
    )
    refused(cli, project, 2, "move", "sched-log", words="--before or --after")
    refused(cli, project, 2, "move", "sched-log", "--before", "sched-log", words="itself")
    refused(cli, project, 2, "move", "sched-log", "--before", "nope", words="no patch nope")
    refused(cli, project, 2, "move", "nope", "--before", "sched-log", words="no patch nope")


def test_a_move_that_would_change_the_result(cli, project, tmp_path):
    """Every hunk finds a place, but not its own: without the first patch another one is nearer."""
    same = "".join("x = 1\n" for _ in range(9))
    for name, hunk in (
        ("same", f"@@ -0,0 +1,9 @@\n{same.replace('x', '+x')}"),
        ("one", "@@ -1,4 +1,8 @@\n+a = 1\n+b = 1\n+c = 1\n+d = 1\n x = 1\n x = 1\n x = 1\n x = 1\n"),
        ("two", "@@ -7,5 +7,6 @@\n x = 1\n x = 1\n x = 1\n+y = 1\n x = 1\n x = 1\n"),
    ):
        old = "/dev/null" if name == "same" else "a/vllm/same.py"
        (tmp_path / f"{name}.diff").write_text(f"--- {old}\n+++ b/vllm/same.py\n{hunk}")
        result = cli("import", tmp_path / f"{name}.diff", "--author", "Q <q@q>")
        assert result.code == 0, result
    result = refused(cli, project, 3, "move", "two", "--before", "one", words="another vllm/same.py than now")
    assert cli("move", "engine-more", "--after", "two").code == 0


def test_split_and_fold_leave_the_facts_as_they_were(cli, project):
    """The last entry goes with the blank line before it; a name that is given twice counts once."""
    before = (project / "patches/status.toml").read_bytes()
    parts = ("worker-guard", "guard-test", "tests/test_engine.py", "--title", "[Core] Test the guard")
    assert cli("split", *parts).code == 0
    assert (project / "patches/status.toml").read_bytes() != before
    result = cli("fold", "guard-test", "guard-test", "--into", "worker-guard")
    assert result.code == 0, result
    assert result.out.startswith("ok: fold guard-test into worker-guard\n")
    assert (project / "patches/status.toml").read_bytes() == before
    result = cli("drop", "sched-log", "sched-log", "--reason", "twice", "--dry-run")
    assert result.out.startswith("would drop sched-log: twice\n")


# -- drop -------------------------------------------------------------------------------------------------


def test_drop(cli, project, tmp_path):
    before = patches_of(project)
    (project / "patches/tests.toml").write_text(
        '# Why.\n[engine-more]\ncpu = ["tests/a.py"]\n\n[engine-more.base."v0.32.0"]\ncpu = []\n\n'
        '[sched-log]\ncpu = ["tests/b.py"]\n'
    )
    (project / "patches/evidence").mkdir()
    (project / "patches/evidence/engine-more@v0.33.0.json").write_text("{}")
    result = cli("drop", "engine-more", "--reason", 'it is "done"\nin #1', "--json")
    assert result.code == 0, result
    assert result.document["removed"] == ["engine-more.patch", "v0.32.0/engine-more.patch"]
    assert names_of(project) == ["engine-fix", "worker-guard", "sched-log"]
    (row,) = parse_dropped((project / "patches/dropped.toml").read_text())
    assert (row.name, row.base, row.verdict, row.reason) == (
        "engine-more", "v0.33.0", "by-hand", 'it is "done"\nin #1',
    )  # fmt: skip
    assert "engine-more" not in (project / "patches/status.toml").read_text()
    assert (project / "patches/tests.toml").read_text() == '# Why.\n[sched-log]\ncpu = ["tests/b.py"]\n'
    assert not (project / "patches/evidence").exists()
    assert cli("check").code == 0
    assert cli("refresh", "--check").code == 0
    assert cli("undo").code == 0
    (project / "patches/tests.toml").unlink()
    (project / "patches/evidence/engine-more@v0.33.0.json").unlink()
    (project / "patches/evidence").rmdir()
    assert patches_of(project) == before


def test_files_that_the_series_does_not_name_stay(cli, project):
    text = (project / "patches/sched-log.patch").read_bytes()
    for path in ("patches/mine.patch", "patches/v0.32.0/mine.patch", "patches/notes.txt"):
        (project / path).write_bytes(text)
    before = patches_of(project)
    assert cli("move", "worker-guard", "--before", "engine-fix").code == 0
    assert cli("drop", "engine-more", "--reason", "x").code == 0
    after = patches_of(project)
    assert {path for path in before if "mine" in path or "notes" in path} <= after.keys()
    assert not [path for path in after if "engine-more" in path]
    title = ("--title", "[Core] X")
    refused(cli, project, 2, "split", "sched-log", "mine", "vllm/log.py", *title, words="mine.patch exists")


def test_drop_what_others_need(cli, project):
    refused(cli, project, 4, "drop", "engine-fix", "--reason", "x", words="engine-more (needs engine-fix)")
    refused(cli, project, 4, "drop", "worker-guard", "--reason", "x", words="sched-log (needs worker-guard)")
    refused(cli, project, 2, "drop", "sched-log", "--reason", " ", words="needs a reason")
    refused(cli, project, 2, "drop", "sched-log", words="--reason")
    result = cli("drop", "engine-fix", "worker-guard", "--with-dependents", "--reason", "x")
    assert result.code == 0, result
    assert names_of(project) == []
    rows = parse_dropped((project / "patches/dropped.toml").read_text())
    assert [row.name for row in rows] == list(NAMES)
    assert [row.reason for row in rows[2:]] == ["x (it needs engine-fix)", "x (it needs worker-guard)"]
    assert cli("check").code == 0
    assert cli("status").code == 0
    assert cli("undo").code == 0
    assert names_of(project) == list(NAMES)


# -- fold -------------------------------------------------------------------------------------------------


def test_fold(cli, project, tmp_path):
    was = trees(cli, tmp_path, "before")
    more = project / "patches/engine-more.patch"
    for path in (more, project / "patches/v0.32.0/engine-more.patch"):
        path.write_bytes(path.read_bytes().replace(b"From: Ada Lovelace <ada@", b"From: Bob <bob@"))
    result = cli("fold", "engine-more", "--into", "engine-fix", "--json")
    assert result.code == 0, result
    assert names_of(project) == ["engine-fix", "worker-guard", "sched-log"]
    assert set(result.document["written"]) == {"engine-fix.patch", "v0.32.0/engine-fix.patch"}
    patch = read_patch(project / "patches/engine-fix.patch")
    assert patch.subject == "[Bugfix][PP] Count what was stepped"
    assert patch.body.endswith("\nCo-authored-by: Bob <bob@example.org>")
    assert patch.trailer("Patch-Name") == ("engine-fix",)
    assert trees(cli, tmp_path, "after") == was
    assert cli("check").code == 0
    assert cli("refresh", "--check").code == 0
    assert cli("fold", "worker-guard", "--into", "engine-fix").code == 0
    assert read_patch(project / "patches/sched-log.patch").trailer("Depends-on") == ("engine-fix",)
    assert cli("fold", "sched-log", "--into", "engine-fix").code == 0
    assert names_of(project) == ["engine-fix"]
    assert read_patch(project / "patches/engine-fix.patch").trailer("Depends-on") == ()
    assert trees(cli, tmp_path, "all") == was
    assert cli("check").code == 0


def test_folds_that_cannot_be(cli, project):
    refused(cli, project, 2, "fold", "sched-log", "--into", "sched-log", words="itself")
    refused(cli, project, 2, "fold", "nope", "--into", "sched-log", words="no patch nope")
    # Who needs what is said of the patch that says so, and the advice helps.
    result = refused(cli, project, 4, "fold", "sched-log", "--into", "engine-fix")
    assert "error: sched-log says Depends-on: worker-guard, which stands behind engine-fix\n" in result.err
    assert "  fold worker-guard too, or fold --into worker-guard\n" in result.err
    assert cli("fold", "sched-log", "worker-guard", "--into", "engine-fix", "--dry-run").code == 0
    assert cli("fold", "sched-log", "--into", "worker-guard", "--dry-run").code == 0
    assert cli("move", "engine-fix", "--after", "worker-guard").code == 0
    assert cli("move", "engine-more", "--after", "sched-log").code == 0
    result = refused(cli, project, 4, "fold", "worker-guard", "--into", "engine-more")
    assert "error: sched-log says Depends-on: worker-guard, and engine-more stands behind it\n" in result.err
    assert "  fold sched-log too, or fold --into an earlier patch\n" in result.err


# -- split ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [False, True])
def test_split_by_file(cli, project, tmp_path, before):
    was = trees(cli, tmp_path, "was")
    args = ("split", "sched-log", "log-file", "vllm/log.py", "--title", "[Misc] Add a log")
    result = cli(*args, *(["--before"] if before else []), "--json")
    assert result.code == 0, result
    pair = ["log-file", "sched-log"] if before else ["sched-log", "log-file"]
    assert names_of(project) == [*NAMES[:3], *pair]
    assert set(result.document["written"]) == {"log-file.patch", "sched-log.patch"}
    part = read_patch(project / "patches/log-file.patch")
    assert part.paths == {"vllm/log.py"}
    assert part.subject == "[Misc] Add a log"
    assert part.trailer("Patch-Name") == ("log-file",)
    assert part.trailer("Depends-on") == ("worker-guard",)
    assert read_patch(project / "patches/sched-log.patch").paths == {
        "vllm/scheduler.py",
        "tests/test_engine.py",
    }
    assert trees(cli, tmp_path, "is") == was
    assert '[log-file]\nintent = "hold"' in (project / "patches/status.toml").read_text()
    assert cli("refresh", "--check").code == 0
    # Together again they are what they were.
    text = read_patch(project / "patches/sched-log.patch")
    assert cli("fold", "log-file", "--into", "sched-log").code == 0
    assert trees(cli, tmp_path, "again") == was
    assert read_patch(project / "patches/sched-log.patch").message == text.message


def test_split_by_hunk(cli, project, clone, tmp_path):
    text = (clone / "vllm/worker.py").read_text()
    for number in (0, 8, 9):
        text = text.replace(f"'.{number}'", f"'.x{number}'")
    (clone / "vllm/worker.py").write_text(text)
    git(clone, "commit", "--quiet", "-am", "[Core] Three hunks")
    assert cli("import", "HEAD", "--vllm", clone).code == 0
    was = trees(cli, tmp_path, "was")
    parts = len(read_patch(project / "patches/three-hunks.patch").changes[0].hunks)
    assert parts == 2
    result = cli("split", "three-hunks", "first", "vllm/worker.py:1", "--before", "--title", "[Core] First")
    assert result.code == 0, result
    assert trees(cli, tmp_path, "is") == was
    assert "x0" in (project / "patches/first.patch").read_text()
    assert "x0" not in (project / "patches/three-hunks.patch").read_text()


def test_hunks_are_counted_in_the_pinned_text(cli, project, clone, tmp_path):
    """The text for the older base has one more before them: the same hunk is the second there."""
    text = (clone / "vllm/worker.py").read_text().replace("'.5'", "'.x5'").replace("'.9'", "'.x9'")
    commit(clone, "[Core] Hunks\n\nPatch-Name: hunks", {"vllm/worker.py": text})
    assert cli("import", "HEAD", "--vllm", clone).code == 0
    folder = tmp_path / "old"
    assert cli("edit", "hunks", "--onto", "v0.32.0", "--into", folder).code == 0
    worker = folder / "vllm/worker.py"
    worker.write_text(worker.read_text().replace("'.0'", "'.x0'"))
    assert cli("edit", "--save").code == 0
    was = trees(cli, tmp_path, "was")
    args = ("split", "hunks", "first", "vllm/worker.py:1", "--before", "--title", "[Core] First")
    result = cli(*args, "--json")
    assert result.code == 0, result
    assert result.document["written"] == ["first.patch", "hunks.patch", "v0.32.0/hunks.patch"]
    assert "x5" in (project / "patches/first.patch").read_text()
    old = (project / "patches/v0.32.0/hunks.patch").read_text()
    assert ("x0" in old, "x5" in old, "x9" in old) == (True, False, True)
    assert trees(cli, tmp_path, "is") == was
    assert cli("undo").code == 0
    path = project / "patches/v0.32.0/hunks.patch"
    path.write_text(path.read_text().replace("'.x5'", "'.y5'"))
    refused(cli, project, 2, *args, words="has no hunks like hunk 1 of vllm/worker.py")


def test_splits_that_cannot_be(cli, project):
    title = ("--title", "[Core] X")
    refused(
        cli, project, 2, "split", "sched-log", "x", "vllm/nope.py", *title, words="does not change vllm/nope"
    )
    refused(cli, project, 2, "split", "sched-log", "x", "vllm", "tests", *title, words="all of sched-log")
    refused(cli, project, 2, "split", "sched-log", "x", "vllm/scheduler.py:2", *title, words="no hunk 2")
    refused(cli, project, 2, "split", "sched-log", "worker-guard", "vllm", *title, words="already")
    refused(cli, project, 2, "split", "sched-log", "A B", "vllm", *title, words="no patch name")
    refused(cli, project, 2, "split", "sched-log", "x", "vllm/log.py", words="--title")


# -- all of them ------------------------------------------------------------------------------------------

VERBS = {
    "move": ("move", "worker-guard", "--before", "engine-fix"),
    "drop": ("drop", "sched-log", "--reason", "x"),
    "fold": ("fold", "engine-more", "--into", "engine-fix"),
    "split": ("split", "sched-log", "log-file", "vllm/log.py", "--title", "[Misc] Add a log"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_dry_run_and_a_paused_verb(cli, project, verb):
    before = files_of(project)
    result = cli(*VERBS[verb], "--dry-run", "--json")
    assert result.code == 0, result
    assert result.document["operation"] is None
    text = cli(*VERBS[verb], "--dry-run").out
    assert text.startswith("would ")
    assert "wrote" not in text
    assert "removed" not in text
    assert ("would write" in text) == bool(result.document["written"])
    assert ("would remove" in text) == bool(result.document["removed"])
    assert files_of(project) == before
    (project / ".vllm-series").mkdir()
    (project / ".vllm-series/rebase.json").write_text("{}")
    refused(cli, project, 4, *VERBS[verb], words="rebase is in progress")


@pytest.mark.parametrize(
    ("verb", "stride"), [("split", 19), *(pytest.param(verb, 1, marks=pytest.mark.slow) for verb in VERBS)]
)
def test_killed_at_every_step(cli, project, tmp_path, verb, stride):
    before = patches_of(project)
    other = copy_tree(project, tmp_path / "other")
    assert run_here(*VERBS[verb], env=cli._env({"VLLM_SERIES_DIR": str(other)})).code == 0
    after = patches_of(other)
    ends = set()
    for number in range(1, 2000, stride):
        work = copy_tree(project, tmp_path / f"work-{number}")
        env = cli._env({"VLLM_SERIES_DIR": str(work)})
        result = die_at(number, *VERBS[verb], after=bool(number % 2), env=env)
        if result is not None:
            assert result.code == 0, result
            break
        assert run_here("list", env=env).code == 0
        found = patches_of(work)
        assert found in (before, after), number
        ends.add(found == after)
        if found == before and number % 4 == 3:
            assert run_here(*VERBS[verb], env=env).code == 0
            assert patches_of(work) == after
            assert run_here("undo", env=env).code == 0
            assert patches_of(work) == before
    assert patches_of(work) == after
    assert number > 10
    assert False in ends


@settings(max_examples=2)
@given(st.data())
def test_any_sequence_keeps_the_result(world, tmp_path_factory, data):
    """Moves, folds and splits in any order: the patched files stay, and undo brings every byte back."""
    root = tmp_path_factory.mktemp("any")
    project = copy_tree(world.project, root / "project")
    env = {"VLLM_SERIES_CACHE": str(world.cache), "VLLM_SERIES_DIR": str(project)}

    def tree(number: int) -> str:
        folder = root / f"tree-{number}"
        assert run_here("apply", "--into", folder, env=env).code == 0
        return git(folder, "rev-parse", "HEAD^{tree}")

    before, was, done = patches_of(project), tree(0), 0
    for number in range(1, 4):
        names = names_of(project)
        one, two = data.draw(st.permutations(names))[:2] if len(names) > 1 else names * 2
        verb = data.draw(st.sampled_from(["move", "fold", "split"]))
        args = {
            "move": ("move", one, data.draw(st.sampled_from(["--before", "--after"])), two),
            "fold": ("fold", one, "--into", two),
            "split": ("split", one, f"part-{number}", "tests", "--title", "[Core] T"),
        }[verb]
        result = run_here(*args, "--json", env=env)
        assert result.code in (0, 2, 3, 4), result
        done += result.document.get("operation") is not None
        assert run_here("check", env=env).code in (0, 1)
        assert tree(number) == was
    if done:
        assert run_here("undo", "-n", str(done), env=env).code == 0
    assert patches_of(project) == before
