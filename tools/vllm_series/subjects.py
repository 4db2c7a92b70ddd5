# SPDX-License-Identifier: Apache-2.0
"""Read what the gates look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vllm_series.dependencies import closure, prerequisites
from vllm_series.export import Person
from vllm_series.freshness import Standing
from vllm_series.gates.subject import Subject, text_of
from vllm_series.git import Repository
from vllm_series.patchfile import paths_of
from vllm_series.plan import Plan, Target, make_plan
from vllm_series.project import Project
from vllm_series.stack import Application
from vllm_series.statusfile import Status, StatusFile
from vllm_series.testtable import TestTable
from vllm_series.tree import Snapshot

#: Where upstream's test pipeline stands.
PIPELINE = ".buildkite"
_PIPELINE_FILES = (f"{PIPELINE}/test_areas/", f"{PIPELINE}/test-pipeline.y")


@dataclass(frozen=True)
class Reader:
    """What subjects are made from, read once for all of them.

    Attributes:
        project: The patch directory.
        target: The base.
        ref: The base's name.
        table: ``tests.toml``.
        signer: Who would submit.
        pipeline: The base's test pipeline.

    """

    project: Project
    target: Target
    ref: str
    table: TestTable
    signer: Person | None
    pipeline: Mapping[str, str]

    def subject(self, plan: Plan, name: str, needs: Mapping[str, Status], standing: Standing) -> Subject:
        """The subject of a patch among the applications of ``plan``."""
        snapshot = _base(plan)
        applied: Application | None = None
        for application in plan.applications:
            if application.patch.name == name:
                applied = application
                break
            snapshot = snapshot.with_changes(application.changes)
        assert applied is not None, name
        after = snapshot.with_changes(applied.changes)
        status = self.project.status
        return Subject(
            application=applied,
            status=status.of(name),
            before={path: text_of(snapshot.get(path)) for path in applied.patch.paths},
            pipeline=_overlaid(self.pipeline, after),
            standing=standing,
            has_tests=any(self.table.of(name, self.target.serving.ref).tiers.values()),
            base=self.ref,
            prerequisites=needs,
            open_requests=open_requests(status),
            signer=self.signer,
        )

    def board(self, standings: Mapping[str, Standing]) -> dict[str, Subject]:
        """The subjects of every patch that the base needs, each on the patches before it."""
        plan = make_plan(self.project, self.target, None)
        needs = prerequisites(_base(plan), [application.patch for application in plan.applications])
        found = {}
        for application in plan.applications:
            name = application.patch.name
            every = closure(needs, [name])
            wanted = {need: self.project.status.of(need) for need in needs if need in every}
            found[name] = self.subject(plan, name, wanted, standings[name])
        return found


def open_requests(status: StatusFile) -> tuple[int, ...]:
    """The open pull requests that were made of this series."""
    return tuple(row.pr for row in status.patches.values() if row.pr and row.state == "open")


def read_pipeline(repository: Repository, commit: str) -> dict[str, str]:
    """The texts of the test pipeline of ``commit`` by path."""
    entries = repository.all_entries(commit, PIPELINE)
    wanted = {path: entry.oid for path, entry in entries.items() if path.startswith(_PIPELINE_FILES)}
    contents = repository.objects(wanted.values())
    return {path: contents[oid].decode("utf-8", "replace") for path, oid in wanted.items() if oid in contents}


def _overlaid(pipeline: Mapping[str, str], after: Snapshot) -> dict[str, str]:
    changed = {p: text_of(file) for p, file in after.changed.items() if p.startswith(_PIPELINE_FILES)}
    return {path: text for path, text in {**pipeline, **changed}.items() if text is not None}


def _base(plan: Plan) -> Snapshot:
    paths = paths_of(application.patch for application in plan.applications)
    return Snapshot.at(plan.target.repository, plan.target.commit, paths)
