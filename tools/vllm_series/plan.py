# SPDX-License-Identifier: Apache-2.0
"""What applying patches to a commit would do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from vllm_series.bases import Base
from vllm_series.dependencies import closure, declared, textual
from vllm_series.errors import ConflictError, EnvironmentFaultError
from vllm_series.git import Repository
from vllm_series.patchfile import Patch, paths_of
from vllm_series.project import Project
from vllm_series.stack import Application, apply_patch, take_back
from vllm_series.store import Store
from vllm_series.tree import Snapshot


@dataclass(frozen=True)
class Target:
    """A commit to apply patches to.

    Attributes:
        repository: Where the commit lies.
        commit: Its id.
        release: The nearest release at or before it, None if unknown.
        serving: The supported base whose patch files serve it.

    """

    repository: Repository
    commit: str
    release: str | None
    serving: Base

    @classmethod
    def of(cls, project: Project, repository: Repository, commit: str) -> Target:
        """Find out which files serve ``commit``."""
        release = repository.describe(commit)
        return cls(repository, commit, release, project.base_for(release))

    @property
    def label(self) -> str:
        """The commit as people call it."""
        short = self.commit[:12]
        return f"{self.release} ({short})" if self.release else short


@dataclass(frozen=True)
class Skipped:
    """A patch that is not needed on the target, and why."""

    name: str
    verdict: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """The outcome of applying patches in memory.

    Attributes:
        target: The commit below.
        applications: The applied patches in order.
        skipped: Patches that the target does not need.
        implied: Prerequisites that were not asked for, and which patch asks for each.

    """

    target: Target
    applications: tuple[Application, ...]
    skipped: tuple[Skipped, ...]
    implied: dict[str, str]


def make_plan(
    project: Project,
    target: Target,
    names: Sequence[str] | None,
    *,
    three_way: bool | None = None,
    store: Store | None = None,
    present: frozenset[str] = frozenset(),
) -> Plan:
    """Apply the series, or ``names`` with their prerequisites, to a commit in memory.

    Args:
        project: The patch directory.
        target: The commit.
        names: Patches to apply; None for all.
        three_way: Whether a hunk that does not match may be merged; None for a verb that cannot be told so.
        store: Where to look for merge ancestors that the target's repository lacks.
        present: Patches that the commit has already.

    Raises:
        ConflictError: A patch does not apply; the message names patch, file and hunk.

    """
    wanted = project.known(names)
    everything = project.patches(target.serving)
    snapshot = Snapshot.at(target.repository, target.commit, paths_of(everything))
    implied: dict[str, str] = {}
    if names is not None:
        # What the commit has already would not apply again, and is no prerequisite of anything.
        missing = [patch for patch in everything if patch.name not in present]
        implied = _implied(snapshot, missing, wanted, project.series.names)
    chosen = [p for p in everything if p.name in wanted or p.name in implied]
    skipped = [
        Skipped(name, "retired", f"no file of it serves {target.serving.ref}: that release has it")
        for name in project.series.names
        if name in wanted and all(p.name != name for p in everything)
    ]
    ancestors = ancestor_finder(target.repository, store) if three_way else None
    applications: list[Application] = []
    base = snapshot
    there: frozenset[str] | None = None
    for patch in chosen:
        if patch.name in present:
            skipped.append(Skipped(patch.name, "applied", "the branch has it already"))
            continue
        retired = find_retired(project, base, patch.name)
        if retired is not None:
            skipped.append(retired)
            continue
        application = apply_patch(snapshot, patch, ancestors=ancestors)
        if not application.ok or application.empty:
            if there is None:
                there = find_present(base, everything)
            if patch.name in there or application.ok:
                skipped.append(Skipped(patch.name, "upstream-equivalent", "its changes are there already"))
                continue
            repository = target.repository
            if ancestors and ancestors.missing and (repository.is_shallow() or repository.is_partial()):
                raise EnvironmentFaultError(
                    f"{patch.name} cannot be merged: the clone lacks what the patch was made against",
                    hint=repository.deepen_hint(),
                    patch=patch.name,
                )
            raise _conflict(target, patch, application, three_way)
        applications.append(application)
        snapshot = snapshot.with_changes(application.changes)
    return Plan(target, tuple(applications), tuple(skipped), implied)


def _implied(
    snapshot: Snapshot, patches: Sequence[Patch], wanted: frozenset[str], series: Sequence[str]
) -> dict[str, str]:
    here = {patch.name for patch in patches}
    needs = {name: here.intersection(names) for name, names in declared(patches, series).items()}
    queue = [name for name in needs if name in wanted]
    looked: set[str] = set()
    while queue:
        name = queue.pop()
        if name not in looked:
            looked.add(name)
            needs[name] |= set(textual(snapshot, patches, name))
            queue += needs[name]
    ordered = [p.name for p in patches if p.name in wanted]
    return closure({n: sorted(v) for n, v in needs.items()}, ordered)


def find_retired(project: Project, base: Snapshot, name: str) -> Skipped | None:
    """Whether upstream has solved a patch's problem on a base by its own means."""
    retire = project.status.of(name).retire
    if retire is None:
        return None
    file = base.get(retire.path)
    if not retire.holds(file.content if file else None):
        return None
    return Skipped(name, "retired", f"upstream has solved it: {retire.path} has /{retire.pattern}/")


def find_present(snapshot: Snapshot, patches: Sequence[Patch]) -> frozenset[str]:
    """The patches whose changes are all there, so that they can be taken back.

    The last one is tried first: a later patch on the same lines hides an earlier one.
    """
    found = set()
    for patch in reversed(patches):
        changes = take_back(snapshot, patch)
        if changes is not None:
            found.add(patch.name)
            snapshot = snapshot.with_changes(changes)
    return frozenset(found)


def _conflict(
    target: Target, patch: Patch, application: Application, three_way: bool | None
) -> ConflictError:
    problem = application.first_problem()
    where = f"--onto {target.release}"
    if target.repository.work_tree is not None or target.release is None:
        where = f"--vllm {target.repository.where} --onto {target.commit[:12]}"
    hint = f"see where it stands: vllm-series status {where}"
    if three_way is False:
        hint = f"try --3way to merge drifted context, or {hint}"
    return ConflictError(
        f"{patch.name} does not apply to {target.label}: {problem}", hint=hint, patch=patch.name
    )


@dataclass
class AncestorFinder:
    """Looks a blob up in a repository, then in the release store.

    Attributes:
        places: Where to look.
        missing: What was found nowhere.

    """

    places: Sequence[Repository]
    missing: list[str] = field(default_factory=list)

    def __call__(self, oid: str) -> bytes | None:
        """The content of a blob, or None."""
        for place in self.places:
            with place.pristine() as objects:  # A partial clone would ask its server.
                found = objects.objects([oid]).get(oid)
            if found is not None:
                return found
        self.missing.append(oid)
        return None


def ancestor_finder(repository: Repository, store: Store | None) -> AncestorFinder:
    """Where the ancestors of three-way merges are looked up."""
    places = [repository]
    if store is not None and (store.repository.git_dir / "HEAD").is_file():
        places.append(store.repository)
    return AncestorFinder(places)
