# SPDX-License-Identifier: Apache-2.0
"""``import``: foreign patches become files of the series, all of them or none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from series_support import (
    NAMES,
    Result,
    commit,
    copy_tree,
    die_at,
    files_of,
    git,
    patches_of,
    refused,
    run_here,
    write,
)
from vllm_series.patchfile import read_patch


def fates(result: Result) -> list[tuple[str, str]]:
    return [(row["name"], row["result"]) for row in result.document["patches"]]


def edit(tree: Path, path: str, old: str, new: str) -> dict[str, str]:
    text = (tree / path).read_text()
    assert old in text
    return {path: text.replace(old, new)}


@pytest.fixture
def foreign(clone):
    """A branch of somebody else's on the release."""
    text = "[Core] Load faster\n\nBecause.\n\n---------\n\nCo-authored-by: B <b@c>\n"
    who = {"GIT_AUTHOR_NAME": "Nam Ü", "GIT_AUTHOR_DATE": "1650000000 +0530"}
    commit(clone, text, edit(clone, "vllm/worker.py", "open(path + '.9')", "fast(path)"), **who)
    commit(clone, "Drain from the front", edit(clone, "vllm/scheduler.py", "queue.pop()", "queue.pop(0)"))
    git(clone, "mv", "docs/naïve.md", "docs/clever.md")
    write(clone, {"assets/logo.bin": b"\0\1\2" * 99})
    write(clone, {"vllm/crlf.py": "one = 1\r\ntwo = 22\r\nthree = 3\r\nfour = 4\r\n"})
    commit(clone, "Odd files")
    return clone


def test_a_folder_of_mails(cli, project, foreign, tmp_path):
    options = ("-q", "--binary", "--cover-letter", "-o", str(tmp_path / "mails"))
    git(foreign, "format-patch", *options, "v0.33.0..HEAD")
    result = cli("import", tmp_path / "mails", "--json")
    assert result.code == 0, result
    assert fates(result)[1:] == [
        ("core-load-faster", "clean"),
        ("drain-from-the-front", "clean"),
        ("odd-files", "clean"),
    ]
    assert fates(result)[0][1] == "no-diff"
    names = (project / "series").read_text().split()[-3:]
    assert names == ["core-load-faster.patch", "drain-from-the-front.patch", "odd-files.patch"]
    patch = read_patch(project / "patches/core-load-faster.patch")
    assert (patch.author.name, patch.author.seconds, patch.author.zone) == ("Nam Ü", 1_650_000_000, "+0530")
    assert patch.subject == "[Core] Load faster"
    assert patch.body == "Because.\n\nCo-authored-by: B <b@c>\nPatch-Name: core-load-faster\nOrigin: own"
    assert cli("refresh", "--check").code == 0
    assert cli("status").code == 0
    assert '[odd-files]\nintent = "hold"' in (project / "patches/status.toml").read_text()
    assert cli("undo").code == 0
    assert (project / "series").read_text().split()[-1] == "sched-log.patch"


def test_a_mailbox_is_the_same_as_its_commits(cli, project, foreign, tmp_path):
    box = tmp_path / "all.mbox"
    git(foreign, "format-patch", "-q", "--binary", "-o", str(tmp_path / "mails"), "v0.33.0..HEAD")
    box.write_bytes(b"".join(p.read_bytes() for p in sorted((tmp_path / "mails").iterdir())))
    assert cli("import", box).code == 0
    one = patches_of(project)
    assert cli("undo").code == 0
    result = cli("import", "v0.33.0..HEAD", "--vllm", foreign)
    assert result.code == 0, result
    two = patches_of(project)
    assert one == two
    tree = git(foreign, "rev-parse", "HEAD^{tree}")
    (project / "series").write_text("load-faster.patch\ndrain-from-the-front.patch\nodd-files.patch\n")
    assert cli("apply", "--into", tmp_path / "out").code == 0
    assert git(tmp_path / "out", "rev-parse", "HEAD^{tree}") == tree


