# SPDX-License-Identifier: Apache-2.0
"""Time ``vllm-series`` against ``git am -3`` and ``quilt push -a``, as ratios side by side in one run.

A series of 50 patches is made at run time from real file changes between two releases. Every round runs
each command once on the same clean checkout, in turn, so that a drift of the machine's speed hits all of
them. Whole processes are timed, interpreter start included.

    python ci/bench_apply.py [--rounds 7] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PATCHES = 50
OLD, NEW = "v0.32.0", "v0.33.0"
PROJECT = Path(__file__).resolve().parent.parent
TOOL = [sys.executable, "-m", "vllm_series"]


@dataclass(frozen=True)
class Timing:
    """Wall times of one command, in seconds."""

    name: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.seconds)


def git(folder: Path, *args: str, data: bytes | None = None) -> bytes:
    """Run git in ``folder`` with a fixed identity."""
    identity = {
        f"GIT_{who}_{what}": value
        for who in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "bench"), ("EMAIL", "bench@example.invalid"))
    }
    command = ["git", "-C", str(folder), *args]
    env = {**os.environ, **identity, "GIT_CONFIG_GLOBAL": os.devnull}
    return subprocess.run(command, input=data, check=True, capture_output=True, env=env).stdout


def make_clone(store: Path, folder: Path) -> None:
    """A checkout of both releases."""
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    git(folder, "fetch", "--quiet", str(store), "refs/tags/*:refs/tags/*")
    git(folder, "checkout", "--quiet", "--detach", OLD)


def make_series(clone: Path, folder: Path) -> list[Path]:
    """Write a patch directory with one patch for each of 50 files that both releases have."""
    names = git(clone, "diff", "--name-only", "--diff-filter=M", OLD, NEW, "--", "vllm/*.py").decode().split()
    step = len(names) // PATCHES
    for number, name in enumerate(names[::step][:PATCHES]):
        git(clone, "checkout", "--quiet", NEW, "--", name)
        message = f"[Bench] Change file {number}\n\nPatch-Name: bench-{number:02d}\nOrigin: own\n"
        git(clone, "commit", "--quiet", "-F", "-", data=message.encode())
    patches = folder / "patches"
    patches.mkdir(parents=True)
    out = git(clone, "format-patch", "--stdout", "--full-index", "--no-stat", "--no-signature", "-N",
              "--zero-commit", f"{OLD}..HEAD")  # fmt: skip
    from vllm_series.patchfile import split_mailbox

    files = []
    for number, raw in enumerate(split_mailbox(out)):
        files.append(patches / f"bench-{number:02d}.patch")
        files[-1].write_bytes(raw)
    (folder / "series").write_text("".join(f"{file.name}\n" for file in files))
    shutil.copy(PROJECT / "patches" / "base.toml", patches)
    git(clone, "checkout", "--quiet", "--detach", OLD)
    return files


def reset(clone: Path, ref: str) -> None:
    """Bring the checkout back, untimed."""
    shutil.rmtree(clone / ".pc", ignore_errors=True)
    git(clone, "checkout", "--quiet", "--force", "--detach", ref)
    git(clone, "clean", "-fdq")
    git(clone, "status", "--short")


def rounds(count: int, prepare: Callable[[], None], commands: Mapping[str, Sequence[str]],
           cwd: Path, env: Mapping[str, str]) -> list[Timing]:  # fmt: skip
    """Time the commands in turn, ``count`` rounds after one that is not counted."""
    found: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(count + 1):
        for name, command in commands.items():
            prepare()
            start = time.perf_counter()
            done = subprocess.run(
                command, cwd=cwd, env={**os.environ, **env}, capture_output=True, check=False
            )
            passed = time.perf_counter() - start
            if done.returncode != 0:
                raise SystemExit(f"{name} failed: {done.stderr.decode()[-2000:]}")
            if number:
                found[name].append(passed)
    return [Timing(name, tuple(seconds)) for name, seconds in found.items()]


def print_table(title: str, timings: Sequence[Timing], against: str) -> None:
    """One row per command: median, least, most, ratio to ``against``."""
    other = next(t for t in timings if t.name == against)
    print(f"\n{title}")
    print(f"{'command':<34}{'median s':>10}{'min':>8}{'max':>8}{'/ ' + against:>16}")
    for t in timings:
        row = (t.median, min(t.seconds), max(t.seconds))
        print(f"{t.name:<34}{row[0]:>10.3f}{row[1]:>8.3f}{row[2]:>8.3f}{t.median / other.median:>16.2f}")


def main() -> None:
    """Run all comparisons."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="counted rounds (at least 7 to publish)")
    parser.add_argument("--json", type=Path, help="write all times to this file")
    options = parser.parse_args()
    subprocess.run([*TOOL, "fetch", OLD, NEW], check=True, cwd=PROJECT)
    from vllm_series.git import version
    from vllm_series.store import Store

    with tempfile.TemporaryDirectory(prefix="bench-apply-") as name:
        work = Path(name)
        clone, generated = work / "clone", work / "generated"
        make_clone(Store.default().repository.git_dir, clone)
        files = make_series(clone, generated)
        quilt = {"QUILT_PATCHES": str(generated / "patches"), "QUILT_SERIES": str(generated / "series")}
        identity = {"GIT_COMMITTER_NAME": "bench", "GIT_COMMITTER_EMAIL": "bench@example.invalid"}
        commands = {
            "vllm-series apply": [*TOOL, "apply", "--vllm", ".", "--series-dir", str(generated)],
            "git am -3": ["git", "am", "--quiet", "-3", "--keep-non-patch", *map(str, files)],
        }
        if shutil.which("quilt"):
            commands["quilt push -a"] = ["quilt", "push", "-a", "-q"]
        fifty = rounds(options.rounds, lambda: reset(clone, OLD), commands, clone, {**quilt, **identity})

        own = sorted((PROJECT / "patches").glob("*.patch"))
        order = (PROJECT / "series").read_text().split()
        own.sort(key=lambda path: order.index(path.name))
        project = rounds(
            options.rounds,
            lambda: reset(clone, NEW),
            {
                "vllm-series apply": [*TOOL, "apply", "--vllm", ".", "--series-dir", str(PROJECT)],
                "git am": ["git", "am", "--quiet", "--keep-non-patch", *map(str, own)],
            },
            clone,
            identity,
        )
        verbs = rounds(
            options.rounds,
            lambda: None,
            {
                "vllm-series status (two bases)": [*TOOL, "status", "--series-dir", str(PROJECT)],
                "vllm-series list": [*TOOL, "list", "--series-dir", str(PROJECT)],
                "vllm-series --help": [*TOOL, "--help"],
                "python -c pass": [sys.executable, "-c", "pass"],
            },
            work,
            {},
        )
    machine = f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}"
    print(f"{machine}, git {'.'.join(map(str, version()))}, {options.rounds} rounds, medians of wall time")
    print_table(f"{PATCHES} patches on {OLD}", fifty, "git am -3")
    print_table(f"this project's series ({len(own)} patches) on {NEW}", project, "git am")
    print_table("verbs", verbs, "python -c pass")
    if options.json:
        rows = {"fifty": fifty, "project": project, "verbs": verbs}
        document = {key: {t.name: t.seconds for t in value} for key, value in rows.items()}
        options.json.write_text(json.dumps({"machine": machine, **document}, indent=2) + "\n")


if __name__ == "__main__":
    main()
