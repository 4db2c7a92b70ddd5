# SPDX-License-Identifier: Apache-2.0
"""``vllm-series pick``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vllm_series.build import commit_stack
from vllm_series.checkout import move, opened, read_stack, require_movable
from vllm_series.commands.apply import describe, final_changes, finish
from vllm_series.compiled import check_compiles
from vllm_series.output import Output
from vllm_series.plan import Target, make_plan
from vllm_series.project import find_project
from vllm_series.store import Store


def pick(
    out: Output,
    series_dir: Path | None,
    names: Sequence[str],
    path: Path,
    three_way: bool,
    dry_run: bool,
) -> int:
    """Put single patches and their prerequisites on top of HEAD; what is there is left alone."""
    project = find_project(series_dir)
    project.known(names)
    store = Store.default()
    with opened(path.absolute(), out.note) as repository:
        head = repository.commit("HEAD")
        branch = repository.head_branch()
        stack = read_stack(repository, head)
        target = Target.of(project, repository, head)
        plan = make_plan(
            project, target, names, three_way=three_way, store=store, present=frozenset(stack.names)
        )
        describe(out, plan)
        checked = check_compiles(final_changes(plan), store.folder)
        if dry_run:
            require_movable(repository, sorted(final_changes(plan)), branch)
            return finish(out, plan, checked, path, None, "dry run", branch)
        commits = commit_stack(repository, head, plan.applications)
        move(repository, commits[-1] if commits else head, branch, "vllm-series pick")
        action = "moved" if commits else "unchanged"
        return finish(out, plan, checked, path, commits, action, branch)
