# SPDX-License-Identifier: Apache-2.0
"""``vllm-series refresh``."""

from __future__ import annotations

import shlex
from pathlib import Path

from vllm_series.checkout import opened, read_stack
from vllm_series.commands.fetch import bring
from vllm_series.errors import EXIT_NO, EXIT_OK, PreconditionError
from vllm_series.git import Repository
from vllm_series.locks import locked
from vllm_series.oplog import recorded
from vllm_series.output import Output, plural
from vllm_series.project import Project, find_project
from vllm_series.refresh import Rewrite, rewrites_from_files, rewrites_from_stack
from vllm_series.store import Store


def refresh(out: Output, series_dir: Path | None, source: Path | None, only_check: bool, index: str) -> int:
    """Bring patch files into canonical form, from themselves or from an edited checkout."""
    project = find_project(series_dir)
    if only_check:
        rewrites = _rewrites(out, project, source, index)
    else:
        text = f"from {source.absolute()}" if source else "bring patch files into canonical form"
        with recorded(project, "refresh", text) as change:
            rewrites = _rewrites(out, change.project, source, index)
            for rewrite in rewrites:
                change.write(f"patches/{rewrite.file}", rewrite.content)
    for rewrite in rewrites:
        out.say(f"{'would write' if only_check else 'wrote'} patches/{rewrite.file}: {rewrite.reason}")
    if not rewrites:
        out.say(f"ok: {plural(len(project.files), 'patch file')} as they should be")
    return out.finish(
        EXIT_NO if rewrites and only_check else EXIT_OK,
        root=str(project.root),
        files=[{"file": r.file, "reason": r.reason} for r in rewrites],
    )


def _warn_of_changes(out: Output, repository: Repository) -> None:
    """Say what an edit that was not committed yet does not bring along."""
    loose = sorted(repository.states()) if repository.work_tree else []
    if loose:
        out.warn(
            f"{plural(len(loose), 'file')} of {repository.where} with changes that are not committed, and do "
            f"not count: {', '.join(loose[:3])}{', ...' if len(loose) > 3 else ''}"
        )


def _rewrites(out: Output, project: Project, source: Path | None, index: str) -> list[Rewrite]:
    store = Store.default()
    if source is not None:
        with opened(source.absolute(), out.note) as repository:
            stack = read_stack(repository, repository.commit("HEAD"))
            release = repository.describe(stack.base)
            base = next((b for b in project.bases if b.ref == release), None)
            if base is None or repository.find_commit(f"refs/tags/{base.ref}") != stack.base:
                (below,) = repository.commits(stack.base, 1)
                place = "below its series commits" if stack.commits else "at HEAD"
                raise PreconditionError(
                    f"{source} has {below.oid[:12]} {below.subject!r} {place}, which is neither of a patch "
                    "nor a supported release",
                    hint="squash it into the commit of its patch: "
                    f"git -C {shlex.quote(str(source))} rebase -i {project.pinned.ref}; "
                    "supported: " + ", ".join(b.ref for b in project.bases),
                )
            _warn_of_changes(out, repository)
            return rewrites_from_stack(project, repository, stack, base)
    found: list[Rewrite] = []
    for base in project.bases:
        commit = bring(out, project, store, base.ref, index).commit
        with locked(store.lock_path, f"the cache {store.folder}"):
            found += rewrites_from_files(project, store, base, commit)
    return found
