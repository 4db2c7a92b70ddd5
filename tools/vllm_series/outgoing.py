# SPDX-License-Identifier: Apache-2.0
"""One patch on its way out: its branch, the evidence about exactly that tree, and the files beside it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vllm_series.evidence import Binding, Evidence
from vllm_series.export import Branch, branch_of, range_diff
from vllm_series.freshness import Standing, State, standing
from vllm_series.gates.subject import Finding
from vllm_series.plan import Plan, Target
from vllm_series.project import Project
from vllm_series.pullrequest import TEMPLATE, Request, render
from vllm_series.search import commands as search_commands
from vllm_series.sendoff import Place
from vllm_series.sendoff import render as render_sendoff
from vllm_series.tiers import RECORDED
from vllm_series.upstreamfacts import Facts


@dataclass(frozen=True)
class Item:
    """One patch on its way out."""

    name: str
    plan: Plan
    branch: Branch
    standing: Standing
    findings: tuple[Finding, ...] = ()


def recorded_for(project: Project, target: Target, plan: Plan, branch: Branch) -> Standing:
    """The recorded evidence that is about exactly the tree of a branch, and any from a GPU machine.

    The latter runs on the trees that were carried there, and the pull request says so.
    """
    tree = target.repository.trees([branch.tip])[0]
    found = standing(project, branch.name, target.serving)
    if found.state is not State.FRESH or found.evidence is None:
        return found
    tiers = {
        tier: entry
        for tier, entry in found.evidence.tiers.items()
        if entry.get("tree") == tree or tier in RECORDED
    }
    if not tiers:
        return Standing(State.NONE, "what is recorded was run among other patches or on another base")
    return Standing(State.FRESH, "", Evidence(binding_of(target, plan, branch), tiers))


def binding_of(target: Target, plan: Plan, branch: Branch) -> Binding:
    """What evidence of a branch is about."""
    digests = {a.patch.name: a.patch.digest for a in plan.applications}
    needs = {name: digests[name] for name in branch.prerequisites}
    return Binding(branch.name, digests[branch.name], target.serving.ref, target.commit, needs)


def files_of(
    project: Project, item: Item, ref: str, place: Place, facts: Facts, folder: Path
) -> Mapping[str, bytes]:
    """The files of one folder."""
    repository, branch, status = item.plan.target.repository, item.branch, project.status.of(item.name)
    fresh = item.standing.state is State.FRESH and item.standing.evidence is not None
    tiers = item.standing.evidence.tiers if fresh and item.standing.evidence else {}
    template = repository.entries(branch.base, [TEMPLATE])
    text = repository.objects([entry.oid for entry in template.values()])
    request = Request(
        branch, ref, status, tiers, facts, "".join(raw.decode("utf-8", "replace") for raw in text.values())
    )
    body = render(request).encode("utf-8", "replace")
    searches = () if item.name in facts.searches else search_commands(branch.patch, status)
    sendoff = render_sendoff(
        item.name,
        branch.patch.subject,
        branch.base,
        place,
        folder / "PULL_REQUEST.md",
        item.findings,
        searches,
    )
    evidence = {
        "schema": 1,
        "patch": item.name,
        "branch": branch_of(item.name),
        "base": {"ref": ref, "commit": branch.base},
        "commits": list(branch.commits),
        "tree": repository.trees([branch.tip])[0],
        "sha256": branch.patch.digest,
        "prerequisites": dict(binding_of(item.plan.target, item.plan, branch).prerequisites),
        "tiers": {tier: dict(entry) for tier, entry in sorted(tiers.items())},
        "findings": [vars(finding) for finding in item.findings],
        "pull_request_sha256": hashlib.sha256(body).hexdigest(),
    }
    found = {
        "PULL_REQUEST.md": body,
        "SEND.md": sendoff.encode("utf-8", "replace"),
        "evidence.json": (json.dumps(evidence, indent=2) + "\n").encode(),
    }
    compared = range_diff(repository, branch)
    if compared:
        found["range-diff.txt"] = compared.encode("utf-8", "replace")
    return found
