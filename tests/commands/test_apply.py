# SPDX-License-Identifier: Apache-2.0
"""``apply``: it works or changes nothing, on every kind of checkout that people have."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from series_support import (
    NAMES,
    WORKER,
    commit,
    files_of,
    git,
    init,
    series_changes,
    state_of,
    write,
)


def series_commits(repository: Path, tip: str = "HEAD") -> list[str]:
    """Names of the series commits of the first-parent history, the oldest first."""
    out = git(
        repository, "log", "--first-parent", "--reverse", "--format=%(trailers:key=Patch-Name,valueonly)", tip
    )
    return [line for line in out.split("\n") if line]


def refused(cli, repository: Path, code: int, *words: str, args: tuple[str, ...] = ()) -> str:
    """The command says no in one line with a hint, and changes nothing that a person can see."""
    before = state_of(repository)
    result = cli("apply", "--vllm", repository, *args)
    assert result.code == code, result
    assert state_of(repository) == before
    lines = result.err.strip().split("\n")
    error = [line for line in lines if line.startswith("vllm-series: error: ")]
    assert len(error) == 1, result
    assert lines[-1].startswith("  "), "a hint says what to do"
    assert "Traceback" not in result.err
    for word in words:
        assert word in result.err, result
    return result.err


def expected_tree(world, ref: str = "v0.33.0") -> dict:
    return files_of(world.root / f"series-{ref}")


# -- what works -------------------------------------------------------------------------------------------


def test_plain_clone(cli, clone, world):
    (clone / "README.md").write_text("my own words\n")  # Dirty, and not touched by the series.
    (clone / "notes.txt").write_text("untracked\n")
    result = cli("apply", "--vllm", clone)
    assert result.code == 0, result
    assert series_commits(clone) == list(NAMES)
    assert git(clone, "status", "--porcelain") == " M README.md\n?? notes.txt"
    assert git(clone, "symbolic-ref", "HEAD") == "refs/heads/main"
    assert (clone / "README.md").read_text() == "my own words\n"
    assert git(clone, "for-each-ref", "refs/vllm-series") == ""
    wanted = expected_tree(world)
    assert {k: v for k, v in files_of(clone).items() if k not in ("README.md", "notes.txt")} == {
        k: v for k, v in wanted.items() if k != "README.md"
    }


def test_each_commits_patch_id_is_its_files(applied, project):
    from vllm_series.git import Repository
    from vllm_series.patchfile import read_patch

    repository = Repository.open(applied)
    commits = git(applied, "rev-list", "--reverse", "v0.33.0..HEAD").split()
    for name, oid in zip(NAMES, commits, strict=True):
        file = project / "patches" / f"{name}.patch"
        assert repository.format_patches(f"{oid}^", oid).rstrip(b"\n") == file.read_bytes().rstrip(b"\n")
        assert repository.patch_id(file.read_bytes()) == repository.patch_id(
            repository.format_patches(f"{oid}^", oid)
        )
        patch = read_patch(file)
        shown = git(applied, "show", "-s", "--format=%an <%ae> %at|%cn <%ce> %ct", oid).split("|")
        assert shown[0] == shown[1] == patch.author.raw().rsplit(" ", 1)[0]


def test_second_apply_says_that_nothing_is_to_do(cli, applied):
    before = state_of(applied)
    times = {p: p.stat().st_mtime_ns for p in applied.rglob("*") if p.is_file() and ".git" not in p.parts}
    objects = sorted(p.name for p in (applied / ".git/objects").rglob("*"))
    result = cli("apply", "--vllm", applied)
    assert result.code == 0
    assert "nothing to do" in result.out
    assert state_of(applied) == before
    assert times == {p: p.stat().st_mtime_ns for p in times}
    assert objects == sorted(p.name for p in (applied / ".git/objects").rglob("*"))
    assert cli("apply", "--vllm", applied, "--json").document["action"] == "unchanged"


def test_same_commit_ids_from_two_folders(cli, tmp_path, world):
    ids = set()
    for folder, zone in (("one", "UTC"), ("two/deeper folder", "Asia/Tokyo")):
        result = cli("apply", "--into", tmp_path / folder, TZ=zone) if "/" not in folder else None
        if result is None:
            (tmp_path / folder).parent.mkdir()
            result = cli.script(
                "apply", "--into", tmp_path / folder, TZ=zone, USER="someone", HOME=str(tmp_path)
            )
        assert result.code == 0, result
        ids.add(git(tmp_path / folder, "rev-parse", "HEAD"))
        assert {k: v for k, v in files_of(tmp_path / folder).items() if k.startswith("docs/na")}
    assert len(ids) == 1
    assert files_of(tmp_path / "one") == expected_tree(world)


def test_new_folder(cli, tmp_path):
    result = cli("apply", "--json", cwd=tmp_path)
    document = result.document
    assert result.code == 0
    folder = tmp_path / "vllm-0.33.0"
    assert document["folder"] == str(folder)
    assert document["action"] == "made"
    assert [p["name"] for p in document["patches"]] == list(NAMES)
    assert git(folder, "rev-parse", "HEAD") == document["patches"][-1]["commit"]
    assert git(folder, "status", "--porcelain") == ""
    assert git(folder, "describe", "--tags", "--abbrev=0") == "v0.33.0"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["project", "vllm-0.33.0"]
    again = cli("apply", cwd=tmp_path)
    assert "nothing to do" in again.out
    git(folder, "fsck", "--strict")


def test_empty_folder_and_link_to_one_are_taken(cli, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("elsewhere")
    assert cli("apply", "--into", tmp_path / "empty").code == 0
    assert cli("apply", "--into", tmp_path / "link").code == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "elsewhere/vllm/engine.py").is_file()


def test_a_failed_apply_leaves_no_folder(cli, tmp_path, project):
    broken = project / "patches/worker-guard.patch"
    broken.write_bytes(
        broken.read_bytes().replace(b" class Worker", b" class Wxrker").replace(b"load_4", b"lxxd_4")
    )
    result = cli("apply", "--into", tmp_path / "new")
    assert result.code == 3, result
    assert "worker-guard does not apply" in result.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["project"]
    # A file that cannot be made: the folder is one already.
    (tmp_path / "file").write_text("")
    assert cli("apply", "--into", tmp_path / "file", "engine-fix").code == 4
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "project"]


def test_older_release(cli, tmp_path, world):
    result = cli("apply", "--onto", "v0.32.0", "--into", tmp_path / "old")
    assert result.code == 0, result
    assert "patch files for v0.32.0" in result.out
    assert files_of(tmp_path / "old") == expected_tree(world, "v0.32.0")


def test_changing_the_release_of_a_made_folder(cli, tmp_path, world):
    """The folder has one release alone; the other one comes from the cache."""
    folder = tmp_path / "vllm"
    assert cli("apply", "--into", folder).code == 0
    result = cli("apply", "--into", folder, "--onto", "v0.32.0")
    assert result.code == 0, result
    assert files_of(folder) == expected_tree(world, "v0.32.0")
    result = cli("apply", "--into", folder, "--onto", "v0.33.0")
    assert result.code == 0, result
    assert files_of(folder) == expected_tree(world)


def test_onto_makes_a_branch_of_its_own(cli, clone):
    main = git(clone, "rev-parse", "main")
    result = cli("apply", "--vllm", clone, "--onto", "v0.32.0")
    assert result.code == 0, result
    assert git(clone, "symbolic-ref", "HEAD") == "refs/heads/vllm-series/v0.32.0"
    assert git(clone, "rev-parse", "main") == main
    assert series_commits(clone) == list(NAMES)


def test_linked_worktree(cli, clone, tmp_path):
    git(clone, "worktree", "add", "--quiet", "-b", "side", str(tmp_path / "side"), "v0.33.0")
    before = files_of(clone)
    result = cli("apply", "--vllm", tmp_path / "side")
    assert result.code == 0, result
    assert series_commits(tmp_path / "side") == list(NAMES)
    assert git(tmp_path / "side", "status", "--porcelain") == ""
    assert files_of(clone) == before
    assert git(clone, "status", "--porcelain") == ""


@pytest.mark.parametrize(
    "options", [("--depth=1",), ("--filter=blob:none",), ("--depth=1", "--filter=blob:none")]
)
def test_shallow_and_filtered_clones(cli, world, tmp_path, options):
    git(world.upstream, "config", "uploadpack.allowFilter", "true")
    target = tmp_path / "vllm"
    git(
        tmp_path, "clone", "--quiet", *options, "--branch", "v0.33.0", f"file://{world.upstream}", str(target)
    )  # fmt: skip
    result = cli("apply", "--vllm", target)
    assert result.code == 0, result
    assert series_commits(target) == list(NAMES)
    assert git(target, "status", "--porcelain") == ""
    assert cli("unapply", "worker-guard", "--with-dependents", "--vllm", target).code == 0


@pytest.mark.parametrize("options", [("--depth=1",), ("--filter=blob:none",)])
def test_three_way_merges_need_the_ancestors(cli, world, tmp_path, options, project):
    """Neither the clone nor the cache has the blob that the patch was made against."""
    source = tmp_path / "upstream"
    git(tmp_path, "clone", "--quiet", str(world.upstream), str(source))
    git(source, "checkout", "--quiet", "-B", "main", "v0.33.0")
    commit(source, "drift", {"vllm/worker.py": WORKER.replace("open(path + '.3')", "open(path)")})
    git(source, "config", "uploadpack.allowFilter", "true")
    target = tmp_path / "vllm"
    git(tmp_path, "clone", "--quiet", *options, "--branch", "main", f"file://{source}", str(target))
    shutil.rmtree(source)
    file = project / "patches/worker-guard.patch"
    text = file.read_bytes()
    head, mark, tail = text.partition(b" b/vllm/worker.py\nindex ")
    file.write_bytes(head + mark + b"1" * 40 + tail[40:])
    word = "fetch --unshallow" if options == ("--depth=1",) else "fetch --refetch"
    refused(cli, target, 5, "worker-guard", word, args=("worker-guard", "--3way"))


def test_bare_repository(cli, world, tmp_path):
    bare = tmp_path / "vllm.git"
    git(tmp_path, "clone", "--quiet", "--bare", str(world.upstream), str(bare))
    result = cli("apply", "--vllm", bare, "--onto", "v0.33.0", "--branch", "patched")
    assert result.code == 0, result
    assert series_commits(bare, "patched") == list(NAMES)
    git(bare, "worktree", "add", "--quiet", "-b", "taken", str(tmp_path / "side"), "v0.33.0")
    refused(cli, bare, 4, "checked out in", args=("--onto", "v0.33.0", "--branch", "taken"))


def test_detached_head(cli, clone):
    git(clone, "checkout", "--quiet", "--detach", "v0.33.0")
    result = cli("apply", "--vllm", clone)
    assert result.code == 0, result
    assert git(clone, "symbolic-ref", "-q", "HEAD", check=False) == ""
    assert series_commits(clone) == list(NAMES)


def test_commits_of_ones_own_below(cli, clone):
    own = commit(clone, "My change", {"README.md": "mine\n"})
    assert cli("apply", "--vllm", clone).code == 0
    assert git(clone, "rev-parse", "HEAD~4") == own


def test_commits_of_ones_own_on_top(cli, applied):
    own = commit(applied, "My change", {"README.md": "mine\n"})
    result = cli("apply", "--vllm", applied, "--json")
    assert result.code == 0, result
    assert git(applied, "rev-parse", "HEAD") == own
    assert {s["verdict"] for s in result.document["skipped"]} == {"upstream-equivalent"}
    assert "exactly this series" not in cli("apply", "--vllm", applied).out


def test_submodule(cli, world, tmp_path):
    """vLLM as a submodule: its git directory lies in the parent's."""
    parent = init(tmp_path / "parent")
    git(
        parent, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(world.upstream), "vllm"
    )
    commit(parent, "parent")
    git(parent / "vllm", "checkout", "--quiet", "--detach", "v0.33.0")
    result = cli("apply", "--vllm", parent / "vllm")
    assert result.code == 0, result
    assert series_commits(parent / "vllm") == list(NAMES)
    assert git(parent, "status", "--porcelain") == " M vllm"
    refused(cli, parent, 3)


