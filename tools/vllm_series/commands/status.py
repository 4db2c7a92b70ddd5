# SPDX-License-Identifier: Apache-2.0
"""``vllm-series status``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vllm_series.checkout import read_stack
from vllm_series.commands.fetch import bring
from vllm_series.errors import EXIT_NO, EXIT_OK
from vllm_series.freshness import Standing, in_short, standing
from vllm_series.git import Repository
from vllm_series.output import Output, plural
from vllm_series.plan import Target
from vllm_series.project import Project, find_project
from vllm_series.store import Store
from vllm_series.verdict import HunkVerdict, PatchVerdict, judge

#: The evidence by patch and target.
_Tests = Mapping[str, Mapping[str, Standing]]


@dataclass(frozen=True)
class StatusOptions:
    """The arguments of ``status``, as documented on the command line."""

    onto: tuple[str, ...] = ()
    vllm: Path | None = None
    strict: bool = False
    hunks: bool = False
    index: str = ""


def status(out: Output, series_dir: Path | None, options: StatusOptions) -> int:
    """Judge the series on one or several bases; several give the matrix patch x base."""
    project = find_project(series_dir)
    store = Store.default()
    targets = _targets(out, project, store, options)
    judged = [(ref, target, judge(project, target, store)) for ref, target in targets]
    tests = _standings(project, targets)
    if len(judged) == 1:
        _print_one(out, *judged[0], options.hunks, tests)
    else:
        _print_matrix(out, judged, tests)
        if options.hunks:
            for row in judged:
                _print_one(out, *row, True, tests)
    strayed = [
        (ref, patch, hunk)
        for ref, _, patches in judged
        for patch in patches
        for hunk in patch.hunks
        if hunk.strayed
    ]
    for ref, patch, hunk in strayed:
        out.warn(
            f"{patch.name} on {ref}: {hunk.path} hunk {hunk.number} landed in "
            f"{hunk.scope or 'the module'}, and was made for {hunk.scope_expected or 'the module'}"
        )
    good = all(patch.verdict.good for _, _, patches in judged for patch in patches)
    failed = not good or (options.strict and bool(strayed))
    return out.finish(
        EXIT_NO if failed else EXIT_OK,
        root=str(project.root),
        bases=[_document(ref, target, patches, tests) for ref, target, patches in judged],
    )


def _targets(out: Output, project: Project, store: Store, options: StatusOptions) -> list[tuple[str, Target]]:
    if options.vllm is not None:
        repository = Repository.open(options.vllm.absolute())
        refs = options.onto
        if not refs:
            head = repository.commit("HEAD")
            stack = read_stack(repository, head)
            if stack.commits:
                out.note(f"judging what is below the {plural(len(stack.commits), 'series commit')} of HEAD")
            return [("HEAD", Target.of(project, repository, stack.base))]
        return [(ref, Target.of(project, repository, repository.commit(ref))) for ref in refs]
    refs = options.onto or tuple(base.ref for base in project.bases)
    return [
        (
            ref,
            Target.of(project, store.repository, bring(out, project, store, ref, options.index).commit),
        )
        for ref in refs
    ]


def _standings(project: Project, targets: Sequence[tuple[str, Target]]) -> _Tests:
    """The evidence of every patch on those targets that are supported bases."""
    bases = [(ref, base) for ref, target in targets for base in project.bases if base.commit == target.commit]
    return {
        name: {ref: standing(project, name, base) for ref, base in bases} for name in project.series.names
    }


def _print_matrix(
    out: Output, judged: Sequence[tuple[str, Target, list[PatchVerdict]]], tests: _Tests
) -> None:
    names = [patch.name for patch in judged[0][2]]
    rows = [
        (name, *(_cell(patches[number]) for _, _, patches in judged), in_short(tests[name]))
        for number, name in enumerate(names)
    ]
    out.table(("patch", *(ref for ref, _, _ in judged), "tests"), rows)


def _cell(patch: PatchVerdict) -> str:
    variant = " (variant)" if patch.file and "/" in patch.file else ""
    return f"{patch.verdict}{variant}"


def _print_one(
    out: Output, ref: str, target: Target, patches: Sequence[PatchVerdict], hunks: bool, tests: _Tests
) -> None:
    out.say(f"{ref}: vLLM {target.label}, patch files for {target.serving.ref}")
    rows = []
    for patch in patches:
        evidence = patch.evidence
        if patch.candidates:
            evidence += f"; candidates: {', '.join(patch.candidates)}"
        tested = tests[patch.name].get(ref)
        told = tested.text if tested is not None else "-"
        rows.append((patch.name, patch.verdict.value, patch.file or "-", told, evidence))
        if hunks:
            rows += [("", f"  {_hunk_state(h)}", "", "", _hunk_place(h)) for h in patch.hunks]
    out.table(("patch", "verdict", "file", "tests", "evidence"), rows)


def _hunk_state(hunk: HunkVerdict) -> str:
    return f"{hunk.state} {hunk.offset:+d}" if hunk.offset else hunk.state


def _hunk_place(hunk: HunkVerdict) -> str:
    where = f"{hunk.path} hunk {hunk.number}"
    if hunk.line:
        where += f" at line {hunk.line} in {hunk.scope or 'the module'}"
    if hunk.strayed:
        where += f", made for {hunk.scope_expected or 'the module'}"
    return where


def _document(ref: str, target: Target, patches: Sequence[PatchVerdict], tests: _Tests) -> dict[str, object]:
    return {
        "ref": ref,
        "commit": target.commit,
        "release": target.release,
        "files": target.serving.ref,
        "patches": [
            {
                "name": patch.name,
                "file": patch.file,
                "verdict": patch.verdict.value,
                "evidence": patch.evidence,
                "tests": found.document() if (found := tests[patch.name].get(ref)) is not None else None,
                "candidates": list(patch.candidates),
                "hunks": [
                    {
                        "path": hunk.path,
                        "number": hunk.number,
                        "state": hunk.state,
                        "line": hunk.line,
                        "offset": hunk.offset,
                        "scope": hunk.scope,
                        "scope_expected": hunk.scope_expected,
                    }
                    for hunk in patch.hunks
                ],
            }
            for patch in patches
        ],
    }
