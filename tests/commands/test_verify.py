# SPDX-License-Identifier: Apache-2.0
"""``verify``: the answer is yes only if every byte is right, and a no says what is wrong where."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import itertools
import json
import os
import py_compile
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from series_support import NAMES, RELEASE_32, Result, copy_tree, files_of, git, release_tree, state_of, write
from vllm_series.git import Repository
from vllm_series.places import Checkout
from vllm_series.plan import Target
from vllm_series.project import Project
from vllm_series.stack import apply_all
from vllm_series.takeapart import State
from vllm_series.tree import CommitSource, Snapshot
from vllm_series.verify import verify


def states(result: Result) -> dict[str, str]:
    return {row["name"]: row["state"] for row in result.document["patches"]}


def foreign(result: Result) -> dict[str, str]:
    return {row["path"]: row["kind"] for row in result.document["foreign"]}


# -- checkouts --------------------------------------------------------------------------------------------


def test_an_applied_series(cli, applied):
    before = state_of(applied)
    result = cli("verify", applied)
    assert result.code == 0, result
    assert "ok: exactly the base plus 4 patches" in result.out
    assert result.out.count("applied\n") == 4
    found = cli("verify", applied, "--json").document
    assert found["exact"]
    assert found["kind"] == "checkout"
    assert found["base"]["release"] == "v0.33.0"
    assert found["foreign"] == found["stale"] == []
    assert found["patches"][0]["files"][0] == {
        "path": "tests/test_engine.py", "state": "applied", "present": 1, "hunks": 1,
    }  # fmt: skip
    assert state_of(applied) == before


def test_nothing_applied(cli, clone):
    result = cli("verify", clone, "--json")
    assert result.code == 1, result
    assert states(result) == dict.fromkeys(NAMES, "missing")
    assert foreign(result) == {}


def test_uncommitted_files_count_like_committed_ones(cli, clone, applied):
    for path in git(applied, "diff", "--name-only", "v0.33.0").splitlines():
        shutil.copyfile(applied / path, clone / path)
    assert cli("verify", clone).code == 0
    git(applied, "checkout", "--quiet", "v0.33.0", "--", "vllm/worker.py")
    result = cli("verify", applied, "--json")
    assert result.code == 1
    assert states(result) == {**dict.fromkeys(NAMES, "applied"), "worker-guard": "partly"}
    assert foreign(result) == {}
    text = cli("verify", applied).out
    assert "worker-guard  partly: vllm/worker.py missing" in text


def test_a_patch_less_and_names(cli, applied):
    assert cli("unapply", "engine-more", "--vllm", applied).code == 0
    result = cli("verify", applied, "--json")
    assert result.code == 1
    assert states(result) == {**dict.fromkeys(NAMES, "applied"), "engine-more": "missing"}
    assert cli("verify", applied, "engine-fix", "worker-guard", "sched-log").code == 0
    # sched-log needs worker-guard, so naming it is not demanded.
    assert cli("verify", applied, "engine-fix", "sched-log").code == 0
    result = cli("verify", applied, "worker-guard")
    assert result.code == 1
    assert "engine-fix    applied, not wanted" in result.out
    assert "engine-more   not there, not wanted" in result.out


def test_one_hunk_of_two(cli, project, clone):
    text = (clone / "vllm/worker.py").read_text()
    changed = text.replace("load_1(self, path)", "load_1(self, path, flag)")
    both = changed.replace("load_8(self, path)", "load_8(self, path, flag)")
    git(clone, "checkout", "--quiet", "-B", "one")
    write(clone, {"vllm/worker.py": both})
    git(clone, "commit", "--quiet", "-am", "[Core] Two\n\nPatch-Name: two-hunks\nOrigin: own")
    patch = git(clone, "format-patch", "--stdout", "--zero-commit", "--full-index", "--no-stat", "-1", "HEAD")
    (project / "patches/two-hunks.patch").write_text(patch.split("\n-- \n")[0] + "\n")
    (project / "series").write_text("two-hunks.patch\n")
    assert cli("verify", clone).code == 0
    write(clone, {"vllm/worker.py": changed})
    result = cli("verify", clone, "--json")
    assert result.code == 1
    row = result.document["patches"][0]
    assert (row["state"], row["files"][0]["present"], row["files"][0]["hunks"]) == ("partly", 1, 2)
    assert foreign(result) == {}
    assert "vllm/worker.py 1 of 2 hunks" in cli("verify", clone).out


@pytest.mark.parametrize(
    ("path", "edit", "kind"),
    [
        ("vllm/crlf.py", lambda p: p.write_bytes(p.read_bytes().replace(b"\r", b"")), "edited"),
        ("vllm/engine.py", lambda p: p.write_text(p.read_text() + "import sys\n"), "edited"),
        ("vllm/no_newline.py", lambda p: p.unlink(), "deleted"),
        ("vllm/extra.py", lambda p: p.write_text("x = 1\n"), "added"),
        ("scripts/run.sh", lambda p: p.chmod(0o644), "edited"),
        ("docs/link", lambda p: (p.unlink(), p.write_text("../README.md")), "edited"),
        ("docs/naïve.md", lambda p: (p.unlink(), p.mkdir()), "deleted"),
    ],
)
def test_foreign_edits(cli, applied, path, edit, kind):
    edit(applied / path)
    result = cli("verify", applied, "--json")
    assert result.code == 1, result
    assert foreign(result) == {path: kind}
    assert states(result) == dict.fromkeys(NAMES, "applied")
    assert f"{kind}: {path}" in cli("verify", applied).out


def test_edits_in_the_lines_of_a_patch(cli, applied):
    path = applied / "vllm/scheduler.py"
    path.write_text(path.read_text().replace("print(len(picked))", "print(len(picked), flush=True)"))
    result = cli("verify", applied, "--json")
    assert result.code == 1
    assert states(result)["sched-log"] == "partly"
    parts = {p["path"]: p["state"] for p in result.document["patches"][3]["files"]}
    assert parts["vllm/scheduler.py"] == "obscured"
    assert foreign(result) == {"vllm/scheduler.py": "edited"}


def test_a_hunk_at_another_place(cli, project, clone):
    """It can be taken back where it is, but that is not where it belongs."""
    text = "".join(["    x = 1\n"] * 20)
    write(clone, {"vllm/same.py": text})
    git(clone, "add", "-A")
    git(clone, "commit", "--quiet", "-m", "base")
    git(clone, "tag", "v0.33.1")
    lines = text.splitlines(keepends=True)
    write(clone, {"vllm/same.py": "".join([*lines[:8], "    y = 1\n", *lines[8:]])})
    git(clone, "commit", "--quiet", "-am", "[Core] Y\n\nPatch-Name: y\nOrigin: own")
    patch = git(clone, "format-patch", "--stdout", "--zero-commit", "--full-index", "--no-stat", "-1")
    (project / "patches/y.patch").write_text(patch.split("\n-- \n")[0] + "\n")
    (project / "series").write_text("y.patch\n")
    assert cli("verify", clone).code == 0
    write(clone, {"vllm/same.py": "".join([*lines[:12], "    y = 1\n", *lines[12:]])})
    result = cli("verify", clone, "--json")
    assert result.code == 1
    assert foreign(result) == {"vllm/same.py": "edited"}


def test_what_git_ignores_does_not_count(cli, applied):
    (applied / ".git/info/exclude").write_text("*.so\nvllm/_version.py\n")
    write(applied, {"vllm/_C.abi3.so": b"elf", "vllm/_version.py": "version = 1\n"})
    assert cli("verify", applied).code == 0
    write(applied, {"vllm/shadow.py": "x = 1\n"})
    assert foreign(cli("verify", applied, "--json")) == {"vllm/shadow.py": "added"}


def test_the_older_base(cli, tmp_path):
    assert cli("apply", "--onto", "v0.32.0", "--into", tmp_path / "old").code == 0
    found = cli("verify", tmp_path / "old", "--json")
    assert found.code == 0
    assert found.document["base"]["files"] == "v0.32.0"
    assert cli("verify", tmp_path / "old", "--onto", "v0.33.0").code == 1


def test_a_source_tree_without_git(cli, applied, tmp_path):
    tree = copy_tree(applied, tmp_path / "tree")
    shutil.rmtree(tree / ".git")
    result = cli("verify", tree)
    assert result.code == 2
    assert "--onto v0.33.0" in result.err
    assert cli("verify", tree, "--onto", "v0.33.0").code == 0
    write(tree, {"PKG-INFO": "Name: vllm\nVersion: 0.33.0\n", "vllm/_version.py": "x", "vllm/_C.so": b"elf"})
    found = cli("verify", tree, "--json")
    assert found.code == 0, found
    assert found.document["kind"] == "tree"
    write(tree, {"setup.cfg": "[tool]\n"})
    assert foreign(cli("verify", tree, "--json")) == {"setup.cfg": "added"}


def test_a_series_that_does_not_apply_to_the_base(cli, clone):
    """What cannot be there is said, and the others are judged nevertheless."""
    text = (clone / "vllm/worker.py").read_text()
    write(clone, {"vllm/worker.py": text.replace("load_4", "fetch_4")})
    git(clone, "commit", "--quiet", "-am", "upstream work")
    result = cli("verify", clone, "--json")
    assert result.code == 1
    assert states(result)["worker-guard"] == "inapplicable"
    assert "hunk 1 of 1" in result.document["patches"][1]["detail"]
    assert states(result)["engine-fix"] == "missing"


@pytest.mark.parametrize(
    ("make", "code", "words"),
    [
        (lambda p: None, 4, "not a folder"),
        (lambda p: p.mkdir(), 2, "holds no vLLM"),
        (lambda p: p.write_text(""), 4, "not a folder"),
    ],
)
def test_no_vllm(cli, tmp_path, make, code, words):
    make(tmp_path / "x")
    result = cli("verify", tmp_path / "x")
    assert (result.code, words in result.err) == (code, True), result


def test_inside_a_checkout(cli, applied):
    result = cli("verify", applied / "vllm")
    assert result.code == 2, result
    assert "top level" in result.err


def test_unknown_names(cli, applied):
    result = cli("verify", applied, "engine-fox")
    assert result.code == 2
    assert "engine-fix" in result.err


# -- any subset, any edit ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stage(world, tmp_path_factory):
    """A checkout to write into, and the files of every set of patches that applies."""
    root = tmp_path_factory.mktemp("stage") / "vllm"
    git(root.parent, "clone", "--quiet", str(world.upstream), str(root))
    git(root, "checkout", "--quiet", "-B", "main", "v0.33.0")
    project = Project(world.project)
    repository = Repository.open(root)
    target = Target.of(project, repository, git(root, "rev-parse", "v0.33.0^{}"))
    patches = project.patches(project.pinned)
    base = Snapshot(CommitSource(repository, target.commit))
    paths = sorted({path for patch in patches for path in patch.paths})
    sets = {}
    for count in range(len(patches) + 1):
        for chosen in itertools.combinations(patches, count):
            applications, snapshot = apply_all(base, chosen)
            if all(a.ok for a in applications):
                sets[frozenset(p.name for p in chosen)] = {path: snapshot.get(path) for path in paths}
    assert len(sets) == 12
    return project, target, root, sets


def put(root: Path, files) -> None:
    for path, file in files.items():
        (root / path).unlink(missing_ok=True)
        if file is not None:
            (root / path).write_bytes(file.content)


def test_every_subset_is_recognized(stage):
    project, target, root, sets = stage
    place = Checkout(root, repository=target.repository)
    for names, files in sets.items():
        put(root, files)
        report = verify(project, target, place)
        assert {f.name: f.state for f in report.patches} == {
            name: State.APPLIED if name in names else State.MISSING for name in NAMES
        }
        assert not report.foreign
        assert report.exact == (len(names) == 4)
        assert verify(project, target, place, sorted(names)).exact == (
            "sched-log" not in names or "worker-guard" in names
        )


@settings(max_examples=40)
@given(st.data())
def test_no_edit_goes_unseen(stage, data):
    project, target, root, sets = stage
    names = data.draw(st.sampled_from(sorted(map(sorted, sets))))
    files = sets[frozenset(names)]
    put(root, files)
    path = data.draw(st.sampled_from(sorted(p for p, f in files.items() if f)))
    content = files[path].content
    lines = content.splitlines(keepends=True)
    at = data.draw(st.integers(0, len(lines) - 1))
    new = data.draw(st.sampled_from([[], [lines[at], lines[at]], [lines[at].rstrip() + b" \n"]]))
    edited = b"".join([*lines[:at], *new, *lines[at + 1 :]])
    (root / path).write_bytes(edited)
    report = verify(project, target, Checkout(root, repository=target.repository), names)
    known = any(state[path] and state[path].content == edited for state in sets.values())
    assert not report.exact or edited == content
    if not known:
        assert path in {f.path for f in report.foreign} or any(
            part.path == path and part.state is State.PARTLY for f in report.patches for part in f.parts
        )


# -- installed packages -----------------------------------------------------------------------------------


def install(env: Path, tree: Path, version: str) -> Path:
    """What pip leaves of a wheel built from ``tree``; returns site-packages."""
    site = env / "lib/python3.11/site-packages"
    shutil.copytree(tree / "vllm", site / "vllm")
    write(site, {"vllm/_version.py": f"v = '{version}'\n", "vllm/_C.abi3.so": b"\x7fELF" + b"x" * 4096})
    info = f"vllm-{version}.dist-info"
    write(site, {f"{info}/METADATA": f"Name: vllm\nVersion: {version}\n", "torch/__init__.py": ""})
    rows = []
    for path in sorted([*site.glob("vllm/**/*"), site / info / "METADATA"]):
        if path.is_file():
            raw = path.read_bytes()
            sha = base64.urlsafe_b64encode(hashlib.sha256(raw).digest()).rstrip(b"=").decode()
            rows.append(f"{path.relative_to(site).as_posix()},sha256={sha},{len(raw)}")
    rows += ["vllm/__pycache__/engine.cpython-311.pyc,,", f"{info}/RECORD,,"]
    (site / info / "RECORD").write_text("\n".join(rows) + "\n")
    return site


@pytest.fixture
def site(clone, tmp_path):
    return install(tmp_path / "env", clone, "0.33.0")


def overlay(site: Path, applied: Path) -> None:
    for path in git(applied, "diff", "--name-only", "v0.33.0", "--", "vllm").splitlines():
        shutil.copyfile(applied / path, site / path)


def test_an_untouched_wheel(cli, site):
    for path in (site, site / "vllm", site.parents[2]):
        result = cli("verify", path, "--json")
        assert result.code == 1, result
        assert result.document["kind"] == "installed"
        assert states(result) == dict.fromkeys(NAMES, "missing")
        assert foreign(result) == {}
        files = {p["path"]: p["state"] for p in result.document["patches"][0]["files"]}
        assert files == {"tests/test_engine.py": "unseen", "vllm/engine.py": "missing"}


def test_a_patched_wheel(cli, site, applied):
    overlay(site, applied)
    result = cli("verify", site)
    assert result.code == 0, result
    shutil.copyfile(site / "vllm/engine.py", site / "keep")
    write(site, {"vllm/engine.py": git(applied, "show", "v0.33.0:vllm/engine.py") + "\n"})
    result = cli("verify", site, "--json")
    assert states(result) == {
        "engine-fix": "missing", "worker-guard": "applied", "engine-more": "missing", "sched-log": "applied",
    }  # fmt: skip
    shutil.copyfile(site / "keep", site / "vllm/engine.py")
    (site / "vllm/log.py").unlink()
    result = cli("verify", site, "--json")
    assert states(result) == {**dict.fromkeys(NAMES, "applied"), "sched-log": "partly"}


@pytest.mark.parametrize("path", ["vllm", "vllm/engine.py"])
def test_links_that_an_installer_made(cli, site, applied, tmp_path, path):
    """As `uv pip install --link-mode symlink` does."""
    overlay(site, applied)
    (site / path).rename(tmp_path / "real")
    (site / path).symlink_to(tmp_path / "real")
    assert cli("verify", site).code == 0
    engine = (site / path).resolve() / ("engine.py" if path == "vllm" else "")
    engine.write_text(git(applied, "show", "v0.33.0:vllm/engine.py") + "\n")
    result = cli("verify", site, "--json")
    assert states(result)["engine-fix"] == states(result)["engine-more"] == "missing"
    assert foreign(result) == {}


def test_what_overlay_puts_there(cli, site):
    before = files_of(site)
    assert cli("overlay", "--site-packages", site).code == 0
    result = cli("verify", site)
    assert result.code == 0, result
    assert cli("overlay", "--site-packages", site, "--uninstall").code == 0
    result = cli("verify", site, "--json")
    assert states(result) == dict.fromkeys(NAMES, "missing")
    assert foreign(result) == {}
    assert files_of(site) == before


@pytest.mark.parametrize(
    ("path", "content", "kind"),
    [
        ("vllm/_C.abi3.so", b"\x7fELF" + b"y" * 4096, "edited"),
        ("vllm/_C.abi3.so", b"\x7fELF", "edited"),
        ("vllm/_version.py", None, "deleted"),
        ("vllm/__init__.py", b"import os\n", "edited"),
        ("vllm/extra.py", b"", "added"),
        ("vllm/below/extra.py", b"", "added"),
        ("vllm/engine.py", b"", "edited"),
    ],
)
def test_foreign_edits_of_a_wheel(cli, site, applied, path, content, kind):
    overlay(site, applied)
    write(site, {path: content})
    result = cli("verify", site, "--json")
    assert result.code == 1
    assert foreign(result) == {path: kind}


def test_a_record_that_was_made_to_fit(cli, site, applied):
    """The release's own files are the measure, whatever RECORD says."""
    overlay(site, applied)
    record = site / "vllm-0.33.0.dist-info/RECORD"
    raw = b"one = 2\n"
    write(site, {"vllm/crlf.py": raw})
    sha = base64.urlsafe_b64encode(hashlib.sha256(raw).digest()).rstrip(b"=").decode()
    rows = [r for r in record.read_text().splitlines() if not r.startswith("vllm/crlf.py")]
    record.write_text("\n".join([*rows, f"vllm/crlf.py,sha256={sha},{len(raw)}"]) + "\n")
    result = cli("verify", site, "--json")
    assert foreign(result) == {"vllm/crlf.py": "edited"}