def test_sparse_checkout(cli, clone):
    git(clone, "sparse-checkout", "set", "vllm")
    result = cli("apply", "--vllm", clone)
    assert result.code == 0, result
    assert not (clone / "tests").exists()
    assert git(clone, "status", "--porcelain") == ""
    assert series_commits(clone) == list(NAMES)


def test_odd_folder_names(cli, world, tmp_path):
    for name in ("with space", "quo'te\"s", "naïve", "-dash"):
        folder = tmp_path / name
        git(tmp_path, "clone", "--quiet", "--branch", "v0.33.0", "--", str(world.upstream), str(folder))
        result = cli("apply", "--vllm", folder)
        assert result.code == 0, result
        assert cli("unapply", "engine-more", "--vllm", folder).code == 0
        assert series_commits(folder) == ["engine-fix", "worker-guard", "sched-log"]


def test_from_inside_with_a_relative_path(cli, clone):
    assert cli("apply", "--vllm", ".", cwd=clone).code == 0
    assert series_commits(clone) == list(NAMES)


# -- what is refused --------------------------------------------------------------------------------------


def test_dirty_files_that_the_series_touches(cli, clone):
    write(clone, {"vllm/engine.py": "mine\n"})
    assert "vllm/engine.py" in refused(cli, clone, 4, "git stash")
    git(clone, "add", "-A")
    refused(cli, clone, 4, "vllm/engine.py")


