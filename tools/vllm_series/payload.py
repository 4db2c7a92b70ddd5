# SPDX-License-Identifier: Apache-2.0
"""What the series makes of a release's installed files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from vllm_series.bases import Base
from vllm_series.errors import PreconditionError
from vllm_series.plan import Plan, Skipped
from vllm_series.project import Project
from vllm_series.tree import CommitSource, File

PACKAGE = "vllm/"
#: Folders of the repository that no wheel holds and no server needs.
_BESIDE = (".buildkite/", ".github/", "benchmarks/", "docs/", "examples/", "tests/")


@dataclass(frozen=True)
class Changed:
    """A file before and after the series; ``old`` is None for a new one."""

    old: bytes | None
    new: bytes

    @property
    def old_digest(self) -> str | None:
        """SHA-256 before."""
        return None if self.old is None else hashlib.sha256(self.old).hexdigest()

    @property
    def new_digest(self) -> str:
        """SHA-256 after."""
        return hashlib.sha256(self.new).hexdigest()


@dataclass(frozen=True)
class Payload:
    """The changed files of the package, and where they come from.

    Attributes:
        base: The release.
        files: By path, all below ``vllm/``.
        patches: Name and digest of each patch, in order.
        skipped: Patches that this release does not need.

    """

    base: Base
    files: Mapping[str, Changed]
    patches: tuple[tuple[str, str], ...]
    skipped: tuple[Skipped, ...]


def supported_base(project: Project, ref: str, what: str) -> Base:
    """The supported base ``ref``.

    Raises:
        PreconditionError: The series has no files for it.

    """
    for base in project.bases:
        if base.ref == ref:
            return base
    refs = ", ".join(base.ref for base in project.bases)
    raise PreconditionError(
        f"{what} is vLLM {ref}, and the series is made for {refs}",
        hint=f"take vLLM {project.pinned.version}, or patch a checkout: vllm-series apply --vllm PATH",
    )


def make_payload(base: Base, plan: Plan, changes: Mapping[str, File | None]) -> Payload:
    """Take out of a plan's changes what belongs into the installed package.

    Args:
        base: The release that the plan was made on.
        plan: The plan.
        changes: New content by path after all its patches.

    Raises:
        PreconditionError: A change that replacing Python files cannot bring.

    """
    source = CommitSource(plan.target.repository, plan.target.commit)
    inside = {path: file for path, file in changes.items() if path.startswith(PACKAGE)}
    outside = [path for path in changes if path not in inside and not path.startswith(_BESIDE)]
    if outside:
        raise PreconditionError(
            f"the series changes {outside[0]}, which takes effect only when vLLM is built",
            hint="build from a checkout: vllm-series apply",
        )
    source.load(inside)
    files = {}
    for path, file in sorted(inside.items()):
        if file is None:
            raise PreconditionError(
                f"the series removes {path}, and an overlay can only add and replace",
                hint="use a checkout: vllm-series apply",
            )
        old = source.get(path)
        files[path] = Changed(old.content if old else None, file.content)
    patches = tuple((a.patch.name, a.patch.digest) for a in plan.applications)
    return Payload(base, files, patches, plan.skipped)
