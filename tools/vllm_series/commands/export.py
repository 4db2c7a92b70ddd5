# SPDX-License-Identifier: Apache-2.0
"""``vllm-series export``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from vllm_series.bases import version_of
from vllm_series.checkout import opened
from vllm_series.commands.board import check_gates, tell_findings
from vllm_series.commands.fetch import bring
from vllm_series.commands.test import TestOptions, proof_entry, run_proofs
from vllm_series.compose import Mode
from vllm_series.errors import EXIT_CONFLICT, EXIT_NO, EXIT_OK, ConflictError, PreconditionError, UsageError
from vllm_series.evidence import Evidence
from vllm_series.export import Branch, Person, branch_of, build_branch, move_branches, require_free
from vllm_series.folder import edited, write_folder
from vllm_series.freshness import Standing, State
from vllm_series.gates import examine
from vllm_series.gates.message import is_person
from vllm_series.git import Repository
from vllm_series.locks import locked
from vllm_series.outgoing import Item, binding_of, files_of, recorded_for
from vllm_series.output import Output, plural
from vllm_series.plan import Plan, Target, make_plan
from vllm_series.project import Project, find_project
from vllm_series.proof import Verdict
from vllm_series.releases import is_import
from vllm_series.sendoff import Place, create_line, find_place, push_line
from vllm_series.store import Store
from vllm_series.subjects import Reader, read_pipeline
from vllm_series.testtable import load_tests
from vllm_series.tiers import SELECTING
from vllm_series.upstreamfacts import load_facts

_WHO = "git config --global user.name 'Your Name'; git config --global user.email you@example.org"


@dataclass(frozen=True)
class ExportOptions:
    """The arguments of ``export``, as documented on the command line."""

    names: tuple[str, ...] | None = None
    onto: str | None = None
    vllm: Path | None = None
    into: Path = Path("export")
    check: bool = False
    test: bool = True
    reset_author: bool = False
    push: str = ""
    index: str = ""


def export(out: Output, series_dir: Path | None, options: ExportOptions) -> int:
    """Make a branch and a folder for each patch, ready to be reviewed and sent by a person."""
    project = find_project(series_dir)
    chosen = project.known(options.names)
    names = [name for name in project.series.names if name in chosen]
    if options.check:
        if options.push or options.vllm is not None:
            raise UsageError(
                "--check looks only, at the supported releases", hint="leave --push and --vllm out"
            )
        return check_gates(out, project, names, options.onto, options.index)
    store = Store.default()
    with ExitStack() as stack:
        if options.vllm is not None:
            repository = stack.enter_context(opened(options.vllm.absolute(), out.note))
            ref = options.onto or _upstream_ref(repository)
            commit = repository.commit(ref)
        else:
            ref = options.onto or max(project.bases, key=lambda base: version_of(base.ref) or ()).ref
            commit = bring(out, project, store, ref, options.index).commit
            repository = store.repository
            stack.enter_context(locked(store.lock_path, f"the cache {store.folder}"))
        if options.push and is_import(repository, commit):
            raise PreconditionError(
                f"{ref} came from the package index: it shares no history with vLLM and cannot be pushed",
                hint="export in a clone of vLLM, onto its main: --vllm PATH",
            )
        target = Target.of(project, repository, commit)
        signer = _signer(repository)
        return _export(out, project, store, target, ref, names, signer, options)


def _signer(repository: Repository) -> Person:
    """Who runs this: the person that signs off.

    Raises:
        PreconditionError: git does not know, or it is no person.

    """
    found = repository.identity()
    if found is None:
        raise PreconditionError("git does not know who signs the commits off", hint=_WHO)
    if not is_person(*found):
        raise PreconditionError(f"{found[0]} <{found[1]}> is no person who can sign off", hint=_WHO)
    return found


def _upstream_ref(repository: Repository) -> str:
    """Upstream's newest commit that a clone knows."""
    remotes = repository.remotes()
    own = [name for name, url in remotes.items() if "vllm-project/vllm" in url]
    for name in (*own, "origin"):
        if repository.find_commit(f"refs/remotes/{name}/main"):
            return f"{name}/main"
    raise UsageError(f"{repository.where} knows no upstream main", hint="name a commit with --onto")