def test_a_series_of_this_tool_comes_back_as_it_was(cli, project, tmp_path):
    """Its folder is a quilt series to others: names, order and bytes stay."""
    bases = project / "patches/base.toml"
    bases.write_text("[[base]]".join(bases.read_text().split("[[base]]")[:2]))
    shutil.rmtree(project / "patches/v0.32.0")
    before = patches_of(project)
    own = tmp_path / "own"
    for name in NAMES:
        write(own, {f"{name}.patch": before[f"patches/{name}.patch"][1]})
        (project / "patches" / f"{name}.patch").unlink()
    write(own, {"series": "".join(f"{name}.patch\n" for name in NAMES)})
    (project / "series").write_text("# In order.\n")
    result = cli("import", own)
    assert result.code == 0, result
    assert patches_of(project) == before


def test_one_commit_with_a_name_and_a_place(cli, project, foreign):
    result = cli(
        "import", "HEAD~1", "--vllm", foreign, "--name", "front", "--before", "worker-guard", "--json"
    )
    assert result.code == 0, result
    names = ("engine-fix", "front", "worker-guard", "engine-more", "sched-log")
    assert (project / "series").read_text() == "# In order.\n" + "".join(f"{n}.patch\n" for n in names)
    assert cli("status").code == 0
    assert cli("refresh", "--check").code == 0
    result = cli("import", "HEAD", "--vllm", foreign, "--after", "sched-log", "--origin", "backport")
    assert result.code == 0, result
    assert "Origin: backport\n" in (project / "patches/odd-files.patch").read_text()


SPACE = "docs/with space.md"


def test_quilt_with_levels_and_reverse(cli, tmp_path):
    folder = tmp_path / "quilt"
    files = {
        "series": "zero.patch -p0\ndeep.diff -p3\nback.patch -R\nsvn.patch -p0\n",
        "zero.patch": "Zero.\n--- csrc/kernel.cu\n+++ csrc/kernel.cu\n"
        "@@ -1,2 +1,3 @@\n // [kernel] [/x]\n __global__ void run() {}\n+// Zero.\n",
        "deep.diff": "--- x/b/c/csrc/kernel.cu\n+++ y/b/c/csrc/kernel.cu\n"
        "@@ -2,2 +2,3 @@\n __global__ void run() {}\n // Zero.\n+// Deep.\n",
        "back.patch": f"--- a/{SPACE}\t2020\n+++ b/{SPACE}\t2021\n@@ -1 +1 @@\n-full\n+space\n",
        "svn.patch": "Index: vllm/log2.py\n=====\n--- vllm/log2.py\t(nonexistent)\n"
        "+++ vllm/log2.py\t(working copy)\n@@ -0,0 +1 @@\n+LOG = 1\n",
    }
    write(folder, files)
    result = cli("import", folder, "--author", "Q <q@q>", "--json")
    assert result.code == 0, result
    assert fates(result) == [("zero", "clean"), ("deep", "clean"), ("back", "clean"), ("svn", "clean")]
    assert cli("apply", "--into", tmp_path / "out").code == 0
    assert (tmp_path / "out/csrc/kernel.cu").read_text().endswith("{}\n// Zero.\n// Deep.\n")
    assert (tmp_path / "out" / SPACE).read_text() == "full\n"
    assert (tmp_path / "out/vllm/log2.py").read_text() == "LOG = 1\n"


@pytest.mark.parametrize(
    ("old", "new", "head"),
    [
        ("", "", ""),
        ("a/", "b/", ""),
        ("vllm-0.33.0.orig/", "vllm-0.33.0/", ""),
        ("a/b/", "a/b/", ""),
        ("i/", "w/", "diff --git i/vllm/{0} w/vllm/{0}\n"),
        ("", "", "diff --git vllm/{0} vllm/{0}\n"),
    ],
)
@pytest.mark.parametrize("there", [True, False])
def test_the_level_of_a_diff_is_found(cli, project, tmp_path, old, new, head, there):
    """Also for a new file, which git would make at any level."""
    name = "__init__.py" if there else "fresh.py"
    head = head.format(name) + ("" if there or not head else "new file mode 100644\n")
    before = f"{old}vllm/{name}" if there else "/dev/null"
    (tmp_path / "x.diff").write_text(f"{head}--- {before}\n+++ {new}vllm/{name}\n@@ -0,0 +1 @@\n+x = 1\n")
    result = cli("import", tmp_path / "x.diff", "--author", "Q <q@q>")
    assert result.code == 0, result
    assert f"+++ b/vllm/{name}\n" in (project / "patches/x.patch").read_text()