def test_a_removed_file_that_the_series_touches(cli, clone):
    (clone / "vllm/engine.py").unlink()
    refused(cli, clone, 4, "vllm/engine.py")


@pytest.mark.parametrize("ignore", [False, True])
@pytest.mark.parametrize("kind", ["file", "folder", "parent", "link"])
def test_untracked_things_in_the_way(cli, clone, ignore, kind, project):
    """Also ignored ones: git itself would overwrite these without a word."""
    series = project / "patches/sched-log.patch"
    if kind == "parent":
        series.write_bytes(series.read_bytes().replace(b"vllm/log.py", b"fresh/log.py"))
        write(clone, {"fresh": "precious\n"})
    elif kind == "folder":
        write(clone, {"vllm/log.py/inside": "precious\n"})
    elif kind == "link":
        (clone / "vllm/log.py").symlink_to("/etc/hostname")
    else:
        write(clone, {"vllm/log.py": "precious\n"})
    if ignore:
        write(clone, {".git/info/exclude": "log.py\nfresh\n"})
    refused(cli, clone, 4, "would be overwritten")


def test_an_ignored_folder_is_no_hindrance(cli, clone, project):
    series = project / "patches/sched-log.patch"
    series.write_bytes(series.read_bytes().replace(b"vllm/log.py", b"build/log.py"))
    write(clone, {".git/info/exclude": "build/\n", "build/other": "x\n"})
    result = cli("apply", "--vllm", clone)
    assert result.code == 0, result