def test_another_version(cli, clone, tmp_path):
    release_tree(clone, RELEASE_32)
    site = install(tmp_path / "old", clone, "0.32.0+cu129")
    found = cli("verify", site, "--json").document
    assert found["base"]["files"] == "v0.32.0"
    assert found["foreign"] == []


def test_a_build_of_any_commit(cli, clone, applied, tmp_path):
    commit = git(clone, "rev-parse", "v0.33.0^{}")
    site = install(tmp_path / "dev", clone, f"0.33.1.dev3+g{commit[:9]}.cu129")
    overlay(site, applied)
    result = cli("verify", site)
    assert result.code == 2, result
    assert f"--vllm PATH --onto {commit[:9]}" in result.err
    assert cli("verify", site, "--vllm", clone).code == 0
    assert cli("verify", site, "--onto", "v0.33.0").code == 0
    assert cli("verify", site, "--onto", "v0.32.0").code == 1


def test_a_release_that_is_not_to_be_had(cli, clone, tmp_path):
    site = install(tmp_path / "new", clone, "0.34.0")
    result = cli("verify", site)
    assert result.code == 5, result
    assert "0.34.0" in result.err


def test_broken_installations(cli, site, tmp_path):
    info = site / "vllm-0.33.0.dist-info"
    twice = copy_tree(site, tmp_path / "twice")
    copy_tree(info, twice / "vllm-0.32.0.dist-info")
    result = cli("verify", twice)
    assert (result.code, "several" in result.err) == (4, True), result
    editable = copy_tree(site, tmp_path / "editable")
    shutil.rmtree(editable / "vllm")
    result = cli("verify", editable)
    assert (result.code, "install vLLM anew" in result.err) == (4, True), result
    (editable / info.name / "direct_url.json").write_text(
        json.dumps({"url": f"file://{tmp_path}/my%20vllm", "dir_info": {"editable": True}})
    )
    result = cli("verify", editable)
    assert (result.code, f"{tmp_path}/my vllm" in result.err) == (4, True), result
    (info / "RECORD").write_text("vllm/__init__.py\n")
    assert cli("verify", site).code == 4
    (info / "RECORD").unlink()
    result = cli("verify", site)
    assert (result.code, "RECORD is missing" in result.err) == (4, True), result
    write(twice, {".vllm-series-overlay.journal/x": ""})
    shutil.rmtree(twice / "vllm-0.32.0.dist-info")
    result = cli("verify", twice)
    assert (result.code, "overlay --site-packages" in result.err) == (4, True), result


