# SPDX-License-Identifier: Apache-2.0
"""``vllm-series edit`` and ``new``."""

from __future__ import annotations

import time
from pathlib import Path

from vllm_series.bases import Base
from vllm_series.build import commit_stack, drop_build_ref
from vllm_series.commands.fetch import bring
from vllm_series.commands.move import place_of
from vllm_series.commands.rework import Options, conclude, existing, workbench
from vllm_series.commands.split import require_new
from vllm_series.editing import (
    VERB,
    Session,
    close_session,
    discard,
    edited_patch,
    mark,
    open_session,
    read_session,
    require_session,
)
from vllm_series.errors import EXIT_OK, PreconditionError, UsageError
from vllm_series.facts import introduce, write_restacked
from vllm_series.git import Ident, user_identity
from vllm_series.newtree import new_checkout
from vllm_series.oplog import recorded
from vllm_series.output import Output
from vllm_series.patchfile import Patch
from vllm_series.privatefolder import private_folder
from vllm_series.project import Project, find_project, writing
from vllm_series.recipes import inserted, replaced
from vllm_series.refresh import apply_to_base, same_change
from vllm_series.restack import Restacked, restack
from vllm_series.rules import require_title
from vllm_series.store import Store


def new(
    out: Output,
    series_dir: Path | None,
    name: str,
    title: str,
    before: str | None,
    after: str | None,
    into: Path | None,
    index: str,
) -> int:
    """Open a checkout at the place of a patch to be."""
    project = find_project(series_dir)
    require_new(project, name)
    require_title(title)
    place_of(project, before, after)
    where = before or (project.series.behind(after) if after else None)
    session = Session(name, project.pinned.ref, _folder(name, into), "", title=title, before=where)
    return _open(out, project, session, index)


def start(
    out: Output, series_dir: Path | None, name: str, onto: str | None, into: Path | None, index: str
) -> int:
    """Open a checkout at a patch."""
    project = find_project(series_dir)
    name = existing(project, name)
    base = _supported(project, onto)
    patch = project.patch(name, base)
    if patch is None:
        raise UsageError(f"{name} has no file for {base.ref}", hint="name another base with --onto")
    session = Session(name, base.ref, _folder(name, into), "", sha256=patch.digest)
    return _open(out, project, session, index)


def _folder(name: str, into: Path | None) -> str:
    return str((into or Path(f"vllm-edit-{name}")).absolute())


def _supported(project: Project, ref: str | None) -> Base:
    if ref is None:
        return project.pinned
    found = next((base for base in project.bases if base.ref == ref), None)
    if found is None:
        raise UsageError(
            f"{ref} is no supported base", hint="supported: " + ", ".join(base.ref for base in project.bases)
        )
    return found


def _open(out: Output, project: Project, session: Session, index: str) -> int:
    project.require_writable()
    folder = Path(session.folder)
    base = _supported(project, session.base)
    store = Store.default()
    commit = bring(out, project, store, base.ref, index).commit
    with writing(project.root):
        private_folder(project.root).require_idle(VERB)
        _require_closed(project.root)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise PreconditionError(f"{folder} exists", hint="name a new folder with --into")
        below, own = _parted(Project(project.root), base, session)
        try:
            with new_checkout(store, base.ref, folder) as checkout:
                applications = apply_to_base(checkout, commit, base, [*below, *own])
                commits = [commit, *commit_stack(checkout, commit, applications)]
                checkout.switch(commits[-1], session.name)
                drop_build_ref(checkout)
                started = Session(**{**vars(session), "start": commits[len(below)]})
                mark(checkout, started)
                open_session(project.root, started)
        except BaseException:
            close_session(project.root)
            raise
    out.say(f"{session.name} is open in {folder}, on vLLM {base.ref}")
    out.say("change files there, commit or not; then: vllm-series edit --save (or --abort)")
    return out.finish(EXIT_OK, name=session.name, base=base.ref, folder=session.folder, start=started.start)


def _require_closed(root: Path) -> None:
    session = read_session(root)
    if session is not None:
        raise PreconditionError(
            f"{session.name} is open in {session.folder}",
            hint="finish it with: vllm-series edit --save, or --abort",
            paused=VERB,
        )


