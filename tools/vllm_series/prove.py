# SPDX-License-Identifier: Apache-2.0
"""Prove one patch in one tier: run what is needed on which tree, and judge.

What is needed in any case is asked for at once, and the rest when the results are in. So many proofs are
begun one after the other, their runs go on at the same time, and they are waited for in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from vllm_series.compose import Composition
from vllm_series.project import Project
from vllm_series.proof import (
    Judgement,
    Verdict,
    conclude,
    judge_control,
    judge_patched,
    judge_upstream,
    newly_failing,
    repeated,
)
from vllm_series.runner import Answer, Place, Request, Runner, merged
from vllm_series.staticrun import about
from vllm_series.testreport import TestRun
from vllm_series.testtable import PatchTests, Selector
from vllm_series.tiers import Tier
from vllm_series.trees import Trees

#: Hears what is being done: a stage, then each test that begins.
Listener = Callable[[str, str, int, int], None]
#: The runs of vLLM's own tests: on the base, if there was one, and on the tree with the patch.
_Runs = tuple[TestRun | None, TestRun]


@dataclass(frozen=True)
class Proof:
    """What was found out about a patch in a tier.

    Attributes:
        tier: The tier's name.
        judgement: The answer.
        selectors: The patch's tests.
        patched: The run on the tree with the patch, None if there was none.
        control: The run on the control.
        control_judgement: What the control says; its reason is the failure that was seen.
        upstream: The runs of vLLM's own tests on the base, only of files in which something failed on the
            tree with the patch, None if nothing did; and on that tree.
        remembered: Whether nothing had to be run.

    """

    tier: str
    judgement: Judgement
    selectors: tuple[Selector, ...] = ()
    patched: TestRun | None = None
    control: TestRun | None = None
    control_judgement: Judgement | None = None
    upstream: _Runs | None = None
    remembered: bool = False

    @property
    def runs(self) -> tuple[TestRun, ...]:
        """Every run."""
        return tuple(r for r in (self.patched, self.control, *(self.upstream or ())) if r is not None)

    @property
    def seconds(self) -> float:
        """How long the runs took, whenever they were."""
        return sum(run.seconds for run in self.runs)


@dataclass(frozen=True)
class Prover:
    """What proving needs.

    Attributes:
        project: The patch directory, with this project's tests beside it.
        trees: Folders of trees.
        runner: Runs tests.
        listen: Hears what is being done.
        version: vLLM's version.

    """

    project: Project
    trees: Trees
    runner: Runner
    listen: Listener
    version: str

    def begin(self, composition: Composition, tier: Tier, tests: PatchTests) -> Callable[[], Proof]:
        """Begin to prove the patch of ``composition`` in ``tier``.

        Returns:
            What waits for the runs and gives the proof.

        """
        if not tier.selectors:
            return self._static(composition, tier)
        selectors = tests.tiers.get(tier.name, ())
        compare = self._compare(composition, tier, tests) if tier.upstream else None
        if not selectors:
            return partial(_untested, tier.name, compare)
        if tier.recorded and self.runner.results is None:
            return partial(_unrecorded, tier.name, selectors)
        with_it = self._tests(composition, composition.tree, tier, selectors, "with it", _passes)
        without_it = self._tests(composition, composition.control_tree, tier, selectors, "without it", _fails)

        def finish() -> Proof:
            patched, control = with_it.answer(), without_it.answer()
            compared, runs, known = compare() if compare is not None else (None, None, True)
            judged = judge_patched(patched.run, patched.by_selector)
            judged_control = judge_control(control.run, control.by_selector)
            return Proof(
                tier.name,
                conclude(judged, judged_control, compared),
                selectors,
                patched.run,
                control.run,
                judged_control,
                runs,
                known and patched.remembered and control.remembered,
            )

        return finish

    def _compare(self, composition: Composition, tier: Tier, tests: PatchTests) -> _Compare | None:
        """Run vLLM's own tests on the tree with the patch, and where they fail there, on the base.

        Those that fail only with the patch get a second try. Each file is a run of its own, which the
        patches share that are in the same tree.
        """
        selectors = tests.upstream
        if selectors is None:
            selectors = tuple(Selector(path) for path in composition.touched_tests)
        if not selectors:
            return None

        def ask(tree: str, some: Sequence[Selector], stage: str) -> list[Request]:
            return [
                self._tests(composition, tree, tier, [one], f"{stage}: {one.text}", _always) for one in some
            ]

        asked = ask(composition.tree, selectors, "vLLM's with it")

        def finish() -> tuple[Judgement, _Runs, bool]:
            answers = [request.answer() for request in asked]
            after, known = merged(answers)
            if not after.bad:
                # Nothing can have got worse, whatever the base does.
                return judge_upstream(TestRun(()), after), (None, after), known
            failed = [s for s, answer in zip(selectors, answers, strict=True) if not _no_failure(answer.run)]
            there = self.trees.repository.entries(composition.base_tree, [s.file for s in failed])
            on_base = [selector for selector in failed if selector.file in there]
            found = ask(composition.base_tree, on_base, "vLLM's on the base")
            before, known_before = merged([request.answer() for request in found])
            known = known and known_before
            worse = [Selector(test.node) for test in newly_failing(before, after)]
            if worse and not any(selector.project for selector in selectors):
                # Some of vLLM's tests depend on how busy the machine is.
                stage = "vLLM's once more"
                request = self._tests(composition, composition.tree, tier, worse, stage, _no_failure, True)
                again = request.answer()
                after, known = repeated(after, again.run), known and again.remembered
            return judge_upstream(before, after), (before, after), known

        return finish

    def _static(self, composition: Composition, tier: Tier) -> Callable[[], Proof]:
        """Look at every file of the stack at once, for all its patches, and judge those of this one."""
        python = (".py", ".pyi")
        paths = [p for p, f in composition.changed.items() if f is not None and p.endswith(python)]
        if not paths:
            passed = Judgement(Verdict.PASSED, "the patch changes no Python file")
            return lambda: Proof(tier.name, passed)
        every = [path for path in composition.stack_files if path.endswith(python)]

        def ask(tree: str, stage: str, good: Callable[[TestRun], bool]) -> Request:
            return self.runner.static(
                self._place(composition, tree, tier), every, partial(self.listen, stage), good=good
            )

        def own(answer: Answer) -> TestRun:
            return replace(answer.run, tests=about(answer.run.tests, paths))

        asked = ask(composition.tree, "with it", _no_failure)

        def finish() -> Proof:
            answer = asked.answer()
            after, before, remembered = own(answer), TestRun(()), answer.remembered
            if after.bad:
                base = ask(composition.base_tree, "on the base", _always).answer()
                before, remembered = own(base), remembered and base.remembered
            judgement = judge_upstream(before, after)
            if after.stopped or judgement.verdict.is_no:
                judgement = Judgement(Verdict.FAILED, judgement.reason or after.stopped)
            return Proof(tier.name, judgement, (), after, remembered=remembered)

        return finish

    def _tests(
        self,
        composition: Composition,
        tree: str,
        tier: Tier,
        selectors: Sequence[Selector],
        stage: str,
        good: Callable[[TestRun], bool],
        again: bool = False,
    ) -> Request:
        place = self._place(composition, tree, tier)
        return self.runner.tests(place, selectors, partial(self.listen, stage), good=good, again=again)

    def _place(self, composition: Composition, tree: str, tier: Tier) -> Place:
        return Place(self.trees, tree, composition.base_tree, tier, self.project.root, self.version)


#: Waits for a comparison: the answer, the runs, and whether all were known.
_Compare = Callable[[], tuple[Judgement, _Runs, bool]]


def _untested(tier: str, compare: _Compare | None) -> Proof:
    """The proof of a patch for which tests.toml names no test: it may still make vLLM's own fail."""
    none = Judgement(Verdict.NO_TESTS, "tests.toml names none")
    if compare is None:
        return Proof(tier, none, remembered=True)
    compared, runs, known = compare()
    return Proof(tier, compared if compared.verdict.is_no else none, upstream=runs, remembered=known)


def _unrecorded(tier: str, selectors: tuple[Selector, ...]) -> Proof:
    """The proof in a tier whose results have to come from elsewhere, and did not."""
    reason = "it judges what ran on a GPU machine; name the results.json of ci/gpu.sh with --results"
    return Proof(tier, Judgement(Verdict.SKIPPED, reason), selectors, remembered=True)


def _passes(run: TestRun) -> bool:
    return bool(run.tests) and not run.bad and not run.foreign


def _no_failure(run: TestRun) -> bool:
    return not run.bad and not run.foreign


def _fails(run: TestRun) -> bool:
    return bool(run.bad)


def _always(run: TestRun) -> bool:
    return True