# -- bytecode ---------------------------------------------------------------------------------------------


def test_bytecode_of_another_source(cli, site, applied):
    """A file that was put there with its old time: Python would go on with what it has compiled before."""
    engine = site / "vllm/engine.py"
    os.utime(engine, (1_700_000_000, 1_700_000_000))
    overlay(site, applied)
    target = engine.read_bytes()
    compiled = Path(importlib.util.cache_from_source(str(engine)))
    engine.write_bytes(target.replace(b"step_1", b"step_x"))
    os.utime(engine, (1_700_000_000, 1_700_000_000))
    py_compile.compile(str(engine), invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP)
    engine.write_bytes(target)
    os.utime(engine, (1_700_000_000, 1_700_000_000))
    result = cli("verify", site, "--json")
    assert result.code == 1, result
    assert [(s["path"], s["loaded"]) for s in result.document["stale"]] == [(str(compiled), True)]
    assert f"stale bytecode: {compiled}" in cli("verify", site).out
    os.utime(engine, (1_700_000_001, 1_700_000_001))  # Now Python sees it by itself.
    result = cli("verify", site, "--json")
    assert result.code == 0
    assert [s["loaded"] for s in result.document["stale"]] == [False]
    py_compile.compile(str(engine))
    assert cli("verify", site, "--json").document["stale"] == []