def test_drift_needs_a_merge_and_conflicts_refuse(cli, project, clone, tmp_path):
    """Everything is reported at once, and nothing is written."""
    base = git(clone, "rev-parse", "v0.33.0^{}")
    # Their upstream had another line beside the one that they change.
    commit(
        clone, "theirs", edit(clone, "vllm/scheduler.py", "def drain(queue):\n", "def drain(queue):\n    #\n")
    )
    commit(clone, "Drift", edit(clone, "vllm/scheduler.py", "queue.pop()", "queue.pop(0)"))
    commit(clone, "theirs too", {SPACE: "other\n"})
    commit(clone, "Clash", {SPACE: "more\n"})
    commit(clone, "Fine", {"FINE.md": "x\n"})
    git(cli.cache / "vllm.git", "fetch", "--quiet", str(clone), "+HEAD:refs/foreign")  # Their blobs.
    git(clone, "format-patch", "-q", "--full-index", "-o", str(tmp_path / "m"), f"{base}..HEAD")
    for name in ("0001-theirs.patch", "0003-theirs-too.patch"):
        (tmp_path / "m" / name).unlink()
    result = refused(cli, project, 3, "import", tmp_path / "m", "--json")
    assert [(r["name"], r["result"]) for r in result.document["error"]["patches"]] == [
        ("drift", "needs-3way"), ("clash", "conflict"), ("fine", "clean"),
    ]  # fmt: skip
    assert "2 of 3 patches would not apply to v0.33.0: 1 in conflict, 1 that only" in result.err
    refused(cli, project, 3, "import", tmp_path / "m", "--3way", words="1 of 3 patches")
    (tmp_path / "m/0004-Clash.patch").unlink()
    result = refused(cli, project, 3, "import", tmp_path / "m", words="--3way")
    assert "drift  needs-3way" in result.out
    result = cli("import", tmp_path / "m", "--3way", "--json")
    assert result.code == 0, result
    assert fates(result) == [("drift", "needs-3way"), ("fine", "clean")]
    assert cli("refresh", "--check").code == 0
    assert "+        queue.pop(0)\n" in (project / "patches/drift.patch").read_text()


def test_what_is_there_already(cli, project, foreign, tmp_path):
    assert cli("import", "v0.33.0..HEAD", "--vllm", foreign).code == 0
    before = patches_of(project)
    result = cli("import", "v0.33.0..HEAD", "--vllm", foreign, "--json")
    assert result.code == 0, result
    assert {fate for _, fate in fates(result)} == {"present"}
    assert patches_of(project) == before
    mine = project / "patches/drain-from-the-front-2.patch"  # Not named by the series: somebody's.
    mine.write_text("mine")
    commit(foreign, "Drain from the front", {"OTHER.md": "x\n"})
    result = cli("import", "v0.33.0..HEAD", "--vllm", foreign, "--json")
    assert result.code == 0, result
    assert fates(result)[-1] == ("drain-from-the-front-3", "clean")
    assert mine.read_text() == "mine"


def test_a_conflict_writes_no_file_where_it_is_asked(cli, project, clone, tmp_path, monkeypatch):
    """git apply --cached --3way does, if a new file is among those that conflict."""
    commit(clone, "[Core] One", {"NEW.md": "one\n"})
    assert cli("import", "HEAD", "--vllm", clone).code == 0
    commit(clone, "[Core] Gone", {"NEW.md": None})
    commit(clone, "[Core] Two", {"NEW.md": "two\n", "README.md": "# vLLM\n\nHard.\n"})
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    refused(cli, project, 3, "import", "HEAD", "--vllm", clone, words="1 in conflict")
    assert files_of(here) == {}


