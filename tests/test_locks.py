# SPDX-License-Identifier: Apache-2.0
"""One writer at a time; a dead one is no writer; a git that outlives its caller is one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from vllm_series import git, locks
from vllm_series.errors import EnvironmentFaultError, PreconditionError
from vllm_series.locks import locked

HOLD = (
    "import sys, time; from pathlib import Path; from vllm_series.locks import locked; "
    "from vllm_series import git\n"
    "with locked(Path(sys.argv[1]), 'it'):\n"
    "    {extra}\n"
    "    print('held', flush=True); time.sleep(30)\n"
)


def holder(path, extra: str = "pass") -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(extra=extra), str(path)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def test_the_second_is_refused_and_told_who_holds_it(tmp_path):
    process = holder(tmp_path / "lock")
    try:
        with (
            pytest.raises(PreconditionError, match=f"process {process.pid}"),
            locked(tmp_path / "lock", "it"),
        ):
            pass
    finally:
        process.kill()
        process.wait()


def test_a_dead_holders_lock_is_no_lock(tmp_path):
    process = holder(tmp_path / "lock")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (tmp_path / "lock").read_text() == f"{process.pid}\n"
    with locked(tmp_path / "lock", "it"):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    assert not git.INHERITED


def test_a_git_that_outlives_its_caller_holds_on(tmp_path):
    """A killed run must not be cleared up while its git still writes."""
    extra = "import subprocess; subprocess.Popen(['sleep', '2'], pass_fds=tuple(git.INHERITED))"
    process = holder(tmp_path / "lock", extra)
    process.kill()
    process.wait()
    with pytest.raises(PreconditionError), locked(tmp_path / "lock", "it"):
        pass
    deadline = time.monotonic() + 20
    while True:
        try:
            with locked(tmp_path / "lock", "it"):
                return
        except PreconditionError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_the_folder_is_made_and_a_passing_lock_leaves_no_file(tmp_path):
    with locked(tmp_path / "a/b/lock", "it", keep=False):
        assert (tmp_path / "a/b/lock").exists()
        with pytest.raises(PreconditionError), locked(tmp_path / "a/b/lock", "it", keep=False):
            pass
        assert (tmp_path / "a/b/lock").exists(), "the one who was refused must not remove it"
    assert not (tmp_path / "a/b/lock").exists()


def test_a_lock_whose_holders_remove_it_again_and_again(tmp_path, monkeypatch):
    """Whoever gets in holds the file that the next one will open."""
    real, opened = locks._open, []

    def late(path, what):
        descriptor = real(path, what)
        opened.append(descriptor)
        if len(opened) <= 3:
            path.unlink()
        return descriptor

    monkeypatch.setattr(locks, "_open", late)
    with locked(tmp_path / "lock", "it", keep=False):
        assert len(opened) == 4
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    assert not (tmp_path / "lock").exists()


def test_no_folder_possible(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(EnvironmentFaultError, match=r"cannot lock it: .*file is no folder"),
        locked(tmp_path / "file/lock", "it"),
    ):
        pass
