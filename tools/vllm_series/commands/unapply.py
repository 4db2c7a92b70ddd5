# SPDX-License-Identifier: Apache-2.0
"""``vllm-series unapply``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vllm_series.build import commit_stack
from vllm_series.checkout import StackState, move, opened, read_stack, require_movable
from vllm_series.dependencies import dependents, prerequisites
from vllm_series.errors import EXIT_OK, ConflictError, PreconditionError, UsageError
from vllm_series.git import Repository
from vllm_series.output import Output, plural
from vllm_series.patchfile import Patch, paths_of
from vllm_series.project import find_project
from vllm_series.refresh import export, require_taken_in
from vllm_series.stack import apply_all
from vllm_series.tree import Snapshot


def unapply(
    out: Output,
    series_dir: Path | None,
    names: Sequence[str],
    path: Path,
    with_dependents: bool,
    dry_run: bool,
) -> int:
    """Rebuild a checkout's series commits without some of them."""
    wanted = [name.removesuffix(".patch") for name in names]
    with opened(path.absolute(), out.note) as repository:
        head = repository.commit("HEAD")
        stack = read_stack(repository, head)
        _require_present(repository, stack, wanted)
        patches = export(repository, stack.base, head)
        snapshot = _snapshot(repository, stack, patches)
        needed_by = dependents(prerequisites(snapshot, patches), wanted)
        if needed_by and not with_dependents:
            listed = ", ".join(f"{name} (needs {cause})" for name, cause in needed_by.items())
            raise PreconditionError(
                f"other patches need {', '.join(wanted)}: {listed}",
                hint="take these off too with --with-dependents",
                dependents=needed_by,
            )
        gone = {*wanted, *needed_by}
        if gone.intersection(stack.edited):
            require_taken_in(find_project(series_dir), repository, stack, sorted(gone))
        rest = [patch for patch in patches if patch.name not in gone]
        applications, _ = apply_all(snapshot, rest)
        if applications and not applications[-1].ok:
            failed = applications[-1]
            raise ConflictError(f"{failed.patch.name} does not apply any more: {failed.first_problem()}")
        verb = "would take off" if dry_run else "took off"
        if dry_run:
            changed = {path for patch in patches if patch.name in gone for path in patch.paths}
            require_movable(repository, sorted(changed), repository.head_branch())
        else:
            commits = commit_stack(repository, stack.base, applications)
            tip = commits[-1] if commits else stack.base
            move(repository, tip, repository.head_branch(), "vllm-series unapply")
        order = [name for name in stack.names if name in gone]
        out.say(f"{verb} {', '.join(order)}; {plural(len(rest), 'patch')} left on {repository.where}")
        return out.finish(EXIT_OK, removed=order, left=[patch.name for patch in rest])


def _require_present(repository: Repository, stack: StackState, names: Sequence[str]) -> None:
    if not stack.commits:
        raise PreconditionError(
            f"{repository.where} has no series commits at HEAD",
            hint="take back your own commits first, or name another checkout with --vllm",
        )
    for name in names:
        if name not in stack.names:
            raise UsageError(
                f"{name} is not applied in {repository.where}",
                hint=f"applied there: {', '.join(stack.names)}",
            )


def _snapshot(repository: Repository, stack: StackState, patches: Sequence[Patch]) -> Snapshot:
    return Snapshot.at(repository, stack.base, paths_of(patches))