@pytest.mark.parametrize("mode", ["CHECKED_HASH", "UNCHECKED_HASH"])
@pytest.mark.parametrize("level", [0, 1, 2])
def test_bytecode_by_hash(cli, site, applied, mode, level):
    engine = site / "vllm/engine.py"
    py_compile.compile(str(engine), optimize=level, invalidation_mode=py_compile.PycInvalidationMode[mode])
    overlay(site, applied)
    result = cli("verify", site, "--json")
    assert [s["loaded"] for s in result.document["stale"]] == [mode == "UNCHECKED_HASH"]
    assert result.code == (mode == "UNCHECKED_HASH")
    py_compile.compile(str(engine), optimize=level, invalidation_mode=py_compile.PycInvalidationMode[mode])
    result = cli("verify", site, "--json")
    assert result.code == 0
    assert result.document["stale"] == []


def test_bytecode_of_another_python_and_damaged(cli, site, applied):
    overlay(site, applied)
    cache = site / "vllm/__pycache__"
    facts = (site / "vllm/engine.py").stat()
    header = b"\x01\x02\r\n" + bytes(4) + int(facts.st_mtime).to_bytes(4, "little")
    good = header + facts.st_size.to_bytes(4, "little")
    write(
        cache,
        {"engine.cpython-399.pyc": good + b"?", "engine.pypy39.pyc": good, "worker.cpython-311.pyc": b""},
    )
    result = cli("verify", site, "--json")
    assert result.code == 0
    assert [(Path(s["path"]).name, s["reason"]) for s in result.document["stale"]] == [
        ("worker.cpython-311.pyc", "it is cut off")
    ]
    write(
        cache, {f"engine.{sys.implementation.cache_tag}.pyc": importlib.util.MAGIC_NUMBER + good[4:] + b"?"}
    )
    result = cli("verify", site, "--json")
    assert result.code == 1
    assert [s["loaded"] for s in result.document["stale"]] == [True, False]
