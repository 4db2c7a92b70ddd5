# SPDX-License-Identifier: Apache-2.0
"""``vllm-series upstream sync``."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path

from vllm_series.errors import EXIT_OK
from vllm_series.gh import Gh
from vllm_series.output import Output, plural
from vllm_series.project import Project, find_project, writing
from vllm_series.search import queries
from vllm_series.sendoff import UPSTREAM
from vllm_series.statusfile import Status, parse_status
from vllm_series.swap import staging_directory, swap_directory
from vllm_series.upstreamfacts import FILE, Facts, Search, Thread


def sync(out: Output, series_dir: Path | None) -> int:
    """Refresh what is known of the listed pull requests and issues, and search for duplicates."""
    project = find_project(series_dir)
    project.require_writable()
    rows = project.status.patches.values()
    listed = dict.fromkeys(n for row in rows for n in (row.pr, *row.prs, *row.issues) if n)
    numbers = " ".join(f"#{number}" for number in listed)
    gh = Gh.find(
        f"or look by hand at {numbers} on https://github.com/{UPSTREAM}, and set state in patches/status.toml"
    )
    with writing(project.root):
        # What is read before the lock may be another state by now.
        project = find_project(project.root)
        facts = _ask(out, project, gh)
        states = {
            name: state
            for name, status in project.status.patches.items()
            if (state := solved_by(status, facts)) != status.state
        }
        _write(project, facts, states)
    for name, state in states.items():
        out.say(f"{name}: its pull request was {project.status.of(name).state} and is {state}")
    found = {name: others(project.status.of(name), search) for name, search in facts.searches.items()}
    for name, others_found in found.items():
        for number in others_found:
            out.say(f"{name}: perhaps a duplicate: #{number} {facts.prs[number].title}")
    count = sum(map(len, found.values()))
    if count:
        out.note("read them; what is on the same ground belongs into prs of status.toml, with a differs text")
    out.say(
        f"ok: {plural(len(facts.prs), 'pull request')} and {plural(len(facts.issues), 'issue')} looked at, "
        f"{plural(len(states), 'state')} changed, {plural(count, 'candidate')} found"
    )
    return out.finish(
        EXIT_OK,
        date=facts.date,
        states=states,
        candidates={name: list(numbers) for name, numbers in found.items()},
    )


def solved_by(status: Status, facts: Facts) -> str:
    """The state of the pull request that would solve it: its own, else the first of the others'.

    Where nobody's does, as ``state = "none"`` says, the others' are neighbours, and that stays.
    """
    if status.pr:
        number = status.pr
    elif status.state != "none" and status.prs:
        number = status.prs[0]
    else:
        return status.state
    thread = facts.prs.get(number)
    return thread.state if thread is not None else status.state


def others(status: Status, search: Search) -> tuple[int, ...]:
    """What a search has found and ``status.toml`` does not list."""
    return tuple(number for number in search.numbers if number not in (status.pr, *status.prs))


def _ask(out: Output, project: Project, gh: Gh) -> Facts:
    prs: dict[int, Thread] = {}
    issues: dict[int, Thread] = {}
    searches: dict[str, Search] = {}
    for name in project.series.names:
        status = project.status.of(name)
        out.note(f"asking for {name}")
        for number in (status.pr, *status.prs):
            if number and number not in prs:
                prs[number] = gh.pull_request(number)
        for number in status.issues:
            if number not in issues:
                issues[number] = gh.issue(number)
        patch = project.patch(name, project.pinned)
        if patch is not None and status.intent != "never":
            asked = queries(patch, status)
            titles = {n: t for query in asked for n, t in gh.open_pull_requests(query).items()}
            for number, title in titles.items():
                prs.setdefault(number, Thread("open", title))
            searches[name] = Search(asked, tuple(sorted(titles)))
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return Facts(today, dict(sorted(prs.items())), dict(sorted(issues.items())), searches)


def _write(project: Project, facts: Facts, states: Mapping[str, str]) -> None:
    status = project.status
    for name, state in states.items():
        status = parse_status(status.edited(name, state=state))
    changed = {FILE: facts.render()}
    if states:
        changed["status.toml"] = status.text.encode()
    staging = staging_directory(project.patch_dir)
    for file, content in changed.items():
        (staging / file).write_bytes(content)
    swap_directory(project.patch_dir, staging)
