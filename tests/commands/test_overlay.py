# SPDX-License-Identifier: Apache-2.0
"""``overlay --site-packages``: into an installed wheel and out of it again."""

from __future__ import annotations

import csv
import os
import py_compile
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from series_support import (
    RELEASE_32,
    RELEASE_33,
    as_user,
    die_at,
    files_of,
    git,
    open_to_all,
    run_here,
    write,
)
from vllm_series.overlay import FOLDER, MANIFEST, read_manifest
from wheel_support import environment, pip, record_digest, unpack, wheel


@pytest.fixture
def site(tmp_path):
    """The installed release 0.33.0."""
    return unpack(wheel(tmp_path / "wheels", "0.33.0", RELEASE_33), tmp_path / "site")


def patched(applied: Path) -> dict[str, bytes]:
    """The package's files that the series changes, after it."""
    names = git(applied, "diff", "--name-only", "v0.33.0", "HEAD", "--", "vllm").split("\n")
    return {name: (applied / name).read_bytes() for name in names}


def holds(site: Path, files: dict[str, bytes]) -> bool:
    return all((site / n).is_file() and (site / n).read_bytes() == c for n, c in files.items())


def test_in_and_out_byte_for_byte(cli, site, applied):
    before = files_of(site)
    times = {n: (site / n).stat().st_mtime_ns for n, row in before.items() if row[0] != "dir"}
    result = cli("overlay", "--site-packages", site, "--json")
    assert result.code == 0, result
    assert result.document["action"] == "installed"
    assert holds(site, patched(applied))
    untouched = {n: row for n, row in before.items() if n not in patched(applied) and n.startswith("vllm/")}
    after = files_of(site)
    assert {n for n, row in untouched.items() if after.get(n) != row} == {
        n
        for n in before
        if n.endswith(".pyc") and Path(n).name.split(".")[0] in ("engine", "worker", "scheduler")
    }
    result = cli("overlay", "--site-packages", site, "--uninstall", "--json")
    assert result.code == 0, result
    assert result.document["restored"] == ["vllm/engine.py", "vllm/scheduler.py", "vllm/worker.py"]
    assert files_of(site) == before
    assert {n: (site / n).stat().st_mtime_ns for n in times} == times


def test_the_manifest_says_what_is_there(cli, site, project):
    result = cli("overlay", "--site-packages", site, "--json")
    manifest = read_manifest(site)
    assert manifest.document() == result.document["manifest"]
    assert manifest.base_ref == "v0.33.0"
    assert [n for n, _ in manifest.patches] == ["engine-fix", "worker-guard", "engine-more", "sched-log"]
    assert manifest.files["vllm/log.py"].base is None
    assert (site / manifest.kept["vllm/engine.py"]).read_bytes() == str(RELEASE_33["vllm/engine.py"]).encode()


def test_record_states_every_file_of_the_overlay(cli, site):
    cli("overlay", "--site-packages", site)
    rows = list(csv.reader((site / "vllm-0.33.0.dist-info/RECORD").read_text().splitlines()))
    stated = {row[0]: row[1] for row in rows}
    assert len(stated) == len(rows)
    for path in (site / "vllm").rglob("*.py"):
        name = path.relative_to(site).as_posix()
        assert stated[name] == record_digest(path.read_bytes()), name
    own = {p.relative_to(site).as_posix() for p in (site / FOLDER).rglob("*") if p.is_file()}
    assert own <= stated.keys()
    assert stated[MANIFEST] == record_digest((site / MANIFEST).read_bytes())


def test_a_second_install_changes_nothing(cli, site):
    cli("overlay", "--site-packages", site)
    before = files_of(site)
    result = cli("overlay", "--site-packages", site, "--json")
    assert result.code == 0, result
    assert result.document["action"] == "unchanged"
    assert files_of(site) == before


def test_another_series_takes_the_place_of_the_first(cli, site, project):
    original = files_of(site)
    cli("overlay", "--site-packages", site)
    full = (project / "series").read_text()
    (project / "series").write_text("engine-fix.patch\n")
    result = cli("overlay", "--site-packages", site, "--json")
    assert result.code == 0, result
    assert result.document["action"] == "replaced"
    # What the shorter series does not change is the release's again.
    assert not (site / "vllm/log.py").exists()
    assert files_of(site)["vllm/worker.py"] == original["vllm/worker.py"]
    assert list(read_manifest(site).files) == ["vllm/engine.py"]
    (project / "series").write_text(full)
    assert cli("overlay", "--site-packages", site).code == 0
    cli("overlay", "--site-packages", site, "--uninstall")
    assert files_of(site) == original


