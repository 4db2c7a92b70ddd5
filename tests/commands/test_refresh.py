# SPDX-License-Identifier: Apache-2.0
"""``refresh``: writes what must be written and leaves the rest alone, byte for byte."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from series_support import (
    RELEASE_33,
    commit,
    copy_tree,
    die_at,
    files_of,
    git,
    message,
    run_here,
    series_changes,
    write,
)
from vllm_series import swap


@pytest.fixture
def cli(cli, world, tmp_path):
    """Refreshing builds commits in the cache, so each test has its own."""
    cli.cache = copy_tree(world.cache, tmp_path / "cache")
    return cli


def times(project: Path) -> dict[str, int]:
    """When each file was written; the log of operations is not looked at."""
    files = (p for p in project.rglob("*") if p.is_file() and ".vllm-series" not in p.parts)
    return {str(p.relative_to(project)): p.stat().st_mtime_ns for p in files}


def amend(repository: Path, name: str, files: dict, text: str | None = None) -> None:
    """Change one series commit in the middle, as a person does with an interactive rebase."""
    tip = git(repository, "rev-parse", "HEAD")
    target = git(repository, "log", "-1", "--format=%H", f"--grep=Patch-Name: {name}")
    git(repository, "checkout", "--quiet", "--detach", target)
    write(repository, files)
    git(repository, "add", "-A")
    args = ["-m", text] if text else ["--no-edit"]
    git(repository, "commit", "--quiet", "--amend", "--allow-empty", "--cleanup=verbatim", *args)
    changed = git(repository, "rev-parse", "HEAD")
    git(repository, "checkout", "--quiet", "-B", "main", tip)
    git(repository, "rebase", "--quiet", "--empty=keep", "--keep-empty", "--onto", changed, target, "main")


def test_unchanged_files_stay(cli, project, applied):
    before, stamps = files_of(project), times(project)
    for args in ((), ("--check",), ("--from", applied)):
        result = cli("refresh", *args)
        assert result.code == 0, result
        assert "as they should be" in result.out
    left = files_of(project)
    left.pop(".vllm-series.lock")
    assert left == before
    assert {k: v for k, v in times(project).items() if k != ".vllm-series.lock"} == stamps


def test_offsets_and_moved_blob_ids_are_no_change(cli, project, applied):
    """An earlier patch grows: the later ones on the file keep their text."""
    engine = git(applied, "show", "HEAD~3:vllm/engine.py") + "\n"
    head = "# SPDX-License-Identifier: Apache-2.0\n"
    amend(applied, "engine-fix", {"vllm/engine.py": engine.replace(head, head + "# one\n# two\n")})
    stamps = times(project)
    result = cli("refresh", "--from", applied)
    assert result.code == 0, result
    changed = {k for k, v in times(project).items() if stamps.get(k) != v}
    assert changed == {"patches/engine-fix.patch", ".vllm-series.lock"}
    assert cli("status", "--onto", "v0.33.0").code == 0


def test_edits_are_taken_in(cli, project, applied):
    amend(applied, "sched-log", {"vllm/log.py": "# SPDX-License-Identifier: Apache-2.0\nLOG = [1]\n"})
    before = times(project)
    check = cli("refresh", "--check", "--from", applied, "--json")
    assert check.code == 1
    assert [f["file"] for f in check.document["files"]] == ["sched-log.patch"]
    assert times(project) == before
    assert cli("refresh", "--from", applied).code == 0
    assert "+LOG = [1]\n" in (project / "patches/sched-log.patch").read_text()
    assert cli("refresh", "--check").code == 0
    # The checkout can go on: apply makes the commits anew, and then nothing is edited.
    git(applied, "checkout", "--quiet", "-B", "fresh", "v0.33.0")
    assert cli("apply", "--vllm", applied).code == 0
    assert "LOG = [1]" in (applied / "vllm/log.py").read_text()


def test_a_new_message_is_taken_in_with_author_and_date(cli, project, applied):
    amend(applied, "worker-guard", {}, message("worker-guard", "[Core] Another title", body="New words."))
    assert cli("refresh", "--from", applied).code == 0
    text = (project / "patches/worker-guard.patch").read_text()
    assert "Subject: [PATCH] [Core] Another title\n" in text
    assert "From: Ada Lovelace <ada@example.org>\nDate: Tue, 14 Nov 2023 23:13:20 +0100\n" in text


def test_files_that_are_not_canonical_are_written(cli, project):
    path = project / "patches/worker-guard.patch"
    wanted = path.read_bytes()
    spoilt = wanted.replace(b"Subject: [PATCH] ", b"Subject: [PATCH 2/4] ").replace(b"0" * 40, b"a" * 40, 1)
    path.write_bytes(spoilt + b"-- \n2.39.5\n\n")
    stamps = times(project)
    assert cli("refresh", "--check").code == 1
    assert path.read_bytes() != wanted
    result = cli("refresh")
    assert result.code == 0, result
    assert path.read_bytes() == wanted
    changed = {k for k, v in times(project).items() if stamps.get(k) != v}
    assert changed == {"patches/worker-guard.patch", ".vllm-series.lock"}


def test_a_copy_becomes_a_plain_new_file(cli, project):
    """Copies are written by others; here no diff depends on another file's place in it."""
    path = project / "patches/worker-guard.patch"
    path.write_text(
        path.read_text() + "diff --git a/README.md b/COPY.md\nsimilarity index 100%\n"
        "copy from README.md\ncopy to COPY.md\n"
    )
    assert cli("refresh").code == 0
    assert "copy from" not in path.read_text()
    assert "diff --git a/COPY.md b/COPY.md\nnew file mode 100644\n" in path.read_text()
    assert cli("refresh", "--check").code == 0


