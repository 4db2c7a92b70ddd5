# SPDX-License-Identifier: Apache-2.0
"""`host_file_gather` in real processes: truncation while serving, deletion, memory.

Runs on the vLLM tree named by VLLM_TREE. Each case starts this file as a child process, which
drives the real class through helpers of ci/bench_ple.py; a child that dies by a signal shows as a
negative return code. The rule under test: a truncated file gives an error that
names it, never zeros and never a crash by signal (a load from a truncated mapping raises SIGBUS,
mmap(2)).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLE_GB = 0.25
SMALL_STEP, LARGE_STEP = 4, 2048  # tokens: read one by one, copied out of the mapping

pytestmark = pytest.mark.skipif("VLLM_TREE" not in os.environ, reason="VLLM_TREE names no vLLM tree")


def start(case: str, folder: Path) -> subprocess.Popen[str]:
    tree = os.environ["VLLM_TREE"]
    path = os.pathsep.join([tree, str(ROOT / "ci"), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {
        "PYTHONPATH": path,
        "VLLM_TARGET_DEVICE": "cpu",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, __file__, case, str(folder)],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def read_message(child: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the child's next JSON line; other lines are logs of vLLM."""
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith('{"case"'):
            message: dict[str, Any] = json.loads(line)
            return message
    raise AssertionError(f"the child said nothing more and returned {child.wait()}")


def go_on(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


@pytest.mark.parametrize("case", ["small", "large"])
@pytest.mark.parametrize("keep", [0, 4096 * 100 + 1000])
def test_truncation_while_serving_is_an_error_that_names_the_file(
    tmp_path: Path, case: str, keep: int
) -> None:
    """The file shrinks between and during steps; every step before is exact."""
    child = start(case, tmp_path)
    served = read_message(child)
    path = Path(served["path"])
    go_on(child)
    os.truncate(path, keep)
    error = read_message(child)
    assert child.wait(timeout=60) == 0
    assert error["type"] == "RuntimeError"
    assert str(path) in error["text"]
    assert error["wrong_rows"] == 0


@pytest.mark.parametrize("case", ["small", "large"])
def test_rewrite_of_the_same_size_is_an_error(tmp_path: Path, case: str) -> None:
    """Zeros in place of the rows, with the size as before, do not pass as rows."""
    child = start(case, tmp_path)
    path = Path(read_message(child)["path"])
    size = path.stat().st_size
    os.truncate(path, 0)
    os.truncate(path, size)
    go_on(child)
    error = read_message(child)
    assert child.wait(timeout=60) == 0
    assert error["type"] == "RuntimeError"
    assert "changed while" in error["text"]
    assert error["wrong_rows"] == 0


def test_deleted_and_replaced_files_keep_serving_the_rows_that_were_loaded(tmp_path: Path) -> None:
    """A newer checkpoint put in the file's place belongs to the next start."""
    child = start("deleted", tmp_path)
    path = Path(read_message(child)["path"])
    path.unlink()
    path.write_bytes(b"another checkpoint")
    go_on(child)
    done = read_message(child)
    assert child.wait(timeout=60) == 0
    assert done["wrong_rows"] == 0
    assert done["steps"] == 6


def test_anonymous_memory_grows_by_the_staging_buffers_only(tmp_path: Path) -> None:
    """The table is 250 MB; the process may keep four buffers of one step's rows."""
    child = start("memory", tmp_path)
    memory = read_message(child)
    assert child.wait(timeout=60) == 0
    assert memory["file_bytes"] > 10 * memory["buffer_bytes"]
    assert memory["growth"] <= 4 * memory["buffer_bytes"], memory


def say(case: str, **values: Any) -> None:
    print(json.dumps({"case": case, **values}), flush=True)


def child_main(case: str, folder: Path) -> None:
    """Load a table and serve steps until the parent's change shows."""
    import bench_ple
    import numpy as np
    import torch

    config = bench_ple.write_config(folder, TABLE_GB)
    path = folder / "model.safetensors"
    module = bench_ple.build_module(folder, config)
    embedding = module.ngram_embedding
    rows = embedding.org_vocab_size
    offset = bench_ple.write_rows(path, rows)
    before = bench_ple.rss_anon()
    bench_ple.load_rows(module, path)
    generator = torch.Generator().manual_seed(0)
    if case == "memory":
        for _ in range(20):
            embedding.stage_rows(torch.randint(0, rows, (LARGE_STEP, bench_ple.HEADS), generator=generator))
        buffer_bytes = LARGE_STEP * bench_ple.HEADS * bench_ple.ROW_BYTES
        say(
            case,
            # The constructor zeroed the staging buffer, so it is not part of the difference.
            growth=bench_ple.rss_anon() - before + buffer_bytes,
            buffer_bytes=buffer_bytes,
            file_bytes=path.stat().st_size,
        )
        return

    table = np.fromfile(path, dtype=np.uint8, offset=offset).reshape(rows, bench_ple.ROW_BYTES)
    tokens = LARGE_STEP if case == "large" else SMALL_STEP
    wrong = steps = 0

    def step() -> None:
        nonlocal wrong, steps
        ids = torch.randint(0, rows, (tokens, bench_ple.HEADS), generator=generator)
        embedding.stage_rows(ids)
        staged = embedding.finalize_prefetch(tokens).view(torch.uint8).view(-1, bench_ple.ROW_BYTES)
        wrong += int((staged.numpy() != table[ids.flatten().numpy()]).any(axis=1).sum())
        steps += 1

    for _ in range(3):
        step()
    say(case, path=str(path))
    if case == "deleted":
        sys.stdin.readline()
        for _ in range(3):
            step()
        say(case, wrong_rows=wrong, steps=steps)
        return
    sys.stdin.readline()
    try:
        while True:
            step()
    except (RuntimeError, OSError) as error:
        say(case, type=type(error).__name__, text=str(error), wrong_rows=wrong)


if __name__ == "__main__":
    child_main(sys.argv[1], Path(sys.argv[2]))