def test_python_runs_the_new_code_whatever_bytecode_lies_there(cli, site):
    # Bytecode that Python never compares with its source.
    for source in (site / "vllm").glob("*.py"):
        py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    ask = [
        sys.executable,
        "-S",
        "-c",
        "import inspect, vllm.worker as w; print(w.Worker.load_4.__code__.co_code)",
    ]
    env = {"PYTHONPATH": str(site), "PATH": os.environ["PATH"]}
    old = subprocess.run(ask, env=env, capture_output=True, check=True).stdout
    cli("overlay", "--site-packages", site)
    new = subprocess.run(ask, env=env, capture_output=True, check=True).stdout
    assert new != old
    cli("overlay", "--site-packages", site, "--uninstall")
    assert subprocess.run(ask, env=env, capture_output=True, check=True).stdout == old


def test_a_modified_file_is_refused(cli, site):
    write(site, {"vllm/worker.py": "mine\n"})
    before = files_of(site)
    result = cli("overlay", "--site-packages", site, "--json")
    assert result.code == 4
    assert result.document["error"]["files"] == ["vllm/worker.py"]
    assert "force-reinstall" in result.document["error"]["hint"]
    assert files_of(site) == before


def test_a_file_in_the_place_of_a_new_one_is_refused(cli, site):
    write(site, {"vllm/log.py": "mine\n"})
    before = files_of(site)
    result = cli("overlay", "--site-packages", site)
    assert result.code == 4
    assert "vllm/log.py" in result.err
    assert files_of(site) == before


def test_an_edit_on_top_is_not_thrown_away(cli, site):
    cli("overlay", "--site-packages", site)
    with (site / "vllm/engine.py").open("a") as stream:
        stream.write("# mine\n")
    before = files_of(site)
    for arguments in (("--uninstall",), ()):
        result = cli("overlay", "--site-packages", site, *arguments)
        assert result.code == 4, result
        assert "vllm/engine.py was edited" in result.err
    assert files_of(site) == before


def test_dry_run_changes_nothing(cli, site):
    before = files_of(site)
    assert cli("overlay", "--site-packages", site, "--dry-run", "--json").document["action"] == "dry run"
    assert files_of(site) == before
    cli("overlay", "--site-packages", site)
    before = files_of(site)
    assert cli("overlay", "--site-packages", site, "--uninstall", "--dry-run").code == 0
    assert files_of(site) == before


def test_refusals(cli, tmp_path, site, project):
    assert cli("overlay").code == 2
    result = cli("overlay", "--site-packages", tmp_path / "nothing")
    assert result.code == 4
    other = unpack(wheel(tmp_path / "wheels", "0.31.0", RELEASE_33), tmp_path / "other")
    result = cli("overlay", "--site-packages", other)
    assert result.code == 4
    assert "v0.31.0" in result.err
    assert "v0.33.0, v0.32.0" in result.err
    assert cli("overlay", "--site-packages", site, "--uninstall").code == 0
    write(site, {MANIFEST: "{"})
    result = cli("overlay", "--site-packages", site)
    assert result.code == 4
    assert "damaged" in result.err


def test_what_needs_a_build_is_refused(cli, site, project):
    path = project / "patches/worker-guard.patch"
    text = path.read_text()
    path.write_text(
        text + "diff --git a/csrc/new.cu b/csrc/new.cu\nnew file mode 100644\n"
        "index 0000000000000000000000000000000000000000..ce013625030ba8dba906f756967f9e9ca394464a\n"
        "--- /dev/null\n+++ b/csrc/new.cu\n@@ -0,0 +1 @@\n+hello\n"
    )
    before = files_of(site)
    result = cli("overlay", "--site-packages", site)
    assert result.code == 4, result
    assert "csrc/new.cu" in result.err
    assert files_of(site) == before


def test_a_read_only_folder(cli, site):
    if os.getuid():
        pytest.skip("only root can become another user")
    open_to_all(site)
    open_to_all(cli.project)
    open_to_all(cli.cache)
    before = files_of(site)
    env = {**cli._env({}), "HOME": "/nonexistent"}

    def body() -> list:
        result = run_here("overlay", "--site-packages", site, env=env)
        return [result.code, result.err]

    code, err = as_user(65534, body)
    assert code == 5, err
    assert f"{site}" in err
    assert "writable" in err
    assert files_of(site) == before