def test_every_base_must_take_it(cli, project, clone):
    """The older release has other lines there: no file of the patch would serve it."""
    commit(clone, "[Core] Round", {"README.md": "# vLLM\n\nEasier.\n"})
    refused(cli, project, 3, "import", "HEAD", "--vllm", clone, words="round would not apply to v0.32.0")


def test_dry_run(cli, project, foreign):
    before = files_of(project)
    result = cli("import", "v0.33.0..HEAD", "--vllm", foreign, "--dry-run")
    assert result.code == 0, result
    assert "would import 3 patches\n  would write 3 patch files: " in result.out
    assert files_of(project) == before


def test_bad_input(cli, project, foreign, tmp_path):
    refused(cli, project, 2, "import", tmp_path / "none", words="does not exist")
    result = refused(cli, project, 2, "import", "v0.33.0..HEAD")
    assert "--vllm PATH" in result.err
    refused(cli, project, 2, "import", "HEAD", "--vllm", foreign, "--name", "engine-fix", words="already")
    refused(cli, project, 2, "import", "HEAD", "--vllm", foreign, "--name", "Ä", words="no patch name")
    refused(
        cli, project, 2, "import", "v0.33.0..HEAD", "--vllm", foreign, "--name", "x", words="for one patch"
    )
    refused(cli, project, 2, "import", "HEAD", "--vllm", foreign, "--before", "nope", words="no patch nope")
    refused(
        cli,
        project,
        2,
        "import",
        "HEAD",
        "--vllm",
        foreign,
        "--before",
        NAMES[0],
        "--after",
        NAMES[1],
        words="exclude",
    )
    diff = tmp_path / "x.diff"
    diff.write_text("--- a/README.md\n+++ b/README.md\n@@ -1,3 +1,4 @@\n # vLLM\n")
    refused(cli, project, 3, "import", diff, "--author", "Q <q@q>", words="nothing was imported")
    diff.write_text("--- a/../out.md\n+++ b/../out.md\n@@ -0,0 +1 @@\n+x\n")
    refused(cli, project, 3, "import", diff, "-p", "1", "--author", "Q <q@q>", words="nothing was imported")
    refused(cli, project, 2, "import", diff, "--author", "Q", words="'Q' is no author")


def test_the_series_itself_is_there_already(cli, project, clone, tmp_path):
    """Also a patch whose lines a later one has changed, and the text for another base."""
    odd = {
        "docs/naïve.md": None,
        "docs/wise.md": "naïve\n",
        "assets/logo.bin": b"\0\1\2" * 99,
        "T": "-- \n1\n",
    }
    commit(clone, "[Core] Odd\n\nPatch-Name: odd", odd)
    assert cli("import", "HEAD", "--vllm", clone).code == 0
    before = patches_of(project)
    for ref in ("v0.33.0", "v0.32.0"):
        folder = tmp_path / ref
        assert cli("apply", "--onto", ref, "--into", folder).code == 0
        git(folder, "format-patch", "-q", "--stat", "-o", str(tmp_path / f"m-{ref}"), ref)
        for source in ((f"{ref}..HEAD", "--vllm", folder), (tmp_path / f"m-{ref}",)):
            result = cli("import", *source, "--json")
            assert result.code == 0, result
            assert fates(result) == [(name, "present") for name in (*NAMES, "odd")]
            assert {row["detail"] for row in result.document["patches"]} == {"the series has it"}
            assert "nothing to import: all of it is there already" in cli("import", *source, "--dry-run").out
    result = cli("import", project / "patches", "--dry-run", "--json")
    assert (result.code, {fate for _, fate in fates(result)}) == (0, {"present"})
    assert patches_of(project) == before
    # What is new beside them is taken; another change of that name is none of the series.
    commit(tmp_path / "v0.33.0", "[Core] More", {"M.md": "x\n"})
    result = cli("import", "v0.33.0..HEAD", "--vllm", tmp_path / "v0.33.0", "--json")
    assert fates(result)[-2:] == [("odd", "present"), ("more", "clean")]
    commit(tmp_path / "v0.33.0", "[Core] Odder\n\nPatch-Name: odd", {"O.md": "x\n"})
    assert fates(cli("import", "HEAD", "--vllm", tmp_path / "v0.33.0", "--json")) == [("odd-2", "clean")]