def _conflicting(clone: Path) -> None:
    git(clone, "checkout", "--quiet", "-b", "other", "v0.33.0")
    commit(clone, "other", {"README.md": "other\n"})
    commit(clone, "other 2", {"README.md": "other 2\n"})
    git(clone, "checkout", "--quiet", "main")
    commit(clone, "mine", {"README.md": "mine\n"})


@pytest.mark.parametrize(
    "operation", ["merge", "rebase", "am", "cherry-pick", "revert", "bisect", "sequence"]
)
def test_operations_in_progress(cli, clone, operation):
    _conflicting(clone)
    if operation == "merge":
        git(clone, "merge", "other", check=False)
    elif operation == "rebase":
        git(clone, "rebase", "other", check=False)
    elif operation == "am":
        patch = git(clone, "format-patch", "--stdout", "-1", "other").encode() + b"\n"
        git(clone, "am", data=patch, check=False)
    elif operation == "revert":
        commit(clone, "again", {"README.md": "again\n"})
        git(clone, "revert", "HEAD~1", check=False)
    elif operation == "bisect":
        git(clone, "bisect", "start")
    else:
        git(
            clone,
            "cherry-pick",
            *(["other~1", "other"] if operation == "sequence" else ["other"]),
            check=False,
        )
    if operation == "sequence":
        # The first conflict is solved and committed by hand; the second pick is still to come.
        git(clone, "checkout", "--theirs", "README.md")
        git(clone, "add", "-A")
        git(clone, "commit", "--quiet", "--no-edit")
    else:
        git(clone, "reset", "--quiet", check=False)
        git(clone, "checkout", "--", ".")
        if operation in ("merge", "cherry-pick", "revert"):
            head = {"merge": "MERGE_HEAD", "cherry-pick": "CHERRY_PICK_HEAD", "revert": "REVERT_HEAD"}[
                operation
            ]
            (clone / ".git" / head).write_text(git(clone, "rev-parse", "other") + "\n")
    refused(cli, clone, 4, "in progress", "git -C")


