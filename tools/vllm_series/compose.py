# SPDX-License-Identifier: Apache-2.0
"""Which patches stand in which tree when a patch is proven.

Three trees: the base; the tree *with* the patch, where its tests must pass; and the *control*, the same
without the patch but with its changes below ``tests/``, where they must fail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from vllm_series.build import commit_stack, drop_build_ref
from vllm_series.patchfile import paths_of
from vllm_series.plan import Plan, Target, make_plan
from vllm_series.project import Project
from vllm_series.stack import Application, apply_patch
from vllm_series.tree import File, Snapshot

TESTS = "tests/"


class Mode(StrEnum):
    """What surrounds the patch: the whole series, its prerequisites alone, or the series up to it."""

    SERIES = "series"
    EACH = "each"
    PREFIX = "prefix"


@dataclass(frozen=True)
class Composition:
    """The trees of one patch on one base.

    Attributes:
        application: The patch.
        patches: Names in the tree with the patch, in order.
        dropped: Names that the control lacks too, since they cannot stand without the patch.
        prerequisites: SHA-256 of each patch that the patch needs, by name.
        base_tree: Tree id of the base.
        tree: Tree id with the patch.
        control_tree: Tree id of the control.
        stack_files: Every file that the patches in the tree change, sorted.

    """

    application: Application
    patches: tuple[str, ...]
    dropped: tuple[str, ...]
    prerequisites: Mapping[str, str]
    base_tree: str
    tree: str
    control_tree: str
    stack_files: tuple[str, ...]

    @property
    def name(self) -> str:
        """The patch's name."""
        return self.application.patch.name

    @property
    def changed(self) -> dict[str, File | None]:
        """What the patch changes, by path."""
        return dict(self.application.changes)

    @property
    def touched_tests(self) -> tuple[str, ...]:
        """The test files that the patch touches and leaves in place."""
        return tuple(
            path
            for path, file in sorted(self.application.changes.items())
            if file is not None and is_test_file(path)
        )


def is_test_file(path: str) -> bool:
    """Whether pytest would collect ``path`` by its name."""
    leaf = path.rpartition("/")[2]
    return path.startswith(TESTS) and leaf.startswith("test_") and leaf.endswith(".py")


def compose(project: Project, target: Target, name: str, mode: Mode) -> Composition | None:
    """Build the trees of the patch ``name`` as git objects in the target's repository.

    Returns:
        The trees, or None if the target does not need the patch.

    Raises:
        ConflictError: A patch does not apply.

    """
    own = make_plan(project, target, [name])
    if all(application.patch.name != name for application in own.applications):
        return None
    around = _around(project, target, name, mode, own)
    number = next(i for i, a in enumerate(around) if a.patch.name == name)
    control, dropped = without(_base(target, around), around, name)
    digests = {a.patch.name: a.patch.digest for a in own.applications}
    return Composition(
        application=around[number],
        patches=tuple(a.patch.name for a in around),
        dropped=dropped,
        prerequisites={need: digests[need] for need in own.implied if need in digests},
        base_tree=target.repository.trees([target.commit])[0],
        tree=write_tree(target, around),
        control_tree=write_tree(target, control),
        stack_files=tuple(sorted({path for a in around for path in a.changes})),
    )


def _around(project: Project, target: Target, name: str, mode: Mode, own: Plan) -> Sequence[Application]:
    if mode is Mode.EACH:
        return own.applications
    everything = make_plan(project, target, None).applications
    if mode is Mode.SERIES:
        return everything
    number = next(i for i, a in enumerate(everything) if a.patch.name == name)
    return everything[: number + 1]


def _base(target: Target, applications: Sequence[Application]) -> Snapshot:
    return Snapshot.at(target.repository, target.commit, paths_of(a.patch for a in applications))


def without(
    base: Snapshot, applications: Sequence[Application], name: str
) -> tuple[list[Application], tuple[str, ...]]:
    """The applications with only the test changes of the patch ``name``.

    Returns:
        The applications, and the names of later patches that cannot stand without the patch.

    """
    kept: list[Application] = []
    dropped: list[str] = []
    for application in applications:
        patch = application.patch
        again = apply_patch(base, patch)
        if patch.name == name:
            only = {path: file for path, file in again.changes.items() if path.startswith(TESTS)}
            again = replace(again, changes=only)
        elif not again.ok or {name, *dropped}.intersection(patch.depends_on):
            dropped.append(patch.name)
            continue
        kept.append(again)
        base = base.with_changes(again.changes)
    return kept, tuple(dropped)


def write_tree(target: Target, applications: Sequence[Application]) -> str:
    """Write the result of applications as git objects; returns the tree's id."""
    commits = commit_stack(target.repository, target.commit, applications)
    drop_build_ref(target.repository)
    return target.repository.trees([commits[-1] if commits else target.commit])[0]