def test_a_commit_without_a_message(cli, project, clone):
    write(clone, {"M.md": "x\n"})
    git(clone, "add", "-A")
    git(clone, "commit", "--quiet", "--allow-empty-message", "-m", "")
    assert cli("import", "HEAD", "--vllm", clone, "--name", "mute").code == 0
    assert read_patch(project / "patches/mute.patch").subject == git(clone, "rev-parse", "HEAD")[:12]


def test_what_it_needs_must_stand_before_it(cli, project, clone):
    commit(clone, "[Core] Needy\n\nDepends-on: nothing\n", {"N.md": "x\n"})
    result = refused(cli, project, 4, "import", "HEAD", "--vllm", clone)
    assert "Depends-on: nothing, which the series would not have\n  take nothing in first, or" in result.err
    commit(clone, "[Core] Early\n\nDepends-on: worker-guard\n", {"E.md": "x\n"})
    result = refused(cli, project, 4, "import", "HEAD", "--vllm", clone, "--before", "engine-fix")
    assert "worker-guard, which would not stand before it\n  put it behind worker-guard, or" in result.err


def test_an_origin_that_check_would_refuse(cli, project, foreign):
    for odd in ("bogus", " ", "upstream", "upstream, zz", "own "):
        code, words = (0, "") if odd == "upstream" else (2, "--origin" if odd == " " else "no origin")
        result = cli("import", "HEAD", "--vllm", foreign, "--origin", odd, "--dry-run")
        assert result.code == code, result
        assert words in result.err
    for option in ("--origin", "--name", "--author"):
        refused(cli, project, 2, "import", "HEAD", "--vllm", foreign, option, "", words="it is empty")
    # What it brings itself stays, and is named.
    commit(foreign, "[Core] Vendor\n\nWhy.\n\nOrigin: vendor", {"V.md": "x\n"})
    result = cli("import", "HEAD", "--vllm", foreign)
    assert result.code == 0, result
    assert "check will refuse its 'Origin: vendor'; name another with --origin" in result.err
    assert cli("undo").code == 0
    assert cli("import", "HEAD", "--vllm", foreign, "--origin", "backport").code == 0
    assert read_patch(project / "patches/vendor.patch").trailer("Origin") == ("backport",)
    # A line of its text is no trailer.
    commit(foreign, "[Core] Text\n\nOrigin: the vendor's tree\nand more.", {"T.md": "x\n"})
    assert cli("import", "HEAD", "--vllm", foreign).code == 0
    assert read_patch(project / "patches/text.patch").trailer("Origin") == ("own",)


@pytest.mark.parametrize("stride", [71, pytest.param(2, marks=pytest.mark.slow)])
def test_killed_at_every_step(cli, project, foreign, tmp_path, stride):
    git(foreign, "format-patch", "-q", "--binary", "-o", str(tmp_path / "m"), "v0.33.0..HEAD")
    before = patches_of(project)
    other = copy_tree(project, tmp_path / "other")
    assert run_here("import", tmp_path / "m", env=cli._env({"VLLM_SERIES_DIR": str(other)})).code == 0
    after = patches_of(other)
    for number in range(1, 2000, stride):
        work = copy_tree(project, tmp_path / f"work-{number}")
        env = cli._env({"VLLM_SERIES_DIR": str(work)})
        result = die_at(number, "import", tmp_path / "m", after=bool(number % 2), env=env)
        assert run_here("list", env=env).code == 0
        assert patches_of(work) in (before, after)
        if result is not None:
            assert result.code == 0, result
            break
        again = run_here("import", tmp_path / "m", env=env)
        assert again.code == 0, again
        assert patches_of(work) == after
    assert number > 40
