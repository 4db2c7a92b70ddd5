# SPDX-License-Identifier: Apache-2.0
"""Whether the files on disk are exactly a base plus patches, and what they are if not.

The answer rests on content alone: a file counts as right if it has the bytes that applying the patches to
the base gives. What is wrong is found by taking the patches back from the files, the last one first, part
by part; what is left then and is not the base was edited by somebody else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_series.bytecode import Stale, find_stale
from vllm_series.dependencies import closure, declared, textual
from vllm_series.patchfile import Patch, paths_of
from vllm_series.places import Foreign, Place
from vllm_series.plan import Skipped, Target, find_present, find_retired
from vllm_series.project import Project
from vllm_series.stack import Application, apply_patch
from vllm_series.takeapart import Part, State, same, take_apart, untouched
from vllm_series.tree import Snapshot


@dataclass(frozen=True)
class Finding:
    """What became of one patch.

    Attributes:
        name: The patch.
        state: ``applied``, ``missing``, ``partly`` (some hunks or files), ``obscured`` (its lines were
            edited, so that nobody can say), ``unseen`` (all its files are outside an installed package),
            ``not-needed`` (the base has it), ``inapplicable`` (it cannot be applied to the base).
        wanted: Whether it should be there.
        detail: Why, one line; may be empty.
        parts: Per changed file.

    """

    name: str
    state: State
    wanted: bool
    detail: str = ""
    parts: tuple[Part, ...] = ()

    @property
    def good(self) -> bool:
        """Whether the patch is as it should be."""
        if self.state in (State.NOT_NEEDED, State.UNSEEN):
            return True
        return self.state is (State.APPLIED if self.wanted else State.MISSING) or (
            not self.wanted and self.state is State.INAPPLICABLE
        )


@dataclass(frozen=True)
class Report:
    """The whole answer.

    Attributes:
        patches: Per patch of the series, in order.
        foreign: Files that neither base nor patches account for.
        stale: Compiled modules that are not those of their source, among the files of the patches.

    """

    patches: tuple[Finding, ...]
    foreign: tuple[Foreign, ...]
    stale: tuple[Stale, ...]

    @property
    def exact(self) -> bool:
        """Whether the files are exactly the base plus the wanted patches, and Python would load them."""
        loaded = any(stale.loaded for stale in self.stale)
        return not self.foreign and not loaded and all(finding.good for finding in self.patches)


def verify(project: Project, target: Target, place: Place, names: Sequence[str] | None = None) -> Report:
    """Compare the files at ``place`` with a base plus patches.

    Args:
        project: The patch directory.
        target: The base.
        place: The files.
        names: The patches that should be there, with what they need; None for all that the base needs.

    """
    patches = project.patches(target.serving)
    entries = target.repository.all_entries(target.commit)
    base = Snapshot.at(target.repository, target.commit, paths_of(patches))
    wanted = _wanted(project, base, patches, names)
    applications, outside = _apply(project, base, patches)
    disk = Snapshot(place)
    touched = sorted({path for patch in patches for path in patch.paths if place.covers(path)})
    expected = _stacked(base, [a for a in applications if a.patch.name in wanted])
    if all(same(place, disk.get(path), expected.get(path)) for path in touched):
        parts = {a.patch.name: untouched(a.patch, place, a.patch.name in wanted) for a in applications}
        odd: list[Foreign] = []
    else:
        parts, odd = take_apart(base, disk, place, touched, [a.patch for a in applications])
    findings = []
    for name in project.series.names:
        if name in outside:
            verdict = outside[name]
            state = State.INAPPLICABLE if verdict.verdict == "conflict" else State.NOT_NEEDED
            findings.append(Finding(name, state, name in wanted, verdict.reason))
        else:
            findings.append(_finding(name, name in wanted, parts[name]))
    foreign = (*odd, *place.foreign(entries, frozenset(touched)))
    stale = [s for path in touched if (file := place.root / path).suffix == ".py" and file.is_file()
             for s in find_stale(file)]  # fmt: skip
    return Report(tuple(findings), tuple(sorted(foreign, key=lambda f: f.path)), tuple(stale))


def _wanted(
    project: Project, base: Snapshot, patches: Sequence[Patch], names: Sequence[str] | None
) -> frozenset[str]:
    wanted = project.known(names)
    if names is None:
        return wanted
    needs = {name: {*found} for name, found in declared(patches, project.series.names).items()}
    queue = [patch.name for patch in patches if patch.name in wanted]
    for name in queue:
        needs[name] |= {*textual(base, patches, name)}
        queue += [need for need in needs[name] if need in needs and need not in queue]
    return wanted | closure({name: sorted(found) for name, found in needs.items()}, sorted(wanted)).keys()


def _apply(
    project: Project, base: Snapshot, patches: Sequence[Patch]
) -> tuple[list[Application], dict[str, Skipped]]:
    """Apply what can be applied; the rest, and what the base needs no more, by name."""
    here = {patch.name for patch in patches}
    outside = {
        name: Skipped(name, "retired", "no file of it serves this base: the release has it")
        for name in project.series.names
        if name not in here
    }
    applications = []
    snapshot, there = base, None
    for patch in patches:
        retired = find_retired(project, base, patch.name)
        if retired is not None:
            outside[patch.name] = retired
            continue
        application = apply_patch(snapshot, patch)
        if application.ok and not application.empty:
            applications.append(application)
            snapshot = snapshot.with_changes(application.changes)
            continue
        there = find_present(base, patches) if there is None else there
        if application.ok or patch.name in there:
            outside[patch.name] = Skipped(patch.name, "upstream-equivalent", "the base has its changes")
        else:
            outside[patch.name] = Skipped(patch.name, "conflict", application.first_problem())
    return applications, outside


def _stacked(base: Snapshot, applications: Sequence[Application]) -> Snapshot:
    for application in applications:
        again = apply_patch(base, application.patch)
        base = base.with_changes(again.changes) if again.ok else base
    return base


def _finding(name: str, wanted: bool, parts: Sequence[Part]) -> Finding:
    seen = {part.state for part in parts if part.state is not State.UNSEEN}
    if not seen:
        return Finding(name, State.UNSEEN, wanted, "its files are not in an installed package", tuple(parts))
    if len(seen) == 1:
        return Finding(name, next(iter(seen)), wanted, "", tuple(parts))
    state = State.PARTLY if seen & {State.APPLIED, State.PARTLY} else State.OBSCURED
    return Finding(name, state, wanted, "", tuple(parts))