def test_branch_checked_out_elsewhere(cli, clone, tmp_path):
    git(clone, "worktree", "add", "--quiet", "-b", "taken", str(tmp_path / "side"), "v0.33.0")
    refused(cli, clone, 4, "checked out in", args=("--branch", "taken", "--onto", "v0.33.0"))


def test_inside_a_repository(cli, clone):
    """`git apply` in a subdirectory of another repository skips everything with exit 0."""
    before = state_of(clone)
    result = cli("apply", "--vllm", clone / "vllm")
    assert result.code == 4
    assert str(clone) in result.err
    assert state_of(clone) == before
    assert cli("apply", "--vllm", clone / ".git").code == 4


def test_no_repository(cli, tmp_path):
    (tmp_path / "plain").mkdir()
    for path in ("plain", "missing", "project/series"):
        result = cli("apply", "--vllm", tmp_path / path)
        assert result.code == 4, result
        assert result.err.count("\n") == 2
    write(tmp_path, {"plain/x": "x"})
    assert cli("apply", "--into", tmp_path / "plain").code == 4
    assert files_of(tmp_path / "plain") == {"x": ("file 644", b"x")}


def test_unborn_head(cli, tmp_path):
    refused(cli, init(tmp_path / "new"), 4, "no commit yet")


def test_hand_edited_series_commit(cli, applied):
    write(applied, {"vllm/log.py": "# SPDX-License-Identifier: Apache-2.0\nLOG = [1]\n"})
    git(applied, "commit", "--quiet", "--amend", "-a", "--no-edit")
    refused(cli, applied, 4, "sched-log", "edited by hand", "refresh --from")
    before = state_of(applied)
    assert cli("unapply", "sched-log", "--vllm", applied).code == 4
    assert state_of(applied) == before
    # What stays, stays as it was edited.
    assert cli("unapply", "engine-more", "--vllm", applied).code == 0
    assert "LOG = [1]" in (applied / "vllm/log.py").read_text()


def test_a_hand_edit_that_the_patch_files_have(cli, applied):
    text = "# SPDX-License-Identifier: Apache-2.0\nLOG = [1]\n"
    write(applied, {"vllm/log.py": text})
    git(applied, "commit", "--quiet", "--amend", "-a", "--no-edit")
    assert cli("refresh", "--from", applied).code == 0
    result = cli("apply", "--vllm", applied)
    assert result.code == 0, result
    assert (applied / "vllm/log.py").read_text() == text
    before = state_of(applied)
    assert cli("apply", "--vllm", applied).code == 0
    assert state_of(applied) == before
    git(applied, "commit", "--quiet", "--amend", "--allow-empty", "--no-edit")
    assert cli("unapply", "sched-log", "--vllm", applied).code == 0


def test_branch_with_work_of_its_own(cli, clone):
    git(clone, "checkout", "--quiet", "-b", "work", "v0.33.0")
    commit(clone, "mine", {"README.md": "mine\n"})
    refused(cli, clone, 4, "--branch", args=("--onto", "v0.33.0", "--branch", "work"))
    git(clone, "checkout", "--quiet", "main")
    refused(cli, clone, 4, "--branch", args=("--onto", "v0.32.0", "--branch", "work"))


def test_another_git_at_work(cli, clone):
    (clone / ".git/index.lock").write_text("")
    refused(cli, clone, 4, "index.lock")


