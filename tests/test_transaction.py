# SPDX-License-Identifier: Apache-2.0
"""Replacing files as one: all or none, whatever dies or is in the way."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from series_support import as_user, files_of, open_to_all, write
from vllm_series import transaction
from vllm_series.errors import EnvironmentFaultError, PreconditionError
from vllm_series.transaction import Put, interrupted, recover, replace_files

OLD = {"a/one.py": "one\n", "a/two.py": "two\n", "b/gone.py": "gone\n", "other.py": "other\n"}
CHANGES = {
    "a/one.py": Put(b"ONE\n"),
    "b/gone.py": None,
    "a/two.py": Put(source="other.py"),
    "new/deep/three.py": Put(b"three\n"),
    "kept/one.py": Put(source="a/one.py"),
}


@pytest.fixture
def root(tmp_path):
    write(tmp_path / "root", OLD)
    return tmp_path / "root"


def changed() -> dict[str, str]:
    return {
        "a/one.py": "ONE\n",
        "a/two.py": "other\n",
        "other.py": "other\n",
        "new/deep/three.py": "three\n",
        "kept/one.py": "one\n",
    }


def texts(root: Path) -> dict[str, str]:
    return {p.relative_to(root).as_posix(): p.read_text() for p in sorted(root.rglob("*")) if p.is_file()}


def test_all_is_changed_and_empty_folders_go(root):
    replace_files(root, "x", CHANGES)
    assert texts(root) == changed()
    assert not (root / "b").exists()


def test_a_kept_file_is_the_old_one_with_its_times(root):
    os.utime(root / "a/one.py", ns=(1_000, 2_000))
    before = (root / "a/one.py").stat()
    replace_files(root, "x", CHANGES)
    assert (root / "kept/one.py").stat().st_mtime_ns == 2_000
    replace_files(root, "x", {"a/one.py": Put(source="kept/one.py"), "kept/one.py": None})
    after = (root / "a/one.py").stat()
    assert (after.st_mtime_ns, after.st_mode, after.st_ino) == (2_000, before.st_mode, before.st_ino)


def test_a_file_shared_by_links_is_not_written_to(root, tmp_path):
    shared = tmp_path / "cache.py"
    os.link(root / "a/one.py", shared)
    replace_files(root, "x", CHANGES)
    assert shared.read_text() == "one\n"


@pytest.mark.parametrize("failing", range(1, 5))
def test_an_error_in_the_middle_is_taken_back(root, monkeypatch, failing):
    before = files_of(root)
    real, count = os.replace, 0

    def replace(*args, **kwargs):
        nonlocal count
        count += 1
        if count == failing:
            raise OSError(16, "Device or resource busy", str(args[1]))
        return real(*args, **kwargs)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(EnvironmentFaultError, match="busy"):
        replace_files(root, "x", CHANGES)
    assert files_of(root) == before


def test_ctrl_c_in_the_middle_is_taken_back(root, monkeypatch):
    before = files_of(root)
    real, count = os.replace, 0

    def replace(*args, **kwargs):
        nonlocal count
        count += 1
        if count == 3:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        replace_files(root, "x", CHANGES)
    assert files_of(root) == before


def _die(root: Path, step: int, what: str) -> bool:
    """Whether a fork that dies at its ``step``-th change of a file was ended by that."""
    child = os.fork()
    if child == 0:
        count = 0

        def wrap(function):
            def run(*args, **kwargs):
                nonlocal count
                count += 1
                if count == step:
                    os._exit(7)
                return function(*args, **kwargs)

            return run

        for name in ("link", "replace", "rename", "unlink", "mkdir", "rmdir", "fsync"):
            setattr(os, name, wrap(getattr(os, name)))
        (recover(root, "x") if what == "recover" else replace_files(root, "x", CHANGES))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_kill_at_every_step_leaves_old_or_new(tmp_path):
    outcomes = set()
    for step in range(1, 200):
        root = tmp_path / str(step)
        write(root, OLD)
        died = _die(root, step, "replace")
        recover(root, "x")
        assert texts(root) in (OLD, changed()), step
        assert not [p for p in root.iterdir() if p.name.startswith(".x")], step
        outcomes.add(texts(root) == OLD)
        if not died:
            break
    assert outcomes == {True, False}
    assert step > 20


@pytest.fixture
def killed(root):
    """A folder whose change was killed with nothing left to do but saying so."""
    for step in range(30, 200):
        assert _die(root, step, "replace")
        if interrupted(root, "x") and (root / "new/deep/three.py").exists():
            return root
        recover(root, "x")
    raise AssertionError("never interrupted")


def test_a_kill_while_a_kill_is_cleared_up(killed, tmp_path):
    for step in range(1, 60):
        root = shutil.copytree(killed, tmp_path / str(step))
        died = _die(root, step, "recover")
        recover(root, "x")
        assert texts(root) == OLD, step
        if not died:
            break
    assert step > 3


def test_what_somebody_changed_after_a_kill_is_left_alone(killed):
    root = killed
    (root / "a/one.py").write_text("a person's\n")
    done = recover(root, "x")
    assert done.undone
    assert done.left == ("a/one.py",)
    assert texts(root) == {**OLD, "a/one.py": "a person's\n"}


def test_refusals_change_nothing(root, tmp_path):
    before = files_of(root)
    (root / "link").symlink_to("a")
    with pytest.raises(PreconditionError, match="symbolic link"):
        replace_files(root, "x", {"a/one.py": Put(b"x"), "link/two.py": Put(b"x")})
    (root / "link").unlink()
    with pytest.raises(PreconditionError, match="is a file"):
        replace_files(root, "x", {"a/two.py": Put(b"x"), "other.py/x.py": Put(b"x")})
    with pytest.raises(PreconditionError, match="is a folder"):
        replace_files(root, "x", {"b": Put(b"x")})
    assert files_of(root) == before


def test_a_folder_of_another_user_is_refused_before_anything_is_done(root):
    if os.getuid():
        pytest.skip("only root can become another user")
    open_to_all(root)
    root.chmod(0o777)
    before = files_of(root)

    def body() -> str:
        try:
            transaction.replace_files(root, "x", CHANGES)
        except EnvironmentFaultError as error:
            return error.message
        return "done"

    assert "cannot be written" in as_user(65534, body)
    assert files_of(root) == before
