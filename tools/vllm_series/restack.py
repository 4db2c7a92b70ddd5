# SPDX-License-Identifier: Apache-2.0
"""Build the series anew in another shape on every supported base, and say which files that makes.

Everything is tried in memory and in a scratch repository; nothing is written to the project. A patch whose
change stays the same keeps its file, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from vllm_series.bases import Base
from vllm_series.build import commit_stack
from vllm_series.diff import FileChange
from vllm_series.errors import ConflictError, PreconditionError
from vllm_series.git import Repository
from vllm_series.patchfile import Patch, paths_of
from vllm_series.project import Project
from vllm_series.refresh import export, same_change
from vllm_series.stack import Application, FileResult, apply_changes, apply_patch
from vllm_series.tree import CommitSource, File, Snapshot


@dataclass(frozen=True)
class Item:
    """A patch of the series to be.

    Attributes:
        patch: Whose name, author, date and message it has.
        parts: What it changes: the changes of one patch after the other.

    """

    patch: Patch
    parts: tuple[tuple[FileChange, ...], ...]

    @classmethod
    def of(cls, patch: Patch) -> Item:
        """The patch as it is."""
        return cls(patch, (patch.changes,))


#: Says for a base, from its patches in order, what the series shall be there.
Recipe = Callable[[Base, Sequence[Patch]], Sequence[Item]]


@dataclass(frozen=True)
class Ground:
    """A supported base, as a commit of the repository that is built in."""

    base: Base
    commit: str


@dataclass(frozen=True)
class Restacked:
    """The outcome.

    Attributes:
        files: New content by path relative to the patch directory; None removes the file.
        merged: Base and name of every patch that needed a three-way merge.

    """

    files: Mapping[str, bytes | None]
    merged: tuple[tuple[str, str], ...] = ()

    @property
    def written(self) -> tuple[str, ...]:
        """The files that are written, sorted."""
        return tuple(sorted(path for path, content in self.files.items() if content is not None))


@dataclass
class _Ancestors:
    """Finds what a patch was made against.

    A file that was left alone while earlier patches changed may state blobs that never existed, so what
    really stood before each patch is remembered under the id that it states.
    """

    repository: Repository
    known: dict[str, bytes] = field(default_factory=dict)

    def __call__(self, oid: str) -> bytes | None:
        if oid not in self.known:
            found = self.repository.objects([oid]).get(oid)
            if found is None:
                return None
            self.known[oid] = found
        return self.known[oid]

    def learn(self, snapshot: Snapshot, patches: Sequence[Patch]) -> None:
        for patch in patches:
            for change in patch.changes:
                file = snapshot.get(change.old_path) if change.old_path else None
                if file is not None and change.old_id:
                    self.known[change.old_id] = file.content
            application = apply_patch(snapshot, patch)
            if not application.ok:
                return
            snapshot = snapshot.with_changes(application.changes)


def restack(
    project: Project,
    bench: Repository,
    grounds: Sequence[Ground],
    recipe: Recipe,
    names: Sequence[str],
    *,
    three_way: bool = False,
    same_result: bool = False,
) -> Restacked:
    """Build the series in another shape on every base.

    Args:
        project: The series as it is.
        bench: A scratch repository with the bases.
        grounds: The supported bases, the pinned one first.
        recipe: What it shall be.
        names: The names of the series to be, in order.
        three_way: Whether hunks that do not match may be merged.
        same_result: Whether the files after the whole series must stay what they are.

    Raises:
        ConflictError: A patch does not apply any more, or the result would be another one; the message
            names patch, base and hunk, or the files.
        PreconditionError: A patch would become empty, or stand before one that it says it needs.

    """
    files: dict[str, bytes | None] = {}
    merged: list[tuple[str, str]] = []
    plain: dict[str, Patch] = {}
    for ground in grounds:
        old = project.patches(ground.base)
        items = recipe(ground.base, old)
        _require_order(items, names)
        built = _build(bench, ground, old, items, three_way)
        if same_result:
            _require_same(bench, ground, [Item.of(patch) for patch in old], built)
        merged += [(ground.base.ref, a.patch.name) for a in built if a.merged]
        fresh = _export(bench, ground, built)
        for item, new in zip(items, fresh, strict=True):
            _place(project, ground.base, new, item, plain, files)
            if ground.base == project.pinned:
                plain[new.name] = new
    gone = {f"{name}.patch" for name in project.series.names if name not in names}
    files.update((path, None) for path in project.files if path.rpartition("/")[2] in gone)
    return Restacked(files, tuple(merged))


def _require_order(items: Sequence[Item], names: Sequence[str]) -> None:
    for item in items:
        before = names[: names.index(item.patch.name)]
        for need in item.patch.depends_on:
            if need not in before:
                there = need in names
                what = "which would not stand before it" if there else "which the series would not have"
                first = f"put it behind {need}" if there else f"take {need} in first"
                raise PreconditionError(
                    f"{item.patch.name} says Depends-on: {need}, {what}",
                    hint=f"{first}, or take that line out of its message",
                    patch=item.patch.name,
                )


def _build(
    bench: Repository, ground: Ground, old: Sequence[Patch], items: Sequence[Item], three_way: bool
) -> list[Application]:
    paths = {p for i in items for part in i.parts for c in part for p in (c.old_path, c.new_path) if p}
    paths |= paths_of(old)
    snapshot = Snapshot.at(bench, ground.commit, paths)
    ancestors = None
    if three_way:
        ancestors = _Ancestors(bench)
        ancestors.learn(snapshot, old)
    built = []
    for item in items:
        application = _apply_item(snapshot, item, ancestors)
        if not application.ok:
            hint = "see where it stands: vllm-series status"
            if not three_way:
                hint = "try --3way to merge what has drifted"
            raise ConflictError(
                f"{item.patch.name} would not apply to {ground.base.ref}: {application.first_problem()}",
                hint=hint,
                patch=item.patch.name,
                base=ground.base.ref,
            )
        if application.empty:
            raise PreconditionError(
                f"{item.patch.name} would change nothing on {ground.base.ref}",
                hint=f"drop it instead: vllm-series drop {item.patch.name} --reason TEXT",
                patch=item.patch.name,
                base=ground.base.ref,
            )
        built.append(application)
        snapshot = snapshot.with_changes(application.changes)
    return built


def _require_same(
    bench: Repository, ground: Ground, old: Sequence[Item], built: Sequence[Application]
) -> None:
    """Raise unless two stacks give the same files: a hunk can land elsewhere when others come first."""
    before = Snapshot(CommitSource(bench, ground.commit))
    after = before
    for application in built:
        after = after.with_changes(application.changes)
    for application in _build(bench, ground, [], old, False):
        before = before.with_changes(application.changes)
    paths = sorted({*before.changed, *after.changed})
    odd = [path for path in paths if before.get(path) != after.get(path)]
    if odd:
        raise ConflictError(
            f"on {ground.base.ref} the series would give another {odd[0]} than now",
            hint="a hunk would land elsewhere; give it more context, or change the patches by hand",
            paths=odd,
            base=ground.base.ref,
        )


def _apply_item(snapshot: Snapshot, item: Item, ancestors: _Ancestors | None) -> Application:
    results: list[FileResult] = []
    changes: dict[str, File | None] = {}
    now = snapshot
    for part in item.parts:
        found, new = apply_changes(now, part, ancestors)
        results += found
        if not all(result.ok for result in found):
            break
        now = now.with_changes(new)
        changes.update(new)
    changes = {path: file for path, file in changes.items() if snapshot.get(path) != file}
    return Application(item.patch, tuple(results), changes)


def _export(bench: Repository, ground: Ground, built: Sequence[Application]) -> list[Patch]:
    commits = commit_stack(bench, ground.commit, built)
    fresh = export(bench, ground.commit, commits[-1]) if commits else []
    wanted = [application.patch.name for application in built]
    if [patch.name for patch in fresh] != wanted:
        odd = next(a for a, b in zip(wanted, fresh, strict=True) if a != b.name)
        raise PreconditionError(
            f"the message of {odd} names another patch in its Patch-Name trailer",
            hint=f"let it be: Patch-Name: {odd}",
        )
    return fresh


def _place(
    project: Project,
    base: Base,
    new: Patch,
    item: Item,
    plain: Mapping[str, Patch],
    files: dict[str, bytes | None],
) -> None:
    """Decide which file of a patch is written for a base, if any."""
    file = project.file_for(new.name, base)
    old = project.patch(new.name, base) if file else None
    untouched = old is not None and item.parts == (old.changes,) and item.patch.message == old.message
    if base == project.pinned:
        if old is None or not same_change(old, new):
            files[f"{new.name}.patch"] = new.raw
        return
    variant = f"{base.ref}/{new.name}.patch"
    main = plain.get(new.name)
    if main is not None and same_change(main, new):
        if variant in project.files and not untouched:
            files[variant] = None
        return
    if file == variant and old is not None and same_change(old, new):
        return
    files[variant] = new.raw
