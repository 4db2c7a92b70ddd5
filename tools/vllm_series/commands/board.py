# SPDX-License-Identifier: Apache-2.0
"""``vllm-series board``, and the board of gates that ``export --check`` prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from vllm_series.board import Row, gates_text, links_of, markdown
from vllm_series.commands.fetch import bring
from vllm_series.errors import EXIT_NO, EXIT_OK, UsageError
from vllm_series.freshness import Standing, State, in_short, standings
from vllm_series.gates import FAMILIES, by_family
from vllm_series.gates.subject import Finding
from vllm_series.output import Output, plural
from vllm_series.plan import Target
from vllm_series.project import Project, find_project
from vllm_series.store import Store
from vllm_series.subjects import Reader, read_pipeline
from vllm_series.swap import write_file
from vllm_series.testtable import load_tests
from vllm_series.tiers import SELECTING
from vllm_series.upstreamfacts import load_facts


def board(out: Output, series_dir: Path | None, as_markdown: bool, html: Path | None, index: str) -> int:
    """Say per patch where it stands on its way upstream, and what to do next."""
    if as_markdown and html is not None:
        raise UsageError("--markdown and --html exclude each other")
    project = find_project(series_dir)
    if as_markdown:
        rows = project_rows(project)
        out.raw(markdown(rows).encode())
        return out.finish(EXIT_OK, markdown=markdown(rows))
    rows = gated_rows(out, project, None, index)
    if html is not None:
        from vllm_series.boardpage import page

        write_file(html.absolute(), page(rows, project.pinned.ref, load_facts(project).date).encode())
        out.say(f"ok: {plural(len(rows), 'patch')} in {html}")
        return out.finish(EXIT_OK, file=str(html.absolute()), patches=[row.document() for row in rows])
    out.table(
        ("patch", "upstream", "threads", "intent", "gates", "evidence"),
        [
            (
                row.name,
                row.upstream,
                ", ".join(link.text for link in row.links) or "-",
                row.status.intent,
                gates_text(row),
                in_short(row.standings),
            )
            for row in rows
        ],
    )
    out.say("\nnext:")
    for row in rows:
        out.say(f"  {row.name}: {row.next_step}")
    return out.finish(EXIT_OK, base=project.pinned.ref, patches=[row.document() for row in rows])


def project_rows(project: Project) -> list[Row]:
    """The rows from the project's files alone; no gate is run."""
    facts, found = load_facts(project), standings(project)
    rows = []
    for name in project.series.names:
        patch = project.patch(name, project.pinned)
        status = project.status.of(name)
        rows.append(
            Row(name, patch.subject if patch else "", status, found[name], {}, links_of(status, facts))
        )
    return rows


def gated_rows(out: Output, project: Project, onto: str | None, index: str) -> list[Row]:
    """The rows with the findings of every gate on a release; patches that it does not need have none."""
    store, ref = Store.default(), onto or project.pinned.ref
    target = Target.of(project, store.repository, bring(out, project, store, ref, index).commit)
    found = standings(project)
    table, pipeline = load_tests(project, SELECTING), read_pipeline(target.repository, target.commit)
    reader = Reader(project, target, ref, table, target.repository.identity(), pipeline)
    none = Standing(State.NONE)
    subjects = reader.board({name: row.get(ref, none) for name, row in found.items()})
    facts = load_facts(project)
    rows = []
    for name in project.series.names:
        subject, status = subjects.get(name), project.status.of(name)
        gates = by_family(subject) if subject is not None else {}
        title = subject.patch.subject if subject is not None else ""
        rows.append(Row(name, title, status, found[name], gates, links_of(status, facts)))
    return rows


def check_gates(out: Output, project: Project, names: Sequence[str], onto: str | None, index: str) -> int:
    """Run the gates and print their board: per patch and family, then every finding with its fix."""
    rows = [row for row in gated_rows(out, project, onto, index) if row.name in names]
    shown = [row for row in rows if row.gates]
    out.table(
        ("patch", *FAMILIES),
        [
            (
                row.name,
                *(", ".join(dict.fromkeys(f.code for f in row.gates[family])) or "ok" for family in FAMILIES),
            )
            for row in shown
        ],
    )
    tell_findings(out.say, {row.name: row.findings for row in shown})
    bad = [row for row in shown if row.findings]
    out.say(f"{plural(len(shown), 'patch')} looked at; ready to be sent: {len(shown) - len(bad)}")
    return out.finish(
        EXIT_NO if bad else EXIT_OK, base=onto or project.pinned.ref, patches=[row.document() for row in rows]
    )


def tell_findings(write: Callable[[str], None], by_patch: Mapping[str, Sequence[Finding]]) -> None:
    """Write every finding with its fix, the same one of several patches once."""
    found: dict[Finding, list[str]] = {}
    for name, findings in by_patch.items():
        for finding in findings:
            found.setdefault(finding, []).append(name)
    for finding, names in found.items():
        every = len(names) == len(by_patch) > 1
        write(f"{'every patch' if every else ', '.join(names)}: [{finding.code}] {finding.text}")
        write(f"  {finding.fix}")