def test_the_older_base_gets_variants(cli, project, world, tmp_path):
    """An edit made on the older release goes to its folder, and the plain file stays."""
    folder = tmp_path / "old"
    assert cli("apply", "--onto", "v0.32.0", "--into", folder).code == 0
    worker = (folder / "vllm/worker.py").read_text()
    amend_text = worker.replace("        assert path\n", "        assert path, 'old'\n")
    git(folder, "checkout", "--quiet", "-B", "main")
    amend(folder, "worker-guard", {"vllm/worker.py": amend_text})
    stamps = times(project)
    result = cli("refresh", "--from", folder, "--json")
    assert result.code == 0, result
    assert [f["file"] for f in result.document["files"]] == ["v0.32.0/worker-guard.patch"]
    changed = {k for k, v in times(project).items() if stamps.get(k) != v}
    assert changed == {"patches/v0.32.0/worker-guard.patch", ".vllm-series.lock"}
    assert cli("refresh", "--check").code == 0
    assert cli("check").code == 0
    assert "worker-guard  clean    clean (variant)" in cli("status").out


def test_a_hand_made_stack_is_taken_in(cli, project, clone):
    """A person's own commits with the trailers, in the series' order: nothing of the tool's is needed."""
    for _, text, files in series_changes(RELEASE_33):
        commit(clone, text.replace("Because it is needed.", "Because I say so."), files)
    git(clone, "tag", "-f", "v0.33.0", "v0.33.0^{}")
    result = cli("refresh", "--from", clone)
    assert result.code == 0, result
    assert result.out.count("wrote ") == 4
    assert cli("check").code == 0


def refused(cli, project: Path, repository: Path, code: int, *words: str) -> None:
    before = files_of(project)
    result = cli("refresh", "--from", repository)
    assert result.code == code, result
    for word in words:
        assert word in result.err, result
    after = files_of(project)
    after.pop(".vllm-series.lock", None)
    before.pop(".vllm-series.lock", None)
    assert after == before


def test_empty_missing_unknown_and_reordered_commits(cli, project, applied, clone, tmp_path):
    empty = copy_tree(applied, tmp_path / "empty")
    amend(empty, "worker-guard", {"vllm/worker.py": git(empty, "show", "v0.33.0:vllm/worker.py") + "\n"})
    # Only its test is left; without that it is empty.
    tests = git(empty, "show", "HEAD~3:tests/test_engine.py") + "\n"
    amend(empty, "worker-guard", {"tests/test_engine.py": tests})
    refused(cli, project, empty, 4, "empty")
    missing = copy_tree(applied, tmp_path / "missing")
    assert cli("unapply", "engine-more", "--vllm", missing).code == 0
    refused(cli, project, missing, 4, "lacks engine-more")
    unknown = copy_tree(applied, tmp_path / "unknown")
    commit(unknown, message("brand-new", "[Core] New"), {"NEW.md": "x\n"})
    refused(cli, project, unknown, 4, "brand-new", "series")
    order = copy_tree(applied, tmp_path / "order")
    git(order, "reset", "--quiet", "--hard", "HEAD~3")
    for name in ("engine-more", "worker-guard", "sched-log"):
        git(order, "cherry-pick", git(applied, "log", "-1", "--format=%H", f"--grep=Patch-Name: {name}"))
    refused(cli, project, order, 4, "order")
    refused(cli, project, clone, 4, "no series commits")
    commit(applied, "no trailer", {"README.md": "x\n"})
    refused(cli, project, applied, 4, "'no trailer' at HEAD", "squash it")
    own = copy_tree(clone, tmp_path / "own")
    commit(own, "mine", {"README.md": "mine\n"})
    assert cli("apply", "--vllm", own).code == 0
    refused(
        cli, project, own, 4, "'mine' below its series commits", "neither of a patch nor a supported release"
    )


def test_what_is_not_committed_is_said(cli, project, applied):
    """It does not count, and nobody should think that it did."""
    assert cli("refresh", "--from", applied, "--json").document["warnings"] == []
    write(applied, {"vllm/engine.py": "x = 1\n", "NEW.md": "x\n"})
    before = files_of(project)
    result = cli("refresh", "--from", applied, "--json")
    assert result.code == 0, result
    (warning,) = result.document["warnings"]
    assert "2 files" in warning
    assert "NEW.md, vllm/engine.py" in warning
    assert files_of(project) == before