def _export(
    out: Output,
    project: Project,
    store: Store,
    target: Target,
    ref: str,
    names: Sequence[str],
    signer: Person,
    options: ExportOptions,
) -> int:
    repository, into = target.repository, options.into.absolute()
    rows: list[tuple[str, str, str]] = []
    built: list[tuple[Plan, Branch]] = []
    hints: list[str] = []
    for name in names:
        try:
            plan = make_plan(project, target, [name])
        except ConflictError as error:
            rows.append((name, "conflict", error.message))
            hints.append(error.hint)
            continue
        branch = build_branch(plan, name, signer, reset_author=options.reset_author)
        if branch is None:
            rows.append((name, "not needed", f"{ref} has it"))
            continue
        require_free(repository, name)
        if edited(into / name):
            raise PreconditionError(
                f"{into / name / 'PULL_REQUEST.md'} was edited by hand",
                hint="move it away to have it written anew, or name another folder with --into",
            )
        built.append((plan, branch))
    standings = {b.name: recorded_for(project, target, plan, b) for plan, b in built}
    if options.test and built:
        _prove(out, project, store, target, ref, standings, built)
    reader = Reader(
        project, target, ref, load_tests(project, SELECTING), signer, read_pipeline(repository, target.commit)
    )
    facts = load_facts(project)
    imported = is_import(repository, target.commit)
    place = find_place(repository.where, imported, repository.remotes(), options.push)
    items = []
    for plan, branch in built:
        needs = {name: project.status.of(name) for name in branch.prerequisites}
        subject = reader.subject(plan, branch.name, needs, standings[branch.name])
        if options.reset_author:
            application = subject.application
            author = replace(application.patch.author, name=signer[0], email=signer[1])
            patch = replace(application.patch, author=author)
            subject = replace(subject, application=replace(application, patch=patch))
        items.append(Item(branch.name, plan, branch, standings[branch.name], examine(subject)))
    for item in items:
        write_folder(into / item.name, files_of(project, item, ref, place, facts, into / item.name))
    move_branches(repository, [item.branch for item in items])
    rows += [(item.name, branch_of(item.name), _said(item)) for item in items]
    order = list(names)
    out.table(("patch", "branch", "gates"), sorted(rows, key=lambda row: order.index(row[0])))
    for hint in dict.fromkeys(hints):
        out.note(hint)
    tell_findings(out.note, {item.name: item.findings for item in items})
    ready = [item for item in items if not item.findings]
    pushed = _push(out, repository, items, ready, options.push)
    if items:
        where = f"{repository.where}, folders in {into}"
        count = f"0, since {ref} came from the package index" if imported else str(len(ready))
        out.say(f"{plural(len(items), 'branch')} in {where}; ready to be sent: {count}")
    code = EXIT_CONFLICT if hints else EXIT_OK if len(ready) == len(items) else EXIT_NO
    return out.finish(
        code,
        base={"ref": ref, "commit": target.commit},
        repository=str(repository.where),
        folder=str(into),
        patches=[_document(item, place, into, item.name in pushed) for item in items],
        skipped=[{"name": n, "state": s, "reason": r} for n, s, r in rows if s in ("conflict", "not needed")],
    )


def _prove(
    out: Output,
    project: Project,
    store: Store,
    target: Target,
    ref: str,
    standings: dict[str, Standing],
    built: Sequence[tuple[Plan, Branch]],
) -> None:
    """Run what is not known: the closure of each patch alone on the base."""
    names = [branch.name for _, branch in built]
    proofs = run_proofs(out, project, store, [(ref, target)], names, TestOptions(each=True))
    for (plan, branch), row in zip(built, proofs.rows, strict=True):
        if row.composition is None:
            continue
        tiers = {
            proof.tier: proof_entry(proofs.environment, row, row.composition, proof, Mode.EACH)
            for proof in row.proofs
            if proof.judgement.verdict is not Verdict.NO_TESTS
        }
        before = standings[branch.name].evidence
        known = before.tiers if before and standings[branch.name].state is State.FRESH else {}
        evidence = Evidence(binding_of(target, plan, branch), {**known, **tiers})
        standings[branch.name] = Standing(State.FRESH, "", evidence)


def _said(item: Item) -> str:
    return ", ".join(dict.fromkeys(finding.code for finding in item.findings)) or "ok"


def _push(
    out: Output, repository: Repository, items: Sequence[Item], ready: Sequence[Item], remote: str
) -> set[str]:
    if not remote:
        return set()
    for item in items:
        if item not in ready:
            out.warn(f"{branch_of(item.name)} was not pushed: {_said(item)}")
    for item in ready:
        repository.push(remote, branch_of(item.name))
        out.say(f"pushed {branch_of(item.name)} to {remote}")
    return {item.name for item in ready}


def _document(item: Item, place: Place, into: Path, pushed: bool) -> dict[str, object]:
    body = into / item.name / "PULL_REQUEST.md"
    return {
        "name": item.name,
        "branch": branch_of(item.name),
        "commits": list(item.branch.commits),
        "closure": [application.patch.name for application in item.branch.applications],
        "folder": str(into / item.name),
        "evidence": item.standing.document(),
        "findings": [vars(finding) for finding in item.findings],
        "push": push_line(item.name, place),
        "create": create_line(item.name, item.branch.patch.subject, place, body),
        "pushed": pushed,
    }
