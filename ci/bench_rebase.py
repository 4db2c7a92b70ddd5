# SPDX-License-Identifier: Apache-2.0
"""Time ``vllm-series rebase`` against ``git rebase`` of the same commits, side by side in one run.

A series of 60 patches is made at run time: each adds lines in the middle of a file that the newer release
has changed elsewhere, so that every hunk lands at another line and none conflicts. Every round runs both
commands once, in turn. ``vllm-series rebase`` includes its proof that nothing else changed and the writing
of the patch directory; ``git rebase`` moves a checkout from the one release to the other.

    python ci/bench_rebase.py [--rounds 7] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench_apply import NEW, OLD, PROJECT, TOOL, git, make_clone, print_table, rounds

PATCHES = 60


def places(old: str, new: str) -> Iterator[int]:
    """Indices of old lines before which a line may be added: the lines around stand in both files once."""
    lines = old.splitlines(keepends=True)
    for at in range(20, len(lines) - 3):
        around = "".join(lines[at - 3 : at + 3])
        if old.count(around) == 1 == new.count(around) and lines[at - 1].strip() and lines[at].strip():
            yield at


def make_commits(clone: Path) -> int:
    """Make the branch ``bench`` with the patches as commits on the older release; returns their number."""
    names = git(clone, "diff", "--name-only", "--diff-filter=M", OLD, NEW, "--", "vllm/*.py").decode().split()
    git(clone, "checkout", "--quiet", "-B", "bench", OLD)
    made = 0
    for name in names:
        if made == PATCHES:
            break
        old, new = (git(clone, "show", f"{ref}:{name}").decode() for ref in (OLD, NEW))
        found = list(places(old, new))
        moved = [at for at in found if new.splitlines().index(old.splitlines()[at]) != at] or found
        if not moved:
            continue
        lines = old.splitlines(keepends=True)
        at = moved[len(moved) // 2]
        lines.insert(at, f"# Change {made}.\n")
        (clone / name).write_text("".join(lines))
        text = f"[Bench] Change file {made}\n\nPatch-Name: bench-{made:02d}\nOrigin: own\n"
        git(clone, "commit", "--quiet", "-a", "-F", "-", data=text.encode())
        made += 1
    return made


def make_project(clone: Path, folder: Path) -> None:
    """Write the branch ``bench`` as a patch directory for the older release."""
    from vllm_series.bases import parse_bases
    from vllm_series.git import Repository
    from vllm_series.refresh import export

    (folder / "patches").mkdir(parents=True)
    patches = export(Repository.open(clone), OLD, "bench")
    for patch in patches:
        (folder / "patches" / f"{patch.name}.patch").write_bytes(patch.raw)
    (folder / "series").write_text("".join(f"{patch.name}.patch\n" for patch in patches))
    (base,) = [b for b in parse_bases((PROJECT / "patches" / "base.toml").read_text()) if b.ref == OLD]
    rows = "".join(f'{key} = "{value}"\n' for key, value in vars(base).items())
    (folder / "patches" / "base.toml").write_text(f"[[base]]\n{rows}")


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="counted rounds (at least 7 to publish)")
    parser.add_argument("--json", type=Path, help="write all times to this file")
    options = parser.parse_args()
    from vllm_series.git import version
    from vllm_series.store import Store

    with tempfile.TemporaryDirectory(prefix="bench-rebase-") as name:
        work = Path(name)
        clone, template, project = work / "clone", work / "template", work / "project"
        make_clone(Store.default().repository.git_dir, clone)
        count = make_commits(clone)
        make_project(clone, template)
        tip = git(clone, "rev-parse", "bench").decode().strip()

        def prepare() -> None:
            git(clone, "checkout", "--quiet", "--force", "-B", "work", tip)
            git(clone, "status", "--short")
            shutil.rmtree(project, ignore_errors=True)
            shutil.copytree(template, project)

        identity = {"GIT_COMMITTER_NAME": "bench", "GIT_COMMITTER_EMAIL": "bench@example.invalid"}
        timings = rounds(
            options.rounds,
            prepare,
            {
                "vllm-series rebase": [*TOOL, "rebase", NEW, "--series-dir", str(project)],
                "git rebase": ["git", "rebase", "--quiet", "--onto", NEW, OLD, "work"],
            },
            clone,
            identity,
        )
    machine = f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}"
    print(f"{machine}, git {'.'.join(map(str, version()))}, {options.rounds} rounds, medians of wall time")
    print_table(f"{count} patches from {OLD} to {NEW}", timings, "git rebase")
    for timing in timings:
        print(f"{timing.name}: {timing.median / count * 1000:.1f} ms per patch")
    if options.json:
        rows = {t.name: t.seconds for t in timings}
        options.json.write_text(json.dumps({"machine": machine, "patches": count, **rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