def test_a_message_that_would_be_cut(cli, project, applied):
    text = message("worker-guard", "[Core] Title", body="| a |\n---\n| b |")
    amend(applied, "worker-guard", {}, text)
    refused(cli, project, applied, 4, "worker-guard", "would be cut")


def test_merges_are_refused(cli, project, applied):
    git(applied, "checkout", "--quiet", "-b", "side", "HEAD~1")
    commit(applied, "side", {"SIDE.md": "x\n"})
    git(applied, "checkout", "--quiet", "main")
    git(applied, "merge", "--quiet", "--no-ff", "-m", "Merge\n\nPatch-Name: engine-fix", "side")
    refused(cli, project, applied, 4)


def test_a_patch_that_does_not_apply(cli, project):
    path = project / "patches/worker-guard.patch"
    text = path.read_bytes().replace(b"     def load_3", b"     def lxxd_3")
    path.write_bytes(text.replace(b"load_4", b"lxxd_4"))
    before = files_of(project / "patches")
    result = cli("refresh")
    assert result.code == 3, result
    assert "worker-guard does not apply to v0.33.0" in result.err
    assert files_of(project / "patches") == before
    assert git(cli.cache / "vllm.git", "for-each-ref", "refs/vllm-series") == ""


def test_the_installed_copy_is_read_only(cli, project, tmp_path, monkeypatch):
    """Inside an installed package the project is data."""
    import vllm_series.project as module

    package = tmp_path / "site/vllm_series"
    copy_tree(project, package / "_data")
    monkeypatch.setattr(module, "__file__", str(package / "project.py"))
    (tmp_path / "nowhere").mkdir()
    env = {"VLLM_SERIES_CACHE": str(cli.cache)}
    found = run_here("list", "--json", cwd=Path("/"), env=env)
    assert found.document["root"] == str(package / "_data")
    before = files_of(package)
    result = run_here("refresh", cwd=Path("/"), env=env)
    assert result.code == 4, result
    assert "--series-dir" in result.err
    assert files_of(package) == before
    for args in (("check",), ("status",), ("refresh", "--check"), ("show", "engine-fix")):
        assert run_here(*args, cwd=Path("/"), env=env).code == 0


@pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "two renames"])
@pytest.mark.parametrize("after", [False, True])
def test_killed_at_every_step(cli, project, tmp_path, monkeypatch, exchange, after):
    """Also on file systems that cannot exchange two folders."""
    path = project / "patches/worker-guard.patch"
    wanted = files_of(project / "patches")
    path.write_bytes(path.read_bytes() + b"-- \n2.39.5\n\n")
    spoilt = files_of(project / "patches")
    if not exchange:
        monkeypatch.setattr(swap, "_exchange", lambda *_: False)
    ends = set()
    left = {"series", "patches", ".vllm-series.lock"}
    for number in range(2 if after else 1, 400, 5):
        work = copy_tree(project, tmp_path / f"work-{number}")
        env = cli._env({"VLLM_SERIES_DIR": str(work)})
        result = die_at(number, "refresh", after=after, env=env)
        if result is not None:
            assert result.code == 0, result
            break
        # Looking finds one or the other, whole.
        here = {k: v for k, v in env.items() if k != "VLLM_SERIES_DIR"}
        assert run_here("list", cwd=work, env=here).code == 0
        found = files_of(work / "patches")
        assert found in (wanted, spoilt), number
        ends.add(found == wanted)
        if number % 2 or found == wanted:
            again = run_here("refresh", env=env)
            assert again.code == 0, again
            assert files_of(work / "patches") == wanted
            assert {p.name for p in work.iterdir()} == {*left, ".vllm-series"}
    assert files_of(work / "patches") == wanted
    assert False in ends
    assert number > 10


def test_full_disk_and_no_permission(cli, project, tmp_path):
    import subprocess

    if os.geteuid() != 0:
        pytest.skip("needs a small file system")
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], check=False, capture_output=True
    ).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        work = copy_tree(project, disk / "project")
        path = work / "patches/worker-guard.patch"
        path.write_bytes(path.read_bytes() + b"-- \n2.39.5\n\n")
        before = files_of(work / "patches")
        left = {"series", "patches", ".vllm-series.lock"}
        with (disk / "filler").open("wb", buffering=0) as stream:
            try:
                while True:
                    stream.write(b"x" * 4096)
            except OSError:
                pass
        cli.project = work
        result = cli("refresh")
        assert result.code == 5, result
        assert files_of(work / "patches") == before
        assert {p.name for p in work.iterdir()} <= {*left, ".vllm-series"}
        (disk / "filler").unlink()
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        result = cli("refresh")
        assert result.code == 5, result
        assert cli("refresh", "--check").code == 1
    finally:
        subprocess.run(["umount", disk], check=True)


def test_two_at_once(cli, project):
    from vllm_series.locks import locked

    with locked(project / ".vllm-series.lock", "it"):
        assert cli.script("refresh").code == 4
        assert cli.script("refresh", "--check").code == 0
