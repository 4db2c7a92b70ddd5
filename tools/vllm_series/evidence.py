# SPDX-License-Identifier: Apache-2.0
"""What was run on which exact content: ``patches/evidence/NAME@BASE.json``.

An entry is bound to the patch's text, its prerequisites' and the base. If one of these differs it is stale,
and says nothing any more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from vllm_series.errors import UsageError
from vllm_series.swap import write_file

SCHEMA = 1


@dataclass(frozen=True)
class Binding:
    """What evidence is about.

    Attributes:
        patch: Name.
        sha256: Of the patch file that serves the base.
        base: Release tag or other name of the base.
        commit: The base's commit.
        prerequisites: SHA-256 of each patch that it needs, by name.

    """

    patch: str
    sha256: str
    base: str
    commit: str
    prerequisites: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Evidence:
    """The file of one patch on one base: per tier what was run and what came of it."""

    binding: Binding
    tiers: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    def render(self) -> bytes:
        """The file's bytes."""
        document = {"schema": SCHEMA, **asdict(self.binding), "tiers": dict(sorted(self.tiers.items()))}
        return (json.dumps(document, indent=2) + "\n").encode()


def stale(recorded: Binding, now: Binding) -> str:
    """Why evidence for ``recorded`` says nothing of ``now``; empty if it does."""
    if recorded.patch != now.patch:
        return f"it is about {recorded.patch}"
    if recorded.commit != now.commit:
        return f"the base was {recorded.commit[:12]} and is {now.commit[:12]}"
    if recorded.sha256 != now.sha256:
        return "the patch has changed"
    for name in sorted({*recorded.prerequisites, *now.prerequisites}):
        before, after = recorded.prerequisites.get(name), now.prerequisites.get(name)
        if before is None:
            return f"the patch now needs {name}"
        if after is None:
            return f"the patch no longer needs {name}"
        if before != after:
            return f"the prerequisite {name} has changed"
    return ""


def evidence_path(patch_dir: Path, name: str, base: str) -> Path:
    """Where the evidence of a patch on a base lies."""
    return patch_dir / "evidence" / f"{name}@{base.replace('/', '_')}.json"


def parse_evidence(text: str, where: str = "evidence") -> Evidence:
    """Read an evidence file.

    Raises:
        UsageError: It is something else, or of another version.

    """
    try:
        row = json.loads(text)
        if row.pop("schema") != SCHEMA:
            raise UsageError(f"{where}: it was written by another version of vllm-series")
        tiers = row.pop("tiers")
        return Evidence(Binding(**row), tiers)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{where} is no evidence: {error!r}") from None


def record(patch_dir: Path, binding: Binding, tiers: Mapping[str, Mapping[str, object]]) -> Path:
    """Write the evidence of some tiers; that of other tiers stays unless it is stale.

    Returns:
        The file.

    """
    path = evidence_path(patch_dir, binding.patch, binding.base)
    kept: dict[str, Mapping[str, object]] = {}
    if path.is_file():
        known = parse_evidence(path.read_text("utf-8"), str(path))
        if not stale(known.binding, binding):
            kept = dict(known.tiers)
    path.parent.mkdir(exist_ok=True)
    content = Evidence(binding, {**kept, **tiers}).render()
    if not path.is_file() or path.read_bytes() != content:
        write_file(path, content)
    return path
