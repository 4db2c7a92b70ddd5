# SPDX-License-Identifier: Apache-2.0
"""Prove one patch in one tier: run what is needed on which tree, and judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
from vllm_series.runner import Answer, Place, Runner
from vllm_series.testreport import TestRun
from vllm_series.testtable import PatchTests, Selector
from vllm_series.tiers import Tier
from vllm_series.trees import Trees

#: Hears what is being done: a stage, then each test that begins.
Listener = Callable[[str, str, int, int], None]


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
        upstream: The runs of vLLM's own tests on the base, None if nothing failed on the tree with the
            patch, and on that tree.
        remembered: Whether nothing had to be run.

    """

    tier: str
    judgement: Judgement
    selectors: tuple[Selector, ...] = ()
    patched: TestRun | None = None
    control: TestRun | None = None
    control_judgement: Judgement | None = None
    upstream: tuple[TestRun | None, TestRun] | None = None
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

    def prove(self, composition: Composition, tier: Tier, tests: PatchTests) -> Proof:
        """Prove the patch of ``composition`` in ``tier``."""
        if not tier.selectors:
            return self._static(composition, tier)
        selectors = tests.tiers.get(tier.name, ())
        compared, runs, known = (
            self._compare(composition, tier, tests) if tier.upstream else (None, None, True)
        )
        if not selectors:
            none = Judgement(Verdict.NO_TESTS, "tests.toml names none")
            worse = compared is not None and compared.verdict.is_no
            return Proof(tier.name, compared if worse and compared else none, upstream=runs, remembered=known)
        patched = self._tests(composition, composition.tree, tier, selectors, "with it", _passes)
        control = self._tests(composition, composition.control_tree, tier, selectors, "without it", _fails)
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

    def _compare(
        self, composition: Composition, tier: Tier, tests: PatchTests
    ) -> tuple[Judgement | None, tuple[TestRun | None, TestRun] | None, bool]:
        """Run vLLM's own tests on the tree with the patch, and where they fail there, on the base.

        Those that fail only with the patch get a second try.
        """
        selectors = tests.upstream
        if selectors is None:
            selectors = tuple(Selector(path) for path in composition.touched_tests)
        if not selectors:
            return None, None, True
        answer = self._tests(composition, composition.tree, tier, selectors, "vLLM's with it", _always)
        after, known = answer.run, answer.remembered
        if not after.bad:
            # Nothing can have got worse, whatever the base does.
            return judge_upstream(TestRun(()), after), (None, after), known
        before = TestRun(())
        there = self.trees.repository.entries(composition.base_tree, [s.file for s in selectors])
        on_base = tuple(selector for selector in selectors if selector.file in there)
        if on_base:
            stage = "vLLM's on the base"
            answer = self._tests(composition, composition.base_tree, tier, on_base, stage, _always)
            before, known = answer.run, known and answer.remembered
        worse = tuple(Selector(test.node) for test in newly_failing(before, after))
        if worse and not any(selector.project for selector in selectors):
            # Some of vLLM's tests depend on how busy the machine is.
            again = self._tests(composition, composition.tree, tier, worse, "vLLM's once more", _no_failure)
            after, known = repeated(after, again.run), known and again.remembered
        return judge_upstream(before, after), (before, after), known

    def _static(self, composition: Composition, tier: Tier) -> Proof:
        paths = [p for p, f in composition.changed.items() if f is not None and p.endswith((".py", ".pyi"))]
        if not paths:
            return Proof(tier.name, Judgement(Verdict.PASSED, "the patch changes no Python file"))
        self.listen("static", "", 0, 0)
        place = self._place(composition, composition.tree, tier)
        answer = self.runner.static(place, paths, good=_no_failure)
        after, before = answer.run, TestRun(())
        remembered = answer.remembered
        if after.bad:
            base = self.runner.static(
                self._place(composition, composition.base_tree, tier), paths, good=_always
            )
            before, remembered = base.run, remembered and base.remembered
        judgement = judge_upstream(before, after)
        if judgement.verdict.is_no:
            judgement = Judgement(Verdict.FAILED, judgement.reason)
        return Proof(tier.name, judgement, (), after, remembered=remembered)

    def _tests(
        self,
        composition: Composition,
        tree: str,
        tier: Tier,
        selectors: Sequence[Selector],
        stage: str,
        good: Callable[[TestRun], bool],
    ) -> Answer:
        self.listen(stage, "", 0, 0)
        return self.runner.tests(
            self._place(composition, tree, tier),
            selectors,
            lambda node, number, total: self.listen(stage, node, number, total),
            good=good,
        )

    def _place(self, composition: Composition, tree: str, tier: Tier) -> Place:
        folder = self.trees.get(tree, composition.base_tree)
        return Place(folder, tree, tier, self.project.root, self.version)


def _passes(run: TestRun) -> bool:
    return bool(run.tests) and not run.bad and not run.foreign


def _no_failure(run: TestRun) -> bool:
    return not run.bad and not run.foreign


def _fails(run: TestRun) -> bool:
    return bool(run.bad)


def _always(run: TestRun) -> bool:
    return True
