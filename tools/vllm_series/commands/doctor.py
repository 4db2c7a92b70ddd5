# SPDX-License-Identifier: Apache-2.0
"""``vllm-series doctor``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from vllm_series import git
from vllm_series.checkout import interrupted, read_stack
from vllm_series.errors import EXIT_ENVIRONMENT, EXIT_OK, PreconditionError, SeriesError
from vllm_series.git import Repository
from vllm_series.lint import lint
from vllm_series.output import Output, plural
from vllm_series.project import Project, find_project
from vllm_series.store import Store

#: What two releases, their archives and a checkout take, in bytes.
SPACE_NEEDED = 1_000_000_000


@dataclass(frozen=True)
class Diagnosis:
    """One thing that was looked at.

    Attributes:
        what: The thing.
        ok: Whether it is as it must be.
        found: What was found.
        hint: What to do about it.

    """

    what: str
    ok: bool
    found: str
    hint: str = ""


def doctor(out: Output, series_dir: Path | None, vllm: Path | None) -> int:
    """Look at everything that the other verbs rely on."""
    found = list(_diagnose(series_dir, vllm))
    out.table(
        ("check", "state", "found"),
        [(d.what, "ok" if d.ok else "error", d.found + (f"; {d.hint}" if d.hint else "")) for d in found],
    )
    return out.finish(
        EXIT_OK if all(d.ok for d in found) else EXIT_ENVIRONMENT,
        checks=[{"check": d.what, "ok": d.ok, "found": d.found, "hint": d.hint} for d in found],
    )


def _diagnose(series_dir: Path | None, vllm: Path | None) -> Iterator[Diagnosis]:
    store = Store.default()
    yield _attempt("git", _git)
    yield _attempt("cache", lambda: _cache(store, series_dir))
    yield _attempt("series", lambda: _series(find_project(series_dir)))
    try:
        project = find_project(series_dir)
        for base in project.bases:
            here = store.find(base.ref)
            text = f"{here[:12]} in the cache" if here else "not fetched yet"
            hint = "" if here else f"apply fetches it, or: vllm-series fetch {base.ref}"
            yield Diagnosis(f"base {base.ref}", here in (None, base.commit), text, hint)
    except SeriesError as error:
        yield Diagnosis("bases", False, error.message, error.hint)
    if vllm is not None:
        yield _attempt("checkout", lambda: _checkout(vllm))


def _attempt(what: str, look: Callable[[], str]) -> Diagnosis:
    try:
        return Diagnosis(what, True, look())
    except SeriesError as error:
        return Diagnosis(what, False, error.message, error.hint)
    except OSError as error:
        return Diagnosis(what, False, str(error))


def _git() -> str:
    git.require_version()
    return ".".join(map(str, git.version()))


def _cache(store: Store, series_dir: Path | None) -> str:
    folder = store.folder
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise PermissionError(f"{folder} cannot be written; name another folder with VLLM_SERIES_CACHE")
    free = shutil.disk_usage(folder).free
    if free < SPACE_NEEDED and store.find(find_project(series_dir).pinned.ref) is None:
        raise OSError(f"{free / 1e9:.1f} GB free at {folder}, and a release takes up to 1 GB")
    return f"{store.folder}, {free / 1e9:.0f} GB free"


def _series(project: Project) -> str:
    findings = lint(project)
    if findings:
        first = findings[0]
        raise OSError(f"{plural(len(findings), 'finding')}, first {first.where}: {first.text}")
    return f"{project.root}, {plural(len(project.series.names), 'patch')}"


def _checkout(path: Path) -> str:
    repository = Repository.open(path.absolute())
    if interrupted(repository):
        raise PreconditionError(
            "a run was interrupted", hint="the next apply, pick or unapply on it clears up"
        )
    stack = read_stack(repository, repository.commit("HEAD"))
    operation = repository.operation()
    release = repository.describe(stack.base) or stack.base[:12]
    state = f"; a {operation} is in progress" if operation else ""
    return f"{release} with {plural(len(stack.commits), 'series commit')}{state}"