def test_conflict_names_patch_file_and_hunk(cli, clone):
    commit(clone, "other", {"vllm/worker.py": WORKER.replace("load_4", "fetch_4")})
    error = refused(cli, clone, 3, "worker-guard", "vllm/worker.py", "hunk 1 of 1")
    assert "--3way" in error
    document = cli("apply", "--vllm", clone, "--json").document
    assert document["error"]["kind"] == "conflict"
    assert document["error"]["patch"] == "worker-guard"


def test_a_result_that_does_not_compile_is_refused(cli, clone, project):
    file = project / "patches/sched-log.patch"
    file.write_bytes(file.read_bytes().replace(b"+    print(len(picked))", b"+    print(len(picked)"))
    refused(cli, clone, 1, "vllm/scheduler.py:6", "does not compile")


def test_usage(cli, clone, tmp_path):
    before = state_of(clone)
    for args in (
        ("nonsense", "--vllm", clone),
        ("--vllm", clone, "--into", tmp_path / "x"),
        ("--vllm", clone, "--onto", "v9.9.9"),
        ("--onto", "main"),
        ("--vllm", clone, "--onto", "--evil"),
        ("--vllm", clone, "--branch", "bad..name", "--onto", "v0.33.0"),
    ):
        result = cli("apply", *args)
        assert result.code == 2, result
    assert state_of(clone) == before
    assert "did you mean engine-fix?" in cli("apply", "engine-fixx", "--vllm", clone).err


# -- choosing ---------------------------------------------------------------------------------------------


def test_names_imply_prerequisites(cli, clone):
    result = cli("apply", "engine-more", "--vllm", clone)
    assert result.code == 0, result
    assert series_commits(clone) == ["engine-fix", "engine-more"]
    assert "engine-more needs engine-fix, which is applied too" in result.err
    result = cli("apply", "sched-log.patch", "--vllm", clone, "--json")
    assert {p["name"]: p["implied_by"] for p in result.document["patches"]} == {
        "engine-fix": None, "worker-guard": "sched-log", "engine-more": None, "sched-log": None,
    }  # fmt: skip
    assert "keeping engine-fix, engine-more" in result.err
    assert series_commits(clone) == list(NAMES)


def test_dry_run_changes_nothing(cli, clone, tmp_path):
    before, objects = state_of(clone), sorted((clone / ".git/objects").rglob("*"))
    result = cli("apply", "--vllm", clone, "--dry-run")
    assert result.code == 0, result
    assert "nothing was changed" in result.out
    assert state_of(clone) == before
    assert sorted((clone / ".git/objects").rglob("*")) == objects
    assert cli("apply", "--into", tmp_path / "new", "--dry-run").code == 0
    assert not (tmp_path / "new").exists()
    assert cli("pick", "engine-fix", "--vllm", clone, "--dry-run").code == 0
    assert state_of(clone) == before
    write(clone, {"vllm/engine.py": "mine\n"})
    assert cli("apply", "--vllm", clone, "--dry-run").code == 4
    assert cli("pick", "engine-fix", "--vllm", clone, "--dry-run").code == 4


def test_dry_run_of_unapply(cli, applied):
    before = state_of(applied)
    result = cli("unapply", "engine-more", "--vllm", applied, "--dry-run")
    assert (result.code, state_of(applied)) == (0, before)
    assert "would take off engine-more" in result.out


def test_three_way_marks_what_differs(cli, clone, project, world):
    drift = WORKER.replace("        return open(path + '.3')", "        return open(path + '.three')")
    commit(clone, "drift", {"vllm/worker.py": drift})
    refused(cli, clone, 3)
    result = cli("apply", "--vllm", clone, "--3way")
    assert result.code == 0, result
    assert "differs from the patch file" in result.out
    assert "        assert path\n" in (clone / "vllm/worker.py").read_text()
    again = cli("apply", "--vllm", clone, "--3way", "--json").document
    assert [p["name"] for p in again["patches"] if p["merged"]] == ["worker-guard"]


def test_offsets_are_said(cli, clone):
    text = (clone / "vllm/worker.py").read_text()
    commit(clone, "shift", {"vllm/worker.py": "# one\n# two\n" + text})
    result = cli("apply", "--vllm", clone)
    assert result.code == 0
    assert "offset 2" in result.out


