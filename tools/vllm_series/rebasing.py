# SPDX-License-Identifier: Apache-2.0
"""Carry patches over to another base in memory, up to the first one that a person must look at.

Only what is beyond doubt goes by itself: a patch whose hunks all land where a merge would put them too, one
that merges without losing a line, one that upstream has to the letter, one whose retire condition holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from vllm_series import git
from vllm_series.build import commit_stack
from vllm_series.diff import Action
from vllm_series.errors import ConflictError
from vllm_series.patchfile import Patch, paths_of
from vllm_series.place import split_lines
from vllm_series.plan import Target, find_present
from vllm_series.project import Project
from vllm_series.rebasestate import Carried, Paused, RebaseState
from vllm_series.stack import Application, apply_patch
from vllm_series.store import Store
from vllm_series.tree import Snapshot
from vllm_series.verdict import PatchVerdict, Reference, Verdict, hunk_verdicts, judge_one, reference_of


@dataclass(frozen=True)
class Carry:
    """What stays the same during one run.

    Attributes:
        project: The patch directory.
        store: Where the commits lie.
        patches: The patch files that are carried over, in order.
        target: The new base; in a clone with history, if there is one.
        old_base: Files of the old base.
        new_base: Files of the new base.

    """

    project: Project
    store: Store
    patches: tuple[Patch, ...]
    target: Target
    old_base: Snapshot
    new_base: Snapshot

    @cached_property
    def before(self) -> dict[str, Snapshot]:
        """The old files before each patch, by name.

        Raises:
            ConflictError: The series does not apply to its own base.

        """
        found = {}
        snapshot = self.old_base
        for patch in self.patches:
            found[patch.name] = snapshot
            application = apply_patch(snapshot, patch)
            if not application.ok:
                raise ConflictError(
                    f"{patch.name} does not apply to its own base: {application.first_problem()}",
                    hint="put the patch file right first; see: vllm-series status",
                )
            snapshot = snapshot.with_changes(application.changes)
        return found

    @cached_property
    def reference(self) -> Reference:
        """Scopes and contents of the series on its own base."""
        return reference_of(self.old_base, self.patches)

    @cached_property
    def present(self) -> frozenset[str]:
        """The patches whose changes the new base has."""
        return find_present(self.new_base, self.patches)


def snapshot_of(store: Store, commit: str, patches: Sequence[Patch]) -> Snapshot:
    """The files of a commit in the store, with those that the patches touch read ahead."""
    return Snapshot.at(store.repository, commit, paths_of(patches))


@dataclass(frozen=True)
class Step:
    """What becomes of one patch.

    Attributes:
        verdict: The judgement.
        application: What is to be committed, None for nothing.
        asks: Whether a person must decide.

    """

    verdict: PatchVerdict
    application: Application | None
    asks: bool


def step(carry: Carry, snapshot: Snapshot, patch: Patch) -> Step:
    """Judge the next patch on what there is of the new stack."""
    tried = apply_patch(snapshot, patch)
    doubt = _doubt(carry, snapshot, tried) if tried.ok else ""
    needs_present = not tried.ok or tried.empty or doubt
    there = carry.present if needs_present else frozenset()
    if doubt and patch.name in there:
        tried = replace(tried, changes={})
    verdict, application = judge_one(
        carry.project, carry.target, carry.store, carry.new_base, snapshot, tried, carry.reference, there
    )
    if verdict.verdict in (Verdict.CLEAN, Verdict.OFFSET):
        if doubt:
            return Step(replace(verdict, verdict=Verdict.CONFLICT, evidence=doubt), None, True)
        return Step(verdict, application, False)
    if verdict.verdict in (Verdict.RETIRED, Verdict.UPSTREAM_EXACT):
        return Step(verdict, None, False)
    if verdict.verdict is Verdict.CONTEXT_DRIFT and application is not None:
        lost = _lost_lines(carry, snapshot, application)
        if lost:
            evidence = f"the new base has {lost} of its changed lines already; {verdict.evidence}"
            return Step(
                replace(verdict, verdict=Verdict.UPSTREAM_PARTIAL, evidence=evidence), application, True
            )
        return Step(verdict, application, False)
    return Step(verdict, application if verdict.verdict is Verdict.UPSTREAM_PARTIAL else None, True)


def _doubt(carry: Carry, snapshot: Snapshot, tried: Application) -> str:
    """Why a patch that applies may have landed in the wrong place; empty if it has not.

    A hunk whose lines stand there once before and once after can only be meant for that place, unless the
    enclosing function is another one. Else a three-way merge must give the same file.
    """
    before = carry.before[tried.patch.name]
    for result in tried.files:
        change = result.change
        if change.action is Action.CREATE or not any(x and x.offset for x in result.landings):
            continue
        old, new = before.get(change.old_path), snapshot.get(change.old_path)
        if old is None or new is None:
            continue
        texts = [b"".join(hunk.old) for hunk in change.hunks]
        if all(old.content.count(text) == 1 == new.content.count(text) for text in texts) and not _strayed(
            carry, snapshot, tried
        ):
            continue
        after = apply_patch(before, tried.patch).changes.get(change.new_path)
        wanted = tried.changes.get(change.new_path)
        if after is None or wanted is None:
            continue
        merged = merge(new.content, old.content, after.content)
        if merged != wanted.content:
            found = "conflicts" if merged is None else "puts the change elsewhere"
            return f"{change.path}: its lines stand in several places, and a three-way merge {found}"
    return ""


def _strayed(carry: Carry, snapshot: Snapshot, tried: Application) -> bool:
    return any(hunk.strayed for hunk in hunk_verdicts(snapshot, tried, carry.reference))


def merge(ours: bytes, base: bytes, theirs: bytes) -> bytes | None:
    """Three-way merge of contents; None if lines conflict."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="vllm-series-merge-") as folder:
        return git.merge_file(ours, base, theirs, Path(folder))


