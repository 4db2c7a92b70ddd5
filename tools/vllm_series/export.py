# SPDX-License-Identifier: Apache-2.0
"""The branch of a pull request: the closure of one patch alone on a base, as it leaves this repository."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vllm_series.build import commit_stack, drop_build_ref
from vllm_series.errors import PreconditionError
from vllm_series.git import Repository
from vllm_series.patchfile import Patch
from vllm_series.plan import Plan
from vllm_series.stack import Application

#: Trailers that mean something in this repository alone.
LOCAL_TRAILERS = frozenset({"patch-name", "origin", "depends-on", "bug", "upstream"})
SIGN_OFF = "Signed-off-by"
#: Trailers that tell of help by a model.
ASSISTED = frozenset({"assisted-by", "generated-by"})

Person = tuple[str, str]


def branch_of(name: str) -> str:
    """The branch of the patch ``name``."""
    return f"pr/{name}"


def _mark(name: str, what: str) -> str:
    """Remembers the last export, so that the next one can be compared with it."""
    return f"refs/vllm-series/export/{name}/{what}"


def outgoing_body(patch: Patch, signer: Person) -> str:
    """The message behind the subject: without local trailers, signed off by ``signer`` as the last one."""
    paragraphs = patch.body.split("\n\n") if patch.body else []
    trailers: list[str] = []
    if patch.trailers and paragraphs:
        paragraphs.pop()
        trailers = [f"{key}: {value}" for key, value in patch.trailers if key.lower() not in LOCAL_TRAILERS]
    own = f"{SIGN_OFF}: {signer[0]} <{signer[1]}>"
    trailers = [line for line in trailers if line.lower() != own.lower()]
    return "\n\n".join([*paragraphs, "\n".join([*trailers, own])])


def assistants(patches: Sequence[Patch]) -> list[str]:
    """Models that helped, as trailers say; each once."""
    found = [
        value
        for patch in patches
        for key, value in patch.trailers
        if key.lower() in ASSISTED or (key.lower() == "co-authored-by" and _is_model(value))
    ]
    return list(dict.fromkeys(found))


def _is_model(value: str) -> bool:
    return re.search(r"@(anthropic|openai)\.com>|\[bot\]", value, re.IGNORECASE) is not None


@dataclass(frozen=True)
class Branch:
    """The commits of one export, as objects, and what was exported before.

    Attributes:
        name: The patch.
        base: The commit below.
        applications: The closure, the patch last.
        commits: One per application.
        previous: Base and tip of the last export, None if this is the first.

    """

    name: str
    base: str
    applications: tuple[Application, ...]
    commits: tuple[str, ...]
    previous: tuple[str, str] | None = None

    @property
    def tip(self) -> str:
        """The last commit."""
        return self.commits[-1]

    @property
    def patch(self) -> Patch:
        """The patch that is exported."""
        return self.applications[-1].patch

    @property
    def prerequisites(self) -> tuple[str, ...]:
        """Names of the patches below it."""
        return tuple(application.patch.name for application in self.applications[:-1])


def build_branch(plan: Plan, name: str, signer: Person, *, reset_author: bool = False) -> Branch | None:
    """Write the commits of a plan for the patch ``name`` alone; nothing points at them yet.

    Author and dates come from the patches, so the same export by the same person has the same commit ids.

    Args:
        plan: What applying the patch and its prerequisites does.
        name: The patch.
        signer: Who commits and signs off.
        reset_author: Whether the signer is the author too.

    Returns:
        The branch, None if the base does not need the patch.

    """
    if all(application.patch.name != name for application in plan.applications):
        return None
    repository, base = plan.target.repository, plan.target.commit
    leaving = [_outgoing(application, signer, reset_author) for application in plan.applications]
    commits = commit_stack(repository, base, leaving, signer)
    marks = [repository.find_commit(_mark(name, what)) for what in ("base", "tip")]
    previous = (marks[0], marks[1]) if marks[0] and marks[1] else None
    return Branch(name, base, plan.applications, tuple(commits), previous)


def _outgoing(application: Application, signer: Person, reset_author: bool) -> Application:
    patch = application.patch
    author = replace(patch.author, name=signer[0], email=signer[1]) if reset_author else patch.author
    return replace(application, patch=replace(patch, author=author, body=outgoing_body(patch, signer)))


def require_free(repository: Repository, name: str) -> None:
    """Raise if moving the branch of ``name`` would lose commits, or pull the files from under a checkout."""
    branch = branch_of(name)
    there = repository.find_commit(f"refs/heads/{branch}")
    if there is None:
        return
    if there != repository.find_commit(_mark(name, "tip")):
        raise PreconditionError(
            f"the branch {branch} in {repository.where} has commits that no export made",
            hint=f"take them into the patch file, then: git -C {repository.where} branch -D {branch}",
        )
    place = repository.branch_worktrees().get(branch)
    if place is not None:
        raise PreconditionError(
            f"the branch {branch} is checked out in {place}",
            hint=f"git -C {place} switch --detach",
        )


def move_branches(repository: Repository, branches: Sequence[Branch]) -> None:
    """Point branches and marks at new exports, all in one step."""
    rows: list[tuple[str, str, str | None]] = []
    for branch in branches:
        rows += [
            (f"refs/heads/{branch_of(branch.name)}", branch.tip, None),
            (_mark(branch.name, "base"), branch.base, None),
            (_mark(branch.name, "tip"), branch.tip, None),
        ]
    if rows:
        repository.update_refs(rows, "vllm-series export")
    drop_build_ref(repository)


def range_diff(repository: Repository, branch: Branch) -> str:
    """How the commits differ from those of the last export; empty if there was none."""
    if branch.previous is None:
        return ""
    return repository.range_diff(branch.previous, (branch.base, branch.tip))