def _parted(project: Project, base: Base, session: Session) -> tuple[list[Patch], list[Patch]]:
    """The patches below the one that is opened, and itself unless it is new."""
    patches = project.patches(base)
    order = project.series.names
    stop = session.before if session.new else session.name
    at = order.index(stop) if stop is not None else len(order)
    below = [patch for patch in patches if order.index(patch.name) < at]
    return below, [patch for patch in patches if not session.new and patch.name == session.name]


def show(out: Output, series_dir: Path | None) -> int:
    """Say which patch is open."""
    session = read_session(find_project(series_dir).root)
    if session is None:
        out.say("no patch is open; open one with: vllm-series edit NAME")
        return out.finish(EXIT_OK, name=None, base=None, folder=None)
    gone = "" if Path(session.folder).is_dir() else ", which is gone"
    out.say(f"{session.name} is open in {session.folder}{gone}, on vLLM {session.base}")
    return out.finish(EXIT_OK, name=session.name, base=session.base, folder=session.folder)


def abort(out: Output, series_dir: Path | None) -> int:
    """Throw the checkout away."""
    project = find_project(series_dir)
    if read_session(project.root) is None:
        out.say("no patch was open; there is nothing to take back")
        return out.finish(EXIT_OK, name=None, folder=None, removed=False)
    with writing(project.root):
        session = require_session(project.root)
        removed = discard(session)
        close_session(project.root)
    kept = "" if removed or not Path(session.folder).exists() else f"; {session.folder} is not ours and stays"
    what = "was given up, and is no patch" if session.new else "is as it was"
    out.say(f"ok: {session.name} {what}{kept}")
    return out.finish(EXIT_OK, name=session.name, folder=session.folder, removed=removed)


def save(out: Output, series_dir: Path | None, three_way: bool, index: str) -> int:
    """Make the patch anew from the checkout, and apply the rest to it."""
    project = find_project(series_dir)
    session = require_session(project.root)
    options = Options(three_way, index=index)
    verb = "new" if session.new else "edit"
    with (
        workbench(out, project, index) as bench,
        recorded(project, VERB, f"{verb} {session.name}") as change,
    ):
        now = change.project
        session = require_session(now.root)
        base = _supported(now, session.base)
        old = _old(now, base, session)
        patch = edited_patch(session, old, old.author if old else _me())
        restacked = Restacked({})
        if session.name not in now.series.names:
            if session.before is not None:
                existing(now, session.before)
            series = now.series.inserted(session.name, session.before)
            recipe = inserted([patch], series.names)
        else:
            series = now.series
            recipe = replaced(patch, _served_alike(out, now, base, session.name))
        if old is None or not same_change(old, patch):
            _require_unedited(old, session)
            restacked = restack(
                now, bench.repository, bench.grounds, recipe, series.names, three_way=options.three_way
            )
            write_restacked(change, restacked, series.render())
            introduce(change, [session.name])
    close_session(project.root)
    discard(session)
    text = f"ok: saved {session.name}" if restacked.files else f"{session.name} was not changed"
    return conclude(out, project, text, restacked, change.number, name=session.name)


def _me() -> Ident:
    name, email = user_identity() or ("", "")
    if not name:
        raise PreconditionError(
            "git does not know who you are", hint="git config --global user.name and user.email"
        )
    return Ident(name, email, int(time.time()), time.strftime("%z"))


def _old(project: Project, base: Base, session: Session) -> Patch | None:
    if session.name in project.series.names:
        return project.patch(session.name, base)
    if session.new:
        return None
    raise PreconditionError(
        f"the series has lost {session.name} since it was opened",
        hint="put it back, or give the edit up: vllm-series edit --abort",
    )


def _require_unedited(old: Patch | None, session: Session) -> None:
    """Raise if somebody has written the patch file since it was opened."""
    if old is not None and old.digest != session.sha256:
        raise PreconditionError(
            f"{old.path} was written by hand since {session.name} was opened",
            hint="put it back (git diff shows the change), or give the edit up: vllm-series edit --abort",
        )


def _served_alike(out: Output, project: Project, base: Base, name: str) -> list[Base]:
    """The bases whose file of the patch is the one that was edited."""
    if base != project.pinned:
        return [base]
    found = []
    for other in project.bases:
        file = project.file_for(name, other)
        if file == f"{name}.patch":
            found.append(other)
        elif file is not None:
            out.warn(
                f"patches/{file} is a text of its own and stays: vllm-series edit {name} --onto {other.ref}"
            )
    return found
