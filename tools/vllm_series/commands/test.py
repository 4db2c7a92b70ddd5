# SPDX-License-Identifier: Apache-2.0
"""``vllm-series test``."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vllm_series import junit
from vllm_series.commands.env import provide
from vllm_series.commands.fetch import bring
from vllm_series.compose import Composition, Mode, compose
from vllm_series.environment import Environment
from vllm_series.errors import EXIT_OK, PreconditionError, UsageError
from vllm_series.evidence import Binding, evidence_path, parse_evidence, record, stale
from vllm_series.locks import locked
from vllm_series.output import Output, plural
from vllm_series.plan import Target
from vllm_series.project import Project, find_project
from vllm_series.proof import Judgement, Verdict, demanded, exit_code
from vllm_series.prove import Listener, Proof, Prover
from vllm_series.recorded import Results, read_results
from vllm_series.runner import Runner
from vllm_series.store import Store
from vllm_series.swap import write_file
from vllm_series.testreport import Outcome, Test, TestRun
from vllm_series.testtable import TestTable, load_tests
from vllm_series.tiers import RECORDED, SELECTING, Tier, choose
from vllm_series.trees import Trees
from vllm_series.workers import Workers, usable_cpus

#: Failed tests whose text is shown, and lines of each.
_SHOWN_TESTS = 3
_SHOWN_LINES = 40


@dataclass(frozen=True)
class TestOptions:
    """The arguments of ``test``, as documented on the command line."""

    __test__ = False

    names: tuple[str, ...] | None = None
    onto: tuple[str, ...] = ()
    tiers: tuple[str, ...] | None = None
    record: bool = False
    keep: bool = False
    every_base: bool = False
    each: bool = False
    prefix: bool = False
    fresh: bool = False
    time_limit: float | None = None
    jobs: int | None = None
    junit: Path | None = None
    results: Path | None = None
    index: str = ""

    @property
    def mode(self) -> Mode:
        """What surrounds a patch."""
        if self.each and self.prefix:
            raise UsageError("--each and --prefix exclude each other")
        return Mode.EACH if self.each else Mode.PREFIX if self.prefix else Mode.SERIES


@dataclass(frozen=True)
class Row:
    """The proofs of one patch on one base; no composition if the base does not need the patch."""

    ref: str
    target: Target
    name: str
    composition: Composition | None
    proofs: tuple[Proof, ...]


def test(out: Output, series_dir: Path | None, options: TestOptions) -> int:
    """Prove patches: their tests pass with them and fail without them."""
    project = find_project(series_dir)
    chosen = project.known(options.names)
    results = read_results(options.results) if options.results is not None else None
    tiers, mode = choose(options.tiers, results=results is not None), options.mode
    if options.record and project.installed:
        raise PreconditionError("--record writes into patches/, and this copy is installed", hint=_CHECKOUT)
    if options.every_base and options.onto:
        raise UsageError("--all and --onto exclude each other", hint="--all means every supported base")
    refs = options.onto or tuple(b.ref for b in project.bases[: None if options.every_base else 1])
    names = [name for name in project.series.names if name in chosen]
    store = Store.default()
    targets = [(ref, _target(out, project, store, ref, options.index)) for ref in refs]
    proofs = run_proofs(out, project, store, targets, names, options, results)
    rows, environment = proofs.rows, proofs.environment
    if options.record:
        for row in rows:
            _record(out, project, environment, results, row, mode)
    if options.junit is not None:
        write_file(options.junit.absolute(), junit.render(_suites(rows)))
    return _finish(out, options, environment, rows, tiers, proofs.kept)


@dataclass(frozen=True)
class Proofs:
    """What :func:`run_proofs` has found, in which environment, and the working folders that it left."""

    rows: tuple[Row, ...]
    environment: Environment
    kept: tuple[Path, ...] = ()


def run_proofs(
    out: Output,
    project: Project,
    store: Store,
    targets: Sequence[tuple[str, Target]],
    names: Sequence[str],
    options: TestOptions,
    results: Results | None = None,
) -> Proofs:
    """Prove patches on bases that lie in one repository; ``results`` are those of a GPU machine."""
    table = load_tests(project, SELECTING)
    tiers, mode = choose(options.tiers, results=results is not None), options.mode
    environment = provide(out, store.folder)
    with locked(store.folder / "test.lock", f"the test cache {store.folder}"), _live(out) as live:
        trees = Trees(store.folder / "trees", targets[0][1].repository, environment.interpreter)
        jobs = options.jobs or usable_cpus()
        many = len(targets) * len(names) * len(tiers)
        # A proof waits for its runs in a thread that takes no worker from them.
        with ThreadPoolExecutor(max(many, 1)) as waiting, Workers(jobs) as workers:
            runner = Runner(
                environment,
                store.folder,
                workers,
                options.time_limit,
                options.fresh,
                options.keep,
                results,
            )
            begun = [
                _begin(live, project, trees, runner, waiting, table, tiers, mode, ref, target, name)
                for ref, target in targets
                for name in names
            ]
            rows = []
            for finish in begun:
                rows.append(finish())
                _report(out, rows[-1], tiers)
        trees.prune(keep=[row.composition.base_tree for row in rows if row.composition])
    return Proofs(tuple(rows), environment, runner.kept)


_CHECKOUT = "work in a checkout of this project, or name one with --series-dir"


def _target(out: Output, project: Project, store: Store, ref: str, index: str) -> Target:
    return Target.of(project, store.repository, bring(out, project, store, ref, index).commit)


def _begin(
    live: _Live,
    project: Project,
    trees: Trees,
    runner: Runner,
    waiting: ThreadPoolExecutor,
    table: TestTable,
    tiers: Sequence[Tier],
    mode: Mode,
    ref: str,
    target: Target,
    name: str,
) -> Callable[[], Row]:
    """Begin the proofs of one patch on one base; returns what waits for them."""
    composition = compose(project, target, name, mode)
    version = (target.release or "v0").removeprefix("v")
    if composition is None:
        reason = f"{ref} does not need it; see: vllm-series status --onto {ref}"
        unneeded = Judgement(Verdict.NOT_NEEDED, reason)
        proofs = tuple(Proof(tier.name, unneeded) for tier in tiers)
        return lambda: Row(ref, target, name, None, proofs)
    futures = []
    for tier in tiers:
        prover = Prover(project, trees, runner, live.listener(f"{name} on {ref}, {tier.name}"), version)
        tests = table.of(name, target.serving.ref)
        proof = prover.begin(composition, tier, tests if mode is Mode.SERIES else tests.alone())
        futures.append(waiting.submit(proof))
    return lambda: Row(ref, target, name, composition, tuple(future.result() for future in futures))


@dataclass
class _Live:
    """Progress: one line that changes on a terminal, a line per stage otherwise."""

    out: Output
    show: object = None

    def listener(self, what: str) -> Listener:
        """Reports what happens to ``what``."""

        def hear(stage: str, node: str, number: int, total: int) -> None:
            text = f"{what}: {stage}"
            if self.show is not None:
                from rich.text import Text

                text += f"  {number}/{total} {node}" if node else ""
                self.show.update(Text(text, overflow="ellipsis", no_wrap=True))  # type: ignore[attr-defined]
            elif not node:
                self.out.note(text)

        return hear


@contextmanager
def _live(out: Output) -> Iterator[_Live]:
    if not sys.stderr.isatty():
        yield _Live(out)
        return
    from rich.console import Console

    with Console(stderr=True).status("preparing") as status:
        yield _Live(out, status)


def _report(out: Output, row: Row, tiers: Sequence[Tier]) -> None:
    """Say what is not good as soon as it is known."""
    for proof in row.proofs:
        what = f"{row.name} on {row.ref}, {proof.tier}"
        verdict = proof.judgement.verdict
        if verdict.is_no or verdict is Verdict.SKIPPED:
            out.note(f"{what}: {verdict}: {proof.judgement.reason}")
        for run in proof.runs:
            for line in run.leftovers:
                out.warn(f"{what}: left behind and ended: {line}")
            for line in run.foreign:
                out.warn(f"{what}: {line}")
        for test in proof.upstream[1].named(Outcome.PASSED) if proof.upstream else ():
            if test.reason:
                out.warn(f"{what}: {test.node} failed first and passed in a second try: {test.reason}")
        if verdict.is_no:
            for test in _telling(proof)[:_SHOWN_TESTS]:
                out.note(f"--- {test.node}")
                for line in test.text.splitlines()[-_SHOWN_LINES:]:
                    out.note(f"    {line}")


def _telling(proof: Proof) -> list[Test]:
    """The failed tests that explain a "no"."""
    verdict = proof.judgement.verdict
    if verdict is Verdict.NEWLY_FAILING and proof.upstream is not None:
        return proof.upstream[1].bad
    if proof.patched is not None and proof.patched.bad:
        return proof.patched.bad
    control = proof.control_judgement
    return proof.control.bad if proof.control is not None and control and control.verdict.is_no else []


def _suites(rows: Sequence[Row]) -> list[junit.Suite]:
    return [
        junit.Suite(
            f"{row.name}@{row.ref}.{proof.tier}",
            proof.judgement,
            proof.patched.tests if proof.patched else (),
            proof.seconds,
        )
        for row in rows
        for proof in row.proofs
    ]


def _record(
    out: Output,
    project: Project,
    environment: Environment,
    results: Results | None,
    row: Row,
    mode: Mode,
) -> None:
    if row.composition is None:
        return
    patch = row.composition.application.patch
    binding = Binding(row.name, patch.digest, row.ref, row.target.commit, dict(row.composition.prerequisites))
    path = evidence_path(project.patch_dir, row.name, row.ref)
    known = parse_evidence(path.read_text("utf-8"), str(path)) if path.is_file() else None
    entries: dict[str, dict[str, object]] = {}
    for proof in row.proofs:
        if proof.judgement.verdict is Verdict.NO_TESTS:
            continue
        recorded = results if proof.tier in RECORDED else None
        if proof.judgement.verdict is Verdict.SKIPPED and proof.tier in RECORDED:
            continue  # What an earlier machine has shown stands.
        entry = proof_entry(environment, row, row.composition, proof, mode)
        if recorded is not None:
            entry |= {"environment": recorded.document(), "date": recorded.date}
            entry["command"] = f"{entry['command']} --results results.json"
        before = known.tiers.get(proof.tier) if known and not stale(known.binding, binding) else None
        if proof.remembered and before is not None and {**before, "date": ""} == {**entry, "date": ""}:
            entry = dict(before)
        entries[proof.tier] = entry
    if entries:
        out.note(f"recorded {record(project.patch_dir, binding, entries)}")


def proof_entry(
    environment: Environment, row: Row, composition: Composition, proof: Proof, mode: Mode
) -> dict[str, object]:
    """A proof as an entry of an evidence file."""
    flag = {Mode.SERIES: "", Mode.EACH: " --each", Mode.PREFIX: " --prefix"}[mode]
    entry: dict[str, object] = {
        "outcome": proof.judgement.verdict.value,
        "reason": proof.judgement.reason,
        "command": f"vllm-series test {row.name} --onto {row.ref} --tier {proof.tier}{flag}",
        "tree": composition.tree,
        "patches": list(composition.patches),
        "selectors": [selector.text for selector in proof.selectors],
        "counts": proof.patched.counts if proof.patched else {},
    }
    if proof.control is not None and proof.control_judgement is not None:
        entry["control"] = {
            "tree": composition.control_tree,
            "without": [row.name, *composition.dropped],
            "outcome": _control_word(proof),
            "reason": proof.control_judgement.reason,
            "counts": proof.control.counts,
        }
    if proof.upstream is not None:
        before, after = proof.upstream
        entry["upstream"] = {"base": before.counts if before else None, "patched": after.counts}
    entry["environment"] = environment.document()
    entry["date"] = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return entry


def _control_word(proof: Proof) -> str:
    """The control in one word: a good control is one that fails."""
    judged = proof.control_judgement
    if judged is None:
        return ""
    words = {Verdict.PASSED: "fails", Verdict.NOT_LOAD_BEARING: "passes", Verdict.FAILED: "invalid"}
    return words.get(judged.verdict, judged.verdict.value)


def _finish(
    out: Output,
    options: TestOptions,
    environment: Environment,
    rows: Sequence[Row],
    tiers: Sequence[Tier],
    kept: Sequence[Path],
) -> int:
    refs = list(dict.fromkeys(row.ref for row in rows))
    several = len(refs) > 1
    out.table(
        ("patch", *(("base",) if several else ()), *(tier.name for tier in tiers), "without it"),
        [
            (row.name, *((row.ref,) if several else ()), *map(_cell, row.proofs), _control_cell(row))
            for row in rows
        ],
    )
    verdicts = {
        f"{row.name}@{row.ref}": {proof.tier: proof.judgement.verdict for proof in row.proofs} for row in rows
    }
    counted = demanded(
        verdicts, names_given=options.names is not None, tiers_given=bool(options.tiers or options.results)
    )
    code = exit_code(counted)
    for row in rows:
        if row.composition is not None and row.composition.dropped:
            out.note(f"the control of {row.name} also lacks {', '.join(row.composition.dropped)}")
    for folder in kept:
        out.note(f"kept {folder}")
    no = sum(verdict.is_no for verdict in counted)
    gaps = sum(verdict.unproven for verdict in counted)
    if code == EXIT_OK:
        proven = {row.name for row in rows if any(p.judgement.verdict is Verdict.PASSED for p in row.proofs)}
        count = plural(len(proven), "patch")
        out.say(f"ok: {count} proven on {', '.join(refs)}")
    else:
        out.say(f"not proven: {no} with the answer no, {gaps} skipped or without tests")
    return out.finish(
        code,
        bases={row.ref: row.target.commit for row in rows},
        mode=options.mode.value,
        environment=environment.document(),
        patches=[_document(row) for row in rows],
    )


def _cell(proof: Proof) -> str:
    verdict = proof.judgement.verdict
    if verdict in (Verdict.NO_TESTS, Verdict.NOT_NEEDED):
        return "-" if verdict is Verdict.NO_TESTS else verdict.value
    counts = proof.patched.counts if proof.patched is not None else {}
    passed = counts.get("passed", 0)
    text = f"{verdict.value} {passed}/{sum(counts.values())}" if counts else verdict.value
    return f"{text}, known" if proof.remembered else f"{text}, {proof.seconds:.0f} s"


def _control_cell(row: Row) -> str:
    found = [
        f"{_control_word(proof)}: {proof.control_judgement.reason.rpartition('::')[2]}"
        for proof in row.proofs
        if proof.control_judgement is not None
    ]
    return "; ".join(dict.fromkeys(found)) or "-"


def _document(row: Row) -> dict[str, object]:
    composition = row.composition
    return {
        "name": row.name,
        "base": row.ref,
        "sha256": composition.application.patch.digest if composition else None,
        "prerequisites": dict(composition.prerequisites) if composition else {},
        "patches": list(composition.patches) if composition else [],
        "trees": {
            "base": composition.base_tree,
            "patched": composition.tree,
            "control": composition.control_tree,
        }
        if composition
        else None,
        "tiers": [_proof_document(proof) for proof in row.proofs],
    }


def _proof_document(proof: Proof) -> dict[str, object]:
    before, after = proof.upstream or (None, None)
    return {
        "tier": proof.tier,
        "outcome": proof.judgement.verdict.value,
        "reason": proof.judgement.reason,
        "selectors": [selector.text for selector in proof.selectors],
        "remembered": proof.remembered,
        "seconds": round(proof.seconds, 3),
        "patched": _run_document(proof.patched),
        "control": {
            **(_run_document(proof.control) or {}),
            "outcome": _control_word(proof),
            "reason": proof.control_judgement.reason,
        }
        if proof.control_judgement is not None
        else None,
        "upstream": {"base": _run_document(before), "patched": _run_document(after)} if after else None,
    }


def _run_document(run: TestRun | None) -> dict[str, object] | None:
    if run is None:
        return None
    return {
        "counts": run.counts,
        "seconds": round(run.seconds, 3),
        "stopped": run.stopped,
        "problem": run.problem,
        "foreign": list(run.foreign),
        "leftovers": list(run.leftovers),
        "tests": [
            {
                "node": test.node,
                "outcome": test.outcome.value,
                "seconds": round(test.seconds, 3),
                "reason": test.reason,
            }
            for test in run.tests
        ],
    }
