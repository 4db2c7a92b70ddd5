# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from vllm_series.supervise import supervise


def run(tmp_path, code, watch=lambda: ""):
    return supervise(
        [sys.executable, "-c", code], cwd=tmp_path, env=dict(os.environ), log=tmp_path / "log", watch=watch
    )


def is_alive(pid):
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_output_and_exit_status(tmp_path):
    ended = run(tmp_path, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert (ended.returncode, ended.stopped, ended.leftovers) == (3, "", ())
    assert sorted((tmp_path / "log").read_text().split()) == ["err", "out"]


# A child in the same session, one that left it, and one whose parent is gone.
CHILDREN = {
    "session": "subprocess.Popen(['sleep', '300'])",
    "own session": "subprocess.Popen(['sleep', '300'], start_new_session=True)",
    "grandchild": "subprocess.Popen(['sh', '-c', 'setsid sleep 300 & exit'])",
    "deaf": "subprocess.Popen(['sh', '-c', 'trap \"\" TERM; while :; do sleep 0.1; done'])",
}


@pytest.mark.parametrize("how", CHILDREN)
def test_what_is_left_behind_is_ended_and_named(tmp_path, how):
    ended = run(tmp_path, f"import subprocess; {CHILDREN[how]}; import time; time.sleep(0.2)")
    assert ended.returncode == 0
    assert ended.leftovers
    assert any("sleep" in left.command for left in ended.leftovers)
    assert not any(is_alive(left.pid) for left in ended.leftovers)


def test_children_that_end_by_themselves_are_none(tmp_path):
    ended = run(tmp_path, "import subprocess; subprocess.Popen(['sleep', '0.3'])")
    assert ended.leftovers == ()


def test_a_program_that_must_be_stopped_is_stopped_with_its_children(tmp_path):
    started = time.monotonic()

    def watch():
        return "time limit" if time.monotonic() - started > 0.5 else ""

    code = "import subprocess, time; subprocess.Popen(['sleep', '300']); time.sleep(300)"
    ended = run(tmp_path, code, watch)
    assert ended.stopped == "time limit"
    assert ended.returncode < 0
    assert [left.command for left in ended.leftovers] == ["sleep 300"]


def test_an_interrupt_ends_the_program(tmp_path):
    pids = tmp_path / "pid"

    def watch():
        if pids.exists() and pids.read_text():
            raise KeyboardInterrupt
        return ""

    code = f"import os, time; open({str(pids)!r}, 'w').write(str(os.getpid())); time.sleep(300)"
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, code, watch)
    assert not is_alive(int(pids.read_text()))
