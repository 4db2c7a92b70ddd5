# SPDX-License-Identifier: Apache-2.0
"""``vllm-series rebase``."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from vllm_series.bases import version_of
from vllm_series.commands.fetch import bring
from vllm_series.errors import (
    EXIT_CONFLICT,
    EXIT_OK,
    InterruptedRunError,
    UsageError,
)
from vllm_series.locks import locked
from vllm_series.neutral import Neutrality
from vllm_series.output import Output, plural
from vllm_series.project import Project, find_project
from vllm_series.rebase import Outcome, Question, Session
from vllm_series.store import Store
from vllm_series.upstreamchange import UpstreamChange
from vllm_series.verdict import Verdict

#: How many lines of an upstream change are shown.
SHOWN = 12


@dataclass(frozen=True)
class RebaseOptions:
    """The arguments of ``rebase``, as documented on the command line."""

    ref: str | None = None
    go_on: bool = False
    skip: str | None = None
    abort: bool = False
    vllm: Path | None = None
    index: str = ""


def rebase(out: Output, series_dir: Path | None, options: RebaseOptions) -> int:
    """Carry the series to another release of vLLM."""
    asked = (options.ref is not None, options.go_on, options.skip is not None, options.abort)
    if sum(asked) != 1:
        raise UsageError(
            "name a release, or one of --continue, --skip and --abort",
            hint="such as: vllm-series rebase v0.34.0",
        )
    if options.skip is not None and not options.skip.strip():
        raise UsageError("--skip needs a reason", hint="it goes into patches/dropped.toml")
    project = find_project(series_dir)
    project.require_writable()
    store = Store.default()
    if options.ref is not None:
        done = _already(out, project, options.ref)
        if done is not None:
            return done
        for ref in (project.base_for(options.ref).ref, options.ref):
            bring(out, project, store, ref, options.index)
    with locked(store.lock_path, f"the cache {store.folder}"):
        session = Session(project, store)
        try:
            if options.abort:
                return _aborted(out, project, session.abort())
            outcome = _step(session, options)
        except KeyboardInterrupt:
            if not session.path.exists():
                raise
            raise InterruptedRunError(
                "interrupted; the rebase stays in progress",
                hint="go on with: vllm-series rebase --continue, or take it back with --abort",
            ) from None
    return _finish(out, project, outcome)


def _step(session: Session, options: RebaseOptions) -> Outcome:
    if options.ref is not None:
        return session.start(options.ref, options.vllm)
    if options.skip is not None:
        return session.skip(" ".join(options.skip.split()))
    return session.resume()


def _already(out: Output, project: Project, ref: str) -> int | None:
    """The exit code if there is nothing to carry to ``ref``."""
    if version_of(ref) is None:
        raise UsageError(
            f"{ref} is no vLLM release tag",
            hint="a base is a release like v0.34.0; to see where the series stands on any other commit: "
            "vllm-series status --vllm PATH --onto REF",
        )
    if ref == project.pinned.ref:
        out.say(f"nothing to do: the series is made for {ref}")
        return out.finish(EXIT_OK, root=str(project.root), action="unchanged", ref=ref)
    if any(base.ref == ref for base in project.bases):
        raise UsageError(
            f"{ref} is a supported base already",
            hint=f"see where the series stands there: vllm-series status --onto {ref}",
        )
    return None


def _aborted(out: Output, project: Project, outcome: Outcome | None) -> int:
    if outcome is None:
        out.say("there was no rebase to take back")
    else:
        for note in outcome.notes:
            out.note(note)
        out.say(f"took the rebase onto {outcome.state.ref} back; series and patches are as they were")
    return out.finish(EXIT_OK, root=str(project.root), action="aborted" if outcome else "unchanged")


def _finish(out: Output, project: Project, outcome: Outcome) -> int:
    state = outcome.state
    for note in outcome.notes:
        out.note(note)
    for item in outcome.news:
        verdict = item.verdict
        if verdict.verdict is Verdict.CONTEXT_DRIFT:
            out.note(f"{verdict.name}: {verdict.evidence}")
        if verdict.strayed:
            hunk = next(h for h in verdict.hunks if h.strayed)
            out.warn(
                f"{verdict.name}: {hunk.path} hunk {hunk.number} is in {hunk.scope or 'the module'} now, and "
                f"was in {hunk.scope_expected or 'the module'}"
            )
    if outcome.question is None:
        _say_end(out, outcome)
        action = "finished"
    else:
        _say_question(out, outcome, outcome.question)
        action = "paused"
    return out.finish(
        EXIT_OK if outcome.question is None else EXIT_CONFLICT,
        root=str(project.root),
        action=action,
        ref=state.ref,
        source=state.source,
        carried=[vars(row) for row in state.carried],
        dropped=[vars(row) for row in state.gone],
        notes=outcome.notes,
        question=_question_document(outcome.question) if outcome.question else None,
        report=_report_document(outcome.report) if outcome.report else None,
        files=list(outcome.files),
    )


def _say_end(out: Output, outcome: Outcome) -> None:
    state, report = outcome.state, outcome.report
    rows = [(row.name, row.how, _patch_note(report, row.name)) for row in state.carried]
    rows += [(row.name, row.verdict, f"dropped: {row.reason}") for row in state.gone]
    out.table(("patch", "result", "evidence"), rows)
    if report is not None:
        untouched = sum(not patch.touched for patch in report.patches)
        same = f"{plural(untouched, 'untouched patch')} with the same lines in the same functions"
        out.say(
            f"neutral: {same}; {plural(report.files, 'file')} compared, "
            f"{plural(report.explained, 'line')} differ, all of patches that were merged, resolved or dropped"
        )
    out.say(f"ok: the series is on {state.ref}; {plural(len(outcome.files), 'file')} of patches/ changed")


def _patch_note(report: Neutrality | None, name: str) -> str:
    found = next((p for p in report.patches if p.name == name), None) if report else None
    if found is None:
        return ""
    if found.patch_id:
        return "same patch id"
    return "same lines" if found.lines else "other lines"


def _say_question(out: Output, outcome: Outcome, question: Question) -> None:
    state, verdict = outcome.state, question.step.verdict
    settled = f"{len(state.carried)} carried over, {len(state.gone)} not needed"
    out.note(
        f"rebase onto {state.ref}: stopped at patch {question.number} of {question.total}: {verdict.name} "
        f"({settled})"
    )
    out.note(f"  {verdict.verdict.value}: {verdict.evidence}")
    for candidate in verdict.candidates:
        out.note(f"  its lines now stand in {candidate}")
    if verdict.verdict is Verdict.UPSTREAM_PARTIAL:
        for hunk in verdict.hunks:
            out.note(f"  {hunk.path} hunk {hunk.number}: {hunk.state}")
    for change in question.upstream:
        _say_upstream(out, change)
    for command in _commands(question):
        out.note(f"  {command}")


def _say_upstream(out: Output, change: UpstreamChange) -> None:
    by = f", in {'; '.join(change.sources)}" if change.sources else ""
    lines = [f"{sign}{_text(content)}" for c in change.changes for sign, content in c.lines]
    what = "upstream changed these lines" if lines else "upstream has not changed these lines"
    out.note(f"  {change.path} hunk {change.number} (line {change.line}): {what}{by}")
    for line in lines[:SHOWN]:
        out.note(f"    {line}")
    if len(lines) > SHOWN:
        out.note(f"    and {plural(len(lines) - SHOWN, 'more line')}")


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace").rstrip("\r\n")


def _commands(question: Question) -> Iterable[str]:
    """What to do next, as commands."""
    where = shlex.quote(str(question.tree))
    verdict = question.step.verdict.verdict
    if verdict is Verdict.UPSTREAM_EQUIVALENT:
        yield "if upstream has it: vllm-series rebase --skip 'REASON'"
        yield f"if not: commit what is missing in {where}, then: vllm-series rebase --continue"
    elif question.conflicts:
        names = " ".join(shlex.quote(path) for path in question.conflicts)
        yield f"edit in {where}: {names}"
        yield f"then: git -C {where} add {names} && vllm-series rebase --continue"
    else:
        yield f"look at it: git -C {where} show"
        yield "then: vllm-series rebase --continue"
    if verdict is not Verdict.UPSTREAM_EQUIVALENT and question.droppable:
        yield "or drop the patch: vllm-series rebase --skip 'REASON'"
    yield "or take everything back: vllm-series rebase --abort"


def _question_document(question: Question) -> dict[str, object]:
    verdict = question.step.verdict
    return {
        "patch": verdict.name,
        "number": question.number,
        "total": question.total,
        "verdict": verdict.verdict.value,
        "evidence": verdict.evidence,
        "candidates": list(verdict.candidates),
        "hunks": [vars(hunk) for hunk in verdict.hunks],
        "conflicts": list(question.conflicts),
        "upstream": [
            {
                "path": change.path,
                "hunk": change.number,
                "line": change.line,
                "sources": list(change.sources),
                "lines": [f"{sign}{_text(content)}" for c in change.changes for sign, content in c.lines],
            }
            for change in question.upstream
        ],
        "tree": str(question.tree),
        "next": list(_commands(question)),
    }


def _report_document(report: Neutrality) -> dict[str, object]:
    return {
        "ok": report.ok,
        "files": report.files,
        "explained": report.explained,
        "unexplained": [vars(difference) for difference in report.unexplained],
        "patches": [
            {
                "name": patch.name,
                "how": patch.how,
                "patch_id": patch.patch_id,
                "lines": patch.lines,
                "scopes": list(patch.scopes),
            }
            for patch in report.patches
        ],
    }
