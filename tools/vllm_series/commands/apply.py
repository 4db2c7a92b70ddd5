# SPDX-License-Identifier: Apache-2.0
"""``vllm-series apply``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from vllm_series.build import commit_stack, drop_build_ref
from vllm_series.checkout import move, opened, read_stack, require_movable
from vllm_series.commands.fetch import bring
from vllm_series.compiled import Checked, check_compiles
from vllm_series.errors import EXIT_OK, PreconditionError, UsageError
from vllm_series.git import Repository
from vllm_series.locks import locked
from vllm_series.newtree import new_checkout
from vllm_series.output import Output, plural
from vllm_series.plan import Plan, Target, make_plan
from vllm_series.project import Project, find_project
from vllm_series.refresh import require_taken_in
from vllm_series.store import Store
from vllm_series.tree import File

#: Branch of a checkout that this tool made.
BRANCH = "vllm-series"


@dataclass(frozen=True)
class ApplyOptions:
    """The arguments of ``apply``, as documented on the command line."""

    names: tuple[str, ...] | None = None
    onto: str | None = None
    into: Path | None = None
    vllm: Path | None = None
    branch: str | None = None
    three_way: bool = False
    dry_run: bool = False
    index: str = ""


def apply(out: Output, series_dir: Path | None, options: ApplyOptions) -> int:
    """Apply the series or some of its patches."""
    if options.vllm is not None and options.into is not None:
        raise UsageError("--vllm and --into exclude each other", hint="name the checkout or a new folder")
    project = find_project(series_dir)
    project.known(options.names)
    store = Store.default()
    if options.vllm is not None:
        return _to_checkout(out, project, store, options, options.vllm)
    ref = options.onto or project.pinned.ref
    release = bring(out, project, store, ref, options.index)
    folder = (options.into or Path(f"vllm-{ref.removeprefix('v')}")).resolve()
    if not _filled(folder):
        code = _to_new_folder(out, project, store, options, folder, ref)
        if code is not None:
            return code
    options = replace(options, branch=options.branch or BRANCH)
    return _to_checkout(out, project, store, options, folder, base=release.commit)


def _filled(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def _to_new_folder(
    out: Output, project: Project, store: Store, options: ApplyOptions, folder: Path, ref: str
) -> int | None:
    """Make the checkout; None if another run has made it meanwhile."""
    if folder.exists() and not folder.is_dir():
        raise PreconditionError(f"{folder} is a file", hint="name a new folder with --into")
    if options.branch is not None:
        store.repository.require_branch_name(options.branch)
    commit = store.repository.commit(f"refs/tags/{ref}")
    target = Target.of(project, store.repository, commit)
    plan = make_plan(project, target, options.names, three_way=options.three_way, store=store)
    checked = check_compiles(final_changes(plan), store.folder)
    branch = options.branch or BRANCH
    if options.dry_run:
        describe(out, plan)
        return finish(out, plan, checked, folder, None, "dry run", branch)
    with locked(folder.parent / f".{folder.name}.vllm-series.lock", str(folder), keep=False):
        if _filled(folder):
            return None
        describe(out, plan)
        with new_checkout(store, ref, folder) as staging:
            commits = commit_stack(staging, commit, plan.applications)
            staging.switch(commits[-1] if commits else commit, branch)
            drop_build_ref(staging)
    return finish(out, plan, checked, folder, commits, "made", branch)


def _to_checkout(
    out: Output,
    project: Project,
    store: Store,
    options: ApplyOptions,
    path: Path,
    base: str | None = None,
) -> int:
    with opened(path.absolute(), out.note) as repository:
        head = repository.find_commit("HEAD")
        if head is None and repository.work_tree is not None:
            raise PreconditionError(f"{path} has no commit yet", hint="check out a vLLM release first")
        if base is not None and repository.find_commit(base) is None:
            repository.fetch_from(store.repository, f"refs/tags/{options.onto or project.pinned.ref}")
        if options.branch is not None:
            repository.require_branch_name(options.branch)
        onto = base or (repository.commit(options.onto) if options.onto else None)
        branch = options.branch
        if onto is None:
            start = branch if branch and repository.find_commit(f"refs/heads/{branch}") else "HEAD"
            onto = read_stack(repository, repository.commit(start)).base
        elif branch is None:
            branch = f"vllm-series/{options.onto}"
        if branch is None:
            branch = repository.head_branch()
        names = _require_own_branch(out, project, repository, branch, onto, options.names)
        target = Target.of(project, repository, onto)
        plan = make_plan(project, target, names, three_way=options.three_way, store=store)
        describe(out, plan)
        checked = check_compiles(final_changes(plan), store.folder)
        if options.dry_run:
            if head is not None and repository.work_tree is not None:
                touched = set(final_changes(plan)) | set(repository.changed_paths(head, onto))
                require_movable(repository, sorted(touched), branch)
            return finish(out, plan, checked, path, None, "dry run", branch)
        commits = commit_stack(repository, onto, plan.applications)
        tip = commits[-1] if commits else onto
        unchanged = tip == head and branch == repository.head_branch()
        move(repository, tip, branch, "vllm-series apply")
        return finish(out, plan, checked, path, commits, "unchanged" if unchanged else "moved", branch)


def _require_own_branch(
    out: Output,
    project: Project,
    repository: Repository,
    branch: str | None,
    onto: str,
    names: tuple[str, ...] | None,
) -> tuple[str, ...] | None:
    """Refuse to move a branch away from work that is not the series'.

    Returns:
        The patches to apply: ``names``, and those that the branch has already.

    """
    tip = repository.find_commit(f"refs/heads/{branch}" if branch else "HEAD")
    if tip is None or tip == onto:
        return names
    stack = read_stack(repository, tip)
    lost = stack.base != onto and not repository.is_ancestor(stack.base, onto)
    if lost and not repository.is_published(stack.base):
        raise PreconditionError(
            f"{branch or 'HEAD'} has commits of its own ({stack.base[:12]}), which would be lost",
            hint="name another branch with --branch",
        )
    require_taken_in(project, repository, stack, stack.names)
    if names is None:
        return None
    kept = tuple(name for name in stack.names if name not in names)
    if kept:
        out.note(f"keeping {', '.join(kept)}, applied before")
    return (*kept, *names)


def final_changes(plan: Plan) -> dict[str, File | None]:
    """New content by path after all applications of a plan."""
    changes: dict[str, File | None] = {}
    for application in plan.applications:
        changes.update(application.changes)
    return changes


def describe(out: Output, plan: Plan) -> None:
    """Say what a plan does, patch by patch."""
    target = plan.target
    out.say(f"vLLM {target.label}, patch files for {target.serving.ref}")
    for need, wanted_by in plan.implied.items():
        out.note(f"{wanted_by} needs {need}, which is applied too")
    rows = []
    for application in plan.applications:
        moved = max(
            (abs(x.offset) for r in application.files for x in r.landings if x is not None),
            default=0,
        )
        state = f"offset {moved}" if moved else "clean"
        if application.merged:
            state = "context-drift merged; differs from the patch file"
        rows.append((application.patch.name, state))
    rows += [(item.name, f"{item.verdict}: {item.reason}") for item in plan.skipped]
    out.table(("patch", "result"), rows)


def finish(
    out: Output,
    plan: Plan,
    checked: Checked,
    folder: Path,
    commits: list[str] | None,
    action: str,
    branch: str | None,
) -> int:
    """Say what was done, and write the document."""
    count = plural(len(plan.applications), "patch")
    modules = f"{plural(checked.modules, 'changed Python module')} byte-compile"
    where = f"{folder} on branch {branch}" if branch else f"{folder} (detached)"
    if action == "dry run":
        out.say(f"would apply {count} to {where}; {modules}; nothing was changed")
    elif action == "unchanged" and not plan.applications:
        out.say(f"nothing to do: {where} needs none of these patches")
    elif action == "unchanged":
        out.say(f"nothing to do: {where} has exactly this series ({count}); {modules}")
    else:
        out.say(f"ok: {count} applied as commits, {where}; {modules}")
    return out.finish(
        EXIT_OK,
        action=action,
        folder=str(folder),
        branch=branch,
        base={
            "commit": plan.target.commit,
            "release": plan.target.release,
            "files": plan.target.serving.ref,
        },
        patches=[
            {
                "name": application.patch.name,
                "sha256": application.patch.digest,
                "commit": commits[number] if commits else None,
                "merged": application.merged,
                "offset": application.offset,
                "implied_by": plan.implied.get(application.patch.name),
            }
            for number, application in enumerate(plan.applications)
        ],
        skipped=[{"name": s.name, "verdict": s.verdict, "reason": s.reason} for s in plan.skipped],
        compiled={"modules": checked.modules, "remembered": checked.remembered},
    )