def _lost_lines(carry: Carry, snapshot: Snapshot, application: Application) -> int:
    """How many lines a patch changed on the old base and a merge does not change on the new one."""
    before = carry.before[application.patch.name]
    old = apply_patch(before, application.patch)

    def changed(snapshot: Snapshot, application: Application) -> Counter[tuple[str, str, bytes]]:
        found: Counter[tuple[str, str, bytes]] = Counter()
        for result in application.files:
            change = result.change
            was = snapshot.get(change.old_path) if change.old_path else None
            now = application.changes.get(change.new_path, was) if change.new_path else None
            one = Counter(split_lines(was.content if was else b""))
            two = Counter(split_lines(now.content if now else b""))
            found.update({(change.path, "-", line): n for line, n in (one - two).items()})
            found.update({(change.path, "+", line): n for line, n in (two - one).items()})
        return found

    return (changed(before, old) - changed(snapshot, application)).total()


@dataclass
class Advance:
    """How far the patches went by themselves.

    Attributes:
        state: The state afterwards; ``paused`` says where a person is asked.
        step: The step that asks, None at the end.
        news: What was found on the way, in order.

    """

    state: RebaseState
    step: Step | None = None
    news: list[Step] = field(default_factory=list)


def advance(carry: Carry, state: RebaseState) -> Advance:
    """Carry patches over until one asks or none is left, and write them as commits, all at once."""
    found = Advance(state)
    snapshot = snapshot_of(carry.store, state.tip, carry.patches)
    applications: list[Application] = []
    carried = list(state.carried)
    for patch in carry.patches:
        if patch.name in found.state.settled:
            continue
        this = step(carry, snapshot, patch)
        verdict = this.verdict
        if this.asks:
            found.step = this
            paused = Paused(patch.name, verdict.verdict.value, verdict.evidence)
            found.state = replace(found.state, paused=paused)
            break
        found.news.append(this)
        if this.application is None:
            found.state = found.state.dropped(patch.name, verdict.verdict.value, verdict.evidence)
            continue
        how = "merged" if verdict.verdict is Verdict.CONTEXT_DRIFT else verdict.verdict.value
        carried.append(Carried(patch.name, how))
        found.state = replace(found.state, carried=tuple(carried))
        applications.append(this.application)
        snapshot = snapshot.with_changes(this.application.changes)
    if applications:
        commits = commit_stack(carry.store.repository, state.tip, applications)
        found.state = replace(found.state, tip=commits[-1])
    return found


def commit_series(carry: Carry, commit: str) -> str:
    """Write the series on its own base as commits; returns the last one."""
    applications = [apply_patch(carry.before[patch.name], patch) for patch in carry.patches]
    commits = commit_stack(carry.store.repository, commit, applications)
    return commits[-1] if commits else commit