@pytest.mark.parametrize("verb", ["install", "uninstall", "replace"])
def test_a_kill_at_every_step_leaves_old_or_new(cli, site, tmp_path, project, verb):
    """The state after a kill, once the next command has looked at it, is one of the two."""
    env = cli._env({})
    command: tuple[str, ...] = ("overlay", "--site-packages")
    if verb != "install":
        cli("overlay", "--site-packages", site)
    if verb == "replace":
        (project / "series").write_text("engine-fix.patch\nworker-guard.patch\n")
    old = files_of(site)
    extra = ("--uninstall",) if verb == "uninstall" else ()
    done = shutil.copytree(site, tmp_path / "done", symlinks=True)
    assert run_here(*command, done, *extra, env=env).code == 0
    new = files_of(done)
    seen = set()
    # Every step of replacing files is tested with the module; these are samples over the whole command.
    for step in range(1, 400, 7):
        target = tmp_path / f"s{step}"
        shutil.copytree(site, target, symlinks=True)
        finished = die_at(step, *command, target, *extra, after=step % 2 == 0, env=env)
        run_here("overlay", "--site-packages", target, "--dry-run", env=env)
        state = files_of(target, skip=(f".{FOLDER}.lock",))
        assert state in (old, new), (step, sorted(state.keys() ^ old.keys()))
        seen.add(state == new)
        shutil.rmtree(target)
        if finished is not None:
            break
    assert seen == {True, False}


def test_pip_upgrades_and_removes_it_cleanly(cli, tmp_path):
    venv = tmp_path / "venv"
    site = environment(venv)
    pip(venv, "install", wheel(tmp_path / "w", "0.32.0", RELEASE_32))
    assert cli("overlay", "--site-packages", venv).code == 0
    assert (site / MANIFEST).exists()
    pip(venv, "install", wheel(tmp_path / "w", "0.33.0", RELEASE_33))
    # As if the overlay had never been there.
    assert not (site / FOLDER).exists()
    assert not (site / "vllm/log.py").exists()
    result = cli("overlay", "--site-packages", venv, "--json")
    assert result.document["manifest"]["base"]["ref"] == "v0.33.0"
    pip(venv, "uninstall", "-y", "vllm")
    assert not [p for p in site.iterdir() if "vllm" in p.name]


def test_an_upgrade_that_knows_no_record(cli, tmp_path):
    """A folder that another version was unpacked over: the rest of the overlay is in the way."""
    site = unpack(wheel(tmp_path / "w", "0.32.0", RELEASE_32), tmp_path / "site")
    cli("overlay", "--site-packages", site)
    shutil.rmtree(site / "vllm-0.32.0.dist-info")
    newer = wheel(tmp_path / "w", "0.33.0", RELEASE_33)
    unpack(newer, site)
    fresh = files_of(unpack(newer, tmp_path / "fresh"))
    copied = shutil.copytree(site, tmp_path / "copied")
    result = cli("overlay", "--site-packages", copied, "--uninstall", "--json")
    assert result.document["action"] == "cleared"
    found = files_of(copied)
    assert {n: r for n, r in found.items() if ".pyc" not in n} == {
        n: r for n, r in fresh.items() if ".pyc" not in n
    }
    assert cli("overlay", "--site-packages", site, "--json").document["action"] == "replaced"
    assert cli("overlay", "--site-packages", site, "--uninstall").code == 0
    assert {n for n in files_of(site) if ".pyc" not in n} == {n for n in fresh if ".pyc" not in n}


def test_a_lost_original_is_named(cli, site):
    cli("overlay", "--site-packages", site)
    (site / FOLDER / "base/vllm/engine.py").unlink()
    before = files_of(site)
    result = cli("overlay", "--site-packages", site, "--uninstall")
    assert result.code == 4
    assert "vllm/engine.py cannot be restored" in result.err
    assert files_of(site) == before


@pytest.mark.parametrize(
    "args",
    [("--onto", "v0.32.0"), ("--serve", "x"), ("--env", "A=b"), ("--gpus", "0"), ("--shm-size", "4"),
     ("--keep-torchcodec",), ("--container-site", "/x")],
)  # fmt: skip
def test_options_of_an_image_are_not_ignored(cli, site, args):
    before = files_of(site)
    result = cli("overlay", "--site-packages", site, *args)
    assert result.code == 2
    assert "goes with --image" in result.err
    assert files_of(site) == before


def test_the_command_that_takes_it_out_again(cli, site, tmp_path):
    """As printed, it works for the folder that was named."""
    odd = site.rename(tmp_path / "odd folder")
    before = files_of(odd)
    line = cli("overlay", "--site-packages", odd).out.partition("take it out again with: vllm-series ")[2]
    assert cli(*shlex.split(line)).code == 0
    assert files_of(odd) == before
