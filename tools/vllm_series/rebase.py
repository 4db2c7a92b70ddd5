# SPDX-License-Identifier: Apache-2.0
"""The steps of a rebase: start, go on, skip, abort, finish.

The patch directory changes once, at the very end. Until then everything lies in the release store: commits
that refs name, and from the first question on a private working tree. What is in that tree's history decides
which patch is done, so that a person may use git there as usual.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path

from vllm_series.bases import version_of
from vllm_series.build import drop_build_ref
from vllm_series.checkout import NAME_TRAILER
from vllm_series.errors import AnswerNoError, PreconditionError, UsageError
from vllm_series.git import CommitInfo, Repository
from vllm_series.interrupt import point_of_no_return
from vllm_series.neutral import Neutrality, compare_patches, compare_trees
from vllm_series.oplog import read_files, recorded, tree_of
from vllm_series.patchfile import Patch
from vllm_series.plan import Target
from vllm_series.privatefolder import private_folder
from vllm_series.project import Project
from vllm_series.rebasefiles import base_of, new_files
from vllm_series.rebaseplace import (
    RebasePlace,
    originals,
    require_no_markers,
    require_resolved,
    stack_of,
)
from vllm_series.rebasestate import Carried, Paused, RebaseState, read_state
from vllm_series.rebasing import Carry, Step, advance, commit_series, snapshot_of
from vllm_series.refresh import export, same_change
from vllm_series.store import Store
from vllm_series.upstreamchange import UpstreamChange, find_upstream_changes
from vllm_series.verdict import Verdict, reference_of

VERB = "rebase"


@dataclass(frozen=True)
class Question:
    """Where a person is asked.

    Attributes:
        step: The patch with its verdict.
        number: Its place among the patches, from 1.
        total: How many patches there are.
        conflicts: Files with conflicts in the working tree.
        upstream: What upstream did to the hunks in question.
        tree: The working tree.
        droppable: Whether ``--skip`` may drop it.

    """

    step: Step
    number: int
    total: int
    conflicts: tuple[str, ...]
    upstream: tuple[UpstreamChange, ...]
    tree: Path
    droppable: bool


@dataclass
class Outcome:
    """What a run came to.

    Attributes:
        state: The state, also after the end.
        news: What was found of patches that went by themselves.
        question: Where it stopped, None if it did not.
        report: What the neutrality report says, at the end.
        files: Files of the patch directory that were written or removed, at the end.
        notes: What else a person should know.

    """

    state: RebaseState
    news: list[Step] = field(default_factory=list)
    question: Question | None = None
    report: Neutrality | None = None
    files: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)


@dataclass
class Session:
    """One run of the verb; the caller holds the store's lock.

    Attributes:
        project: The patch directory.
        store: The release store, with both releases.

    """

    project: Project
    store: Store

    def __post_init__(self) -> None:
        self.private = private_folder(self.project.root)
        self.place = RebasePlace.of(self.store, self.project.root)
        self.path = self.private.state_of(VERB)

    # -- the four commands -------------------------------------------------------------------------

    def start(self, ref: str, vllm: Path | None) -> Outcome:
        """Begin.

        Raises:
            PreconditionError: One is under way, or another verb is paused.

        """
        self.private.require_idle(VERB)
        if self.path.exists():
            raise PreconditionError(
                "a rebase is in progress",
                hint="go on with: vllm-series rebase --continue, or take it back with --abort",
            )
        self.place.clear()
        source = self.project.base_for(ref)
        old, new = (self.store.repository.commit(f"refs/tags/{name}") for name in (source.ref, ref))
        state = RebaseState(
            ref=ref,
            source=source.ref,
            old_base=old,
            new_base=new,
            old_tip=old,
            tip=new,
            project=tree_of(read_files(self.project.root)),
            vllm=str(vllm.absolute()) if vllm else "",
        )
        carry = self._carry(state)
        state = replace(state, old_tip=commit_series(carry, old))
        try:
            self._save(state)
        except BaseException:
            if not self.path.exists():  # Nobody could take the refs back any more.
                self.place.clear()
            raise
        return self._run(carry, Outcome(state))

    def resume(self) -> Outcome:
        """Go on after a person's work.

        Raises:
            PreconditionError: There is no rebase, or the work is not finished.

        """
        state = self._state()
        if any(base.ref == state.ref for base in self.project.bases):
            self._clear()  # It was killed between the exchange of the directory and this.
            return Outcome(state, notes=[f"the series was on {state.ref} already"])
        self._require_untouched(state)
        carry, outcome = self._carry(state), Outcome(state)
        if state.paused is not None:
            if not self._is_prepared(carry, outcome):
                return outcome
            outcome.state = self._take_in(carry, state, state.paused.name)
        return self._run(carry, outcome)

    def skip(self, reason: str) -> Outcome:
        """Go on without the patch in question.

        Raises:
            PreconditionError: There is none.

        """
        state = self._state()
        self._require_untouched(state)
        if state.paused is None or not state.paused.name:
            raise PreconditionError(
                "the rebase asks about no patch", hint="go on with: vllm-series rebase --continue"
            )
        carry, outcome = self._carry(state), Outcome(state)
        name, verdict = state.paused.name, state.paused.verdict
        if not self._is_droppable(state, name, verdict):
            raise PreconditionError(
                f"{name} cannot be left out of {state.ref}: {name}.patch would serve it all the same",
                hint=f"resolve it, or --abort and let its retire condition hold on {state.ref}",
            )
        tree = self.place.tree()
        if tree is not None:
            kept = [c for c in self._stack(tree, carry, state) if c.trailer(NAME_TRAILER) != name]
            head = tree.commit("HEAD")
            if kept and kept[-1].oid not in (head, *_parents(tree, head)):
                raise PreconditionError(
                    f"{tree.where} has later patches on top of {name}",
                    hint=f"take its commit out first: git -C {tree.where} rebase -i {state.new_base[:12]}",
                )
            self._note_work(tree, state, outcome)
            state = replace(state, tip=kept[-1].oid if kept else state.new_base)
        outcome.state = state.dropped(name, verdict, reason)
        self._save(outcome.state)
        if tree is not None:
            tree.reset(state.tip)
        return self._run(carry, outcome)

    def _is_droppable(self, state: RebaseState, name: str, verdict: str) -> bool:
        """Whether it would not be applied all the same: an older release is served by the plain file."""
        mine, pinned = version_of(state.ref) or (), version_of(self.project.pinned.ref) or ()
        return mine >= pinned or f"{name}.patch" not in self.project.files or verdict.startswith("upstream-")

    def abort(self) -> Outcome | None:
        """Take everything back; None if there was nothing to take back."""
        try:
            state = read_state(self.path)
        except PreconditionError:
            state = None  # Damaged: nothing in it is needed to clear up.
        if not self.path.exists():
            self.place.clear()
            return None
        outcome = None
        if state is not None:
            outcome = Outcome(state)
            tree = self.place.tree()
            if tree is not None:
                self._note_work(tree, state, outcome)
        self._clear()
        return outcome

    # -- parts --------------------------------------------------------------------------------------

    def _state(self) -> RebaseState:
        state = read_state(self.path)
        if state is None:
            raise PreconditionError(
                "there is no rebase in progress", hint="start one with: vllm-series rebase v0.34.0"
            )
        return state

    def _save(self, state: RebaseState) -> None:
        self.place.keep(state)
        drop_build_ref(self.store.repository)
        self.private.ensure()
        state.write(self.path)

    def _clear(self) -> None:
        point_of_no_return()
        self.place.clear()
        self.path.unlink(missing_ok=True)

    def _require_untouched(self, state: RebaseState) -> None:
        files = read_files(self.project.root)
        if tree_of(files) != state.project:
            raise PreconditionError(
                f"{self.project.root}: series or patches were edited since the rebase began",
                hint="take the edits back until it is finished (git diff shows them), or start anew: "
                "vllm-series rebase --abort",
            )

    def _carry(self, state: RebaseState) -> Carry:
        source = next(base for base in self.project.bases if base.ref == state.source)
        patches = tuple(self.project.patches(source))
        repository, commit = self.store.repository, state.new_base
        if state.vllm:
            repository = Repository.open(Path(state.vllm))
            found = repository.find_commit(f"refs/tags/{state.ref}")
            if found is None:
                raise UsageError(
                    f"{state.vllm} has no tag {state.ref}",
                    hint=f"git -C {state.vllm} fetch --tags, or leave --vllm out",
                )
            commit = found
        return Carry(
            project=self.project,
            store=self.store,
            patches=patches,
            target=Target(repository, commit, state.ref, source),
            old_base=snapshot_of(self.store, state.old_base, patches),
            new_base=snapshot_of(self.store, state.new_base, patches),
        )

    def _run(self, carry: Carry, outcome: Outcome) -> Outcome:
        found = advance(carry, outcome.state)
        outcome.news += found.news
        outcome.state = found.state
        self._save(found.state)
        if found.step is not None:
            self._ask(carry, outcome, found.step)
        else:
            self._finish(carry, outcome)
        return outcome

    def _ask(self, carry: Carry, outcome: Outcome, step: Step) -> None:
        state, patch = outcome.state, step.verdict.name
        original = originals(self.store, state)[patch]
        present = step.verdict.verdict is Verdict.UPSTREAM_EQUIVALENT
        known = self.place.tree()
        if known is not None:
            self._note_work(known, state, outcome)
        if present:
            tree = self.place.ensure(state.tip)
            tree.reset(state.tip)
            conflicts: list[str] = []
        else:
            conflicts = self.place.prepare(state, original, step.application)
        if state.paused is not None:
            outcome.state = replace(state, paused=replace(state.paused, ready=True))
            self._save(outcome.state)
        names = [p.name for p in carry.patches]
        hunks = [(h.path, h.number) for h in step.verdict.hunks if h.state in ("conflict", "merged")]
        snapshot = snapshot_of(self.store, state.tip, carry.patches)
        upstream = find_upstream_changes(carry, snapshot, carry.patches[names.index(patch)], hunks)
        outcome.question = Question(
            step,
            names.index(patch) + 1,
            len(names),
            tuple(conflicts),
            tuple(upstream),
            self.place.path,
            self._is_droppable(state, patch, step.verdict.verdict.value),
        )

    def _is_prepared(self, carry: Carry, outcome: Outcome) -> bool:
        """Whether a person could work on the patch in question; if not, that is made good, and asked."""
        state = outcome.state
        tree = self.place.tree()
        if state.paused is not None and state.paused.ready and tree is not None:
            return True
        if tree is None and self.place.ensure(state.tip).commit("HEAD") != state.tip:
            return True  # The folder was deleted; git remembers what was committed in it.
        outcome.notes.append(f"the working tree {self.place.path} was prepared again")
        self._run(carry, outcome)
        return False

    def _note_work(self, tree: Repository, state: RebaseState, outcome: Outcome) -> None:
        """Keep a person's work as a commit before the working tree is reset, and say where."""
        head = tree.commit("HEAD")
        saved = tree.save() if tree.states() else None
        if saved is None and not tree.is_ancestor(head, state.tip):
            saved = head
        if saved is not None:
            where = self.store.repository.where
            outcome.notes.append(f"what was in {tree.where} is kept as the commit {saved} of {where}")

    def _stack(self, tree: Repository, carry: Carry, state: RebaseState) -> list[CommitInfo]:
        return stack_of(tree, state, [patch.name for patch in carry.patches])

    def _take_in(self, carry: Carry, state: RebaseState, asked: str) -> RebaseState:
        """The state with what a person has done in the working tree."""
        tree = self.place.ensure(state.tip)
        operation = tree.operation()
        if operation not in (None, "cherry-pick"):
            raise PreconditionError(
                f"a {operation} is in progress in {tree.where}", hint="finish it with git first"
            )
        commits = self._stack(tree, carry, state)
        names = [commit.trailer(NAME_TRAILER) for commit in commits]
        staged = require_resolved(tree, asked or state.ref)
        if asked and asked not in names:
            if not staged:
                raise PreconditionError(
                    f"{asked}: nothing is staged, and the patch would be empty",
                    hint="drop it with: vllm-series rebase --skip REASON, or begin it again with: "
                    f"git -C {tree.where} cherry-pick {originals(self.store, state)[asked].oid[:12]}",
                )
            require_no_markers(tree, tree.staged_tree(), state.new_base, asked)
            original = originals(self.store, state)[asked]
            tree.commit_index(original.oid, original.author)
            commits = self._stack(tree, carry, state)
        elif staged:
            raise PreconditionError(
                f"{tree.where} has staged changes besides its commits",
                hint=f"take them into the last patch with: git -C {tree.where} commit --amend --no-edit",
                paths=sorted(staged),
            )
        head = tree.commit("HEAD")
        require_no_markers(tree, head, state.new_base, asked or state.ref)
        rewritten = self._rewritten(state, head)
        carried = []
        for commit in commits:
            name = commit.trailer(NAME_TRAILER) or ""
            carried.append(Carried(name, "resolved" if name in rewritten else state.how(name)))
        taken = replace(state, tip=head, carried=tuple(carried), paused=None)
        self._save(taken)
        return taken

    def _rewritten(self, state: RebaseState, head: str) -> set[str]:
        """The patches that a person has changed behind the rebase's back."""
        if self.store.repository.is_ancestor(state.tip, head):
            return set()
        before = {p.name: p for p in export(self.store.repository, state.new_base, state.tip)}
        after = export(self.store.repository, state.new_base, head)
        return {p.name for p in after if p.name in before and not same_change(before[p.name], p)}

    def _finish(self, carry: Carry, outcome: Outcome) -> None:
        state, repository = outcome.state, self.store.repository
        new = export(repository, state.new_base, state.tip) if state.tip != state.new_base else []
        known = self.place.tree()
        if known is not None:
            self._note_work(known, state, outcome)
        report = self._report(carry, state, new)
        outcome.report = report
        if not report.ok:
            self._offer(state)
            raise AnswerNoError(
                f"the rebase onto {state.ref} changed more than it should: {_first_fault(report)}",
                hint=f"put it right in {self.place.path} with git, then: vllm-series rebase --continue",
            )
        base = base_of(state.ref, next(iter(repository.commits(state.new_base, 1))))
        texts = {patch.name: patch for patch in new}
        files = new_files(self.project, base, texts, state.gone, date.today()).files
        self._check(files, state)
        text = f"onto {state.ref}: {len(new)} carried over, {len(state.gone)} not needed"
        with recorded(self.project, VERB, text) as change:
            self._require_untouched(state)
            for path, content in files.items():
                if content is None:
                    change.remove(f"patches/{path}")
                else:
                    change.write(f"patches/{path}", content)
        outcome.files = tuple(sorted(files))
        self._clear()

    def _report(self, carry: Carry, state: RebaseState, new: Sequence[Patch]) -> Neutrality:
        repository = self.store.repository
        old = {patch.name: patch for patch in carry.patches}
        how = {row.name: row.how for row in state.carried}
        reference = reference_of(carry.new_base, new)
        patches = compare_patches(repository, old, new, how, (carry.reference, reference))
        touched = [patch for name, patch in old.items() if how.get(name) not in ("clean", "offset")]
        touched += [patch for patch in new if how[patch.name] not in ("clean", "offset")]
        paths = sorted({path for patch in (*carry.patches, *new) for path in patch.paths})
        explained, rest = compare_trees(
            repository, (state.old_base, state.new_base), (state.old_tip, state.tip), touched, paths
        )
        return Neutrality(patches, len(paths), explained, tuple(rest))

    def _offer(self, state: RebaseState) -> None:
        """Let a person put the result right in the working tree."""
        self.place.ensure(state.tip).reset(state.tip)
        self._save(replace(state, paused=Paused("", "check", "", ready=True)))

    def _check(self, files: Mapping[str, bytes | None], state: RebaseState) -> None:
        """Lint the directory as it will be; findings that are there already are no reason to stop."""
        import shutil
        import tempfile

        from vllm_series.lint import lint

        with tempfile.TemporaryDirectory(prefix="vllm-series-check-") as folder:
            root = Path(folder)
            shutil.copytree(self.project.patch_dir, root / "patches", symlinks=True)
            shutil.copyfile(self.project.series_path, root / "series")
            for name, content in files.items():
                target = root / "patches" / name
                target.parent.mkdir(parents=True, exist_ok=True)
                if content is None:
                    target.unlink(missing_ok=True)
                else:
                    target.write_bytes(content)
            known = {(f.where.rpartition("/")[2], f.rule) for f in lint(self.project)}
            found = [f for f in lint(Project(root)) if (f.where.rpartition("/")[2], f.rule) not in known]
        if found:
            self._offer(state)
            raise AnswerNoError(
                f"{found[0].where}: {found[0].text}",
                hint=f"amend the commit in {self.place.path}, then: vllm-series rebase --continue",
                findings=[vars(finding) for finding in found],
            )


def _parents(tree: Repository, commit: str) -> tuple[str, ...]:
    return next(iter(tree.commits(commit, 1))).parents


def _first_fault(report: Neutrality) -> str:
    for patch in report.patches:
        if not patch.ok:
            what = f"lands in {patch.scopes[0]}" if patch.lines else "changes other lines"
            return f"{patch.name} {what}"
    difference = report.unexplained[0]
    return f"in {difference.path} differs {difference.line!r}, for which no patch accounts"