def test_upstreamed_and_retired_patches_are_left_out(cli, clone, project):
    changes = series_changes(
        {
            "vllm/engine.py": (clone / "vllm/engine.py").read_text(),
            "tests/test_engine.py": (clone / "tests/test_engine.py").read_text(),
        }
    )
    commit(clone, "squash", {**changes[0][2], **changes[2][2]})
    write(clone, {"vllm/engine.py": (clone / "vllm/engine.py").read_text() + "# SOLVED_1\n"})
    commit(clone, "solved differently")
    result = cli("apply", "--vllm", clone, "--json")
    assert result.code == 0, result
    assert {s["name"]: s["verdict"] for s in result.document["skipped"]} == {
        "engine-fix": "upstream-equivalent", "worker-guard": "retired", "engine-more": "upstream-equivalent",
    }  # fmt: skip


def test_a_mode_that_is_there_makes_no_empty_commit(cli, clone, project):
    git(clone, "checkout", "--quiet", "--detach", "v0.33.0")
    (clone / "scripts/run.sh").chmod(0o644)
    commit(clone, "[Misc] Mode\n\nPatch-Name: engine-fix\n")
    from vllm_series.git import Repository

    raw = Repository.open(clone).format_patches("v0.33.0", "HEAD")
    (project / "patches/engine-fix.patch").write_bytes(raw)
    target = clone
    git(target, "commit", "--quiet", "--amend", "-m", "Upstream did it")
    result = cli("apply", "engine-fix", "--vllm", target, "--json")
    assert result.code == 0, result
    assert [s["verdict"] for s in result.document["skipped"]] == ["upstream-equivalent"]


# -- around it --------------------------------------------------------------------------------------------


def test_two_at_once_lock(cli, clone):
    from vllm_series.locks import locked

    with locked(clone / ".git/vllm-series.lock", "it"):
        before = state_of(clone)
        result = cli.script("apply", "--vllm", clone)
        assert result.code == 4, result
        assert f"process {os.getpid()}" in result.err
        assert state_of(clone) == before
    # The file is still there; its holder is not.
    assert (clone / ".git/vllm-series.lock").exists()
    assert cli("apply", "--vllm", clone).code == 0


def test_read_only_checkout(cli, clone):
    if os.geteuid() == 0:
        mounted = subprocess.run(["mount", "--bind", clone, clone], check=False, capture_output=True)
        if mounted.returncode:
            pytest.skip("a bind mount is not allowed here")
        try:
            subprocess.run(["mount", "-o", "remount,ro,bind", clone], check=True)
            refused(cli, clone, 5, "Read-only")
            assert cli("status", "--vllm", clone).code == 0
        finally:
            subprocess.run(["umount", clone], check=True)
    else:
        (clone / ".git").chmod(0o555)
        try:
            assert cli("apply", "--vllm", clone).code == 5
        finally:
            (clone / ".git").chmod(0o755)


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], check=False, capture_output=True
    )
    if done.returncode:
        pytest.skip("mounting a small file system needs root")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_full_disk(cli, clone, small_disk):
    target = small_disk / "vllm"
    git(small_disk, "clone", "--quiet", "--shared", str(clone), str(target))
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as stream:
        try:
            while True:
                stream.write(b"x" * 4096)
        except OSError:
            pass
    before = state_of(target)
    result = cli("apply", "--vllm", target)
    assert result.code == 5, result
    assert "space" in result.err
    filler.unlink()
    assert cli("doctor", "--vllm", target).code in (0, 5)
    assert state_of(target) == before
    assert cli("apply", "--vllm", target).code == 0
    # A new folder on a full disk leaves nothing.
    with filler.open("wb", buffering=0) as stream:
        try:
            while True:
                stream.write(b"x" * 4096)
        except OSError:
            pass
    result = cli("apply", "--into", small_disk / "new")
    assert result.code == 5, result
    assert sorted(p.name for p in small_disk.iterdir()) == ["filler", "vllm"]


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_no_branch_name_for_a_new_checkout(cli, tmp_path, more):
    result = cli("apply", "--into", tmp_path / "new", "--branch", "bad..name", *more)
    assert result.code == 2
    assert "is no branch name" in result.err
    assert not (tmp_path / "new").exists()
