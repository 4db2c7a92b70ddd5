# SPDX-License-Identifier: Apache-2.0
"""Write the patch files anew from commits, leaving every unchanged one alone, byte for byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vllm_series.bases import Base
from vllm_series.build import commit_stack, drop_build_ref
from vllm_series.checkout import NAME_TRAILER, StackState
from vllm_series.diff import CorruptPatchError, FileChange
from vllm_series.errors import ConflictError, PreconditionError
from vllm_series.git import CommitInfo, Repository
from vllm_series.patchfile import Patch, parse_patch, paths_of, split_mailbox
from vllm_series.project import Project
from vllm_series.stack import Application, apply_all
from vllm_series.store import Store
from vllm_series.tree import Snapshot


@dataclass(frozen=True)
class Rewrite:
    """A patch file to be written.

    Attributes:
        file: Relative to the patch directory.
        content: The new bytes.
        reason: Why, one line.

    """

    file: str
    content: bytes
    reason: str


def same_change(old: Patch, new: Patch) -> bool:
    """Whether two texts of a patch do the same with the same message.

    Line numbers and blob ids may differ: they move whenever an earlier patch changes.
    """
    same = (old.author, old.message) == (new.author, new.message)
    return same and same_lines(old.changes, new.changes)


def same_lines(old: Sequence[FileChange], new: Sequence[FileChange]) -> bool:
    """Whether two diffs do the same; line numbers and blob ids may differ."""

    def essence(changes: Sequence[FileChange]) -> object:
        return [
            (
                change.action,
                change.old_path,
                change.new_path,
                change.new_mode,
                change.binary,
                [hunk.lines for hunk in change.hunks],
            )
            for change in changes
        ]

    return essence(old) == essence(new)


def rewrite_reason(old: Patch | None, new: Patch) -> str | None:
    """Why the file of ``old`` must be written anew, or None."""
    if old is None:
        return "it is new for this base"
    form = old.canonical_findings()
    if form:
        return form[0]
    return None if same_change(old, new) else "its change or message is another one"


def export(repository: Repository, base: str, tip: str) -> list[Patch]:
    """The commits ``base..tip`` as patches; the ``Patch-Name`` trailer gives the name."""
    found = []
    commits = list(repository.commits_between(base, tip))
    mailbox = split_mailbox(repository.format_patches(base, tip))
    # format-patch writes nothing for an empty commit, and nobody can tell whose text is missing.
    if len(mailbox) != len(commits):
        raise PreconditionError(
            f"{len(commits)} commits give {len(mailbox)} patches: one is empty, a merge, or its message "
            "has a line that begins a patch",
            hint=f"see: git -C {repository.where} log {base[:12]}..{tip[:12]}",
        )
    for raw, commit in zip(mailbox, commits, strict=True):
        names = commit.trailers(NAME_TRAILER)
        if not names:
            raise PreconditionError(
                f"the commit {commit.subject!r} has no {NAME_TRAILER} trailer",
                hint=f"add a line '{NAME_TRAILER}: my-fix' to its message, and my-fix.patch to the series",
            )
        found.append(_exported(raw, names[-1], commit))
    return found


def require_taken_in(
    project: Project, repository: Repository, stack: StackState, names: Sequence[str]
) -> None:
    """Raise if one of the commits ``names`` was edited by hand and no patch file says the same.

    Raises:
        PreconditionError: That work would be lost.

    """
    edited = {name: commit for name, commit in stack.edited.items() if name in names}
    if not edited:
        return
    for patch in export(repository, stack.base, stack.commits[-1].oid):
        if patch.name in edited and not _is_in(project, patch):
            commit = edited[patch.name].oid[:12]
            raise PreconditionError(
                f"{repository.where}: the commit {commit} of {patch.name} was edited by hand",
                hint=f"take it into the patch files with: vllm-series refresh --from {repository.where}",
                patch=patch.name,
            )


def _is_in(project: Project, patch: Patch) -> bool:
    if patch.name not in project.series.names:
        return False
    files = (project.patch(patch.name, base) for base in project.bases)
    return any(file is not None and same_change(file, patch) for file in files)


def _exported(raw: bytes, name: str, commit: CommitInfo) -> Patch:
    """The patch of a commit; refuses a message that no mailbox brings back whole."""
    try:
        text = raw.rstrip(b"\n")
        ending = parse_patch(text, Path(f"{name}.patch"), name).ending.encode()
        patch = parse_patch(text + ending, Path(f"{name}.patch"), name)
        whole = patch.message.split() == commit.message.split()
    except CorruptPatchError:
        whole = False
    if not whole:
        raise PreconditionError(
            f"the message of {name} would be cut: it has a line that ends a message for git am",
            hint="take out the line that is '---', or begins with 'diff --git', 'From: ' or the like",
        )
    return patch


def apply_to_base(
    repository: Repository, commit: str, base: Base, patches: Sequence[Patch]
) -> list[Application]:
    """Apply patches to the base that they are for.

    Raises:
        ConflictError: One of them does not apply.

    """
    snapshot = Snapshot.at(repository, commit, paths_of(patches))
    applications, _ = apply_all(snapshot, patches)
    if applications and not applications[-1].ok:
        failed = applications[-1]
        raise ConflictError(
            f"{failed.patch.name} does not apply to {base.ref}: {failed.first_problem()}",
            hint=f"see where it stands: vllm-series status --onto {base.ref}",
        )
    return applications


def rewrites_from_files(project: Project, store: Store, base: Base, commit: str) -> list[Rewrite]:
    """What ``refresh`` would write for one base, with the files themselves as the source.

    Raises:
        ConflictError: A patch does not apply to its own base.

    """
    patches = project.patches(base)
    repository = store.repository
    applications = apply_to_base(repository, commit, base, patches)
    try:
        commits = commit_stack(repository, commit, applications)
        exported = export(repository, commit, commits[-1]) if commits else []
    finally:
        drop_build_ref(repository)
    return _rewrites(project, base, patches, exported)


def rewrites_from_stack(
    project: Project, repository: Repository, stack: StackState, base: Base
) -> list[Rewrite]:
    """What ``refresh`` would write from the series commits of a checkout.

    Raises:
        PreconditionError: A patch of the series is missing there, or one is unknown.

    """
    if not stack.commits:
        raise PreconditionError(f"{repository.where} has no series commits at HEAD")
    exported = export(repository, stack.base, stack.commits[-1].oid)
    patches = project.patches(base)
    have, want = [p.name for p in exported], [p.name for p in patches]
    for name in have:
        if name not in project.series.names:
            raise PreconditionError(
                f"{repository.where} has a commit of {name}, which the series does not name",
                hint=f"add {name}.patch to the series at its place first",
            )
    missing = [name for name in want if name not in have]
    if missing:
        raise PreconditionError(
            f"{repository.where} lacks {', '.join(missing)}",
            hint="nothing is dropped by refresh; apply the whole series there first",
        )
    if [n for n in project.series.names if n in have] != have:
        raise PreconditionError(f"{repository.where} has the patches in another order than the series")
    return _rewrites(project, base, patches, exported)


def _rewrites(
    project: Project, base: Base, patches: Sequence[Patch], exported: Sequence[Patch]
) -> list[Rewrite]:
    present = {patch.name: patch for patch in patches}
    found = []
    for new in exported:
        if not new.changes:
            raise PreconditionError(f"{new.name} would become empty", hint="drop it from the series instead")
        old = present.get(new.name)
        file = project.file_for(new.name, base)
        reason = rewrite_reason(old, new)
        own = base == project.pinned or (file or "").startswith(f"{base.ref}/")
        if reason is None or (old is not None and not own and same_change(old, new)):
            continue
        target = f"{new.name}.patch" if base == project.pinned else f"{base.ref}/{new.name}.patch"
        found.append(Rewrite(target, new.raw, reason))
    return found
