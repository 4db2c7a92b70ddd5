# SPDX-License-Identifier: Apache-2.0
"""Whether the recorded evidence of a patch still speaks of what is there, read offline.

What was run is bound to texts: the patch's, its prerequisites' and the base's. While all of these are what
they were, applying them gives the tree that was tested, whatever else has changed in the series.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from vllm_series.bases import Base
from vllm_series.errors import SeriesError
from vllm_series.evidence import Binding, Evidence, evidence_path, parse_evidence, stale
from vllm_series.project import Project


class State(StrEnum):
    """Whether evidence holds."""

    FRESH = "fresh"
    STALE = "stale"
    NONE = "none"
    NOT_NEEDED = "not-needed"


@dataclass(frozen=True)
class Standing:
    """The evidence of one patch on one base.

    Attributes:
        state: Whether it holds.
        reason: Why it does not, one line.
        evidence: What was recorded.

    """

    state: State
    reason: str = ""
    evidence: Evidence | None = None

    @property
    def outcomes(self) -> dict[str, str]:
        """Outcome by tier; nothing unless the evidence is fresh."""
        if self.state is not State.FRESH or self.evidence is None:
            return {}
        return {tier: str(entry.get("outcome", "")) for tier, entry in self.evidence.tiers.items()}

    @property
    def text(self) -> str:
        """The standing in a few words."""
        if self.state is State.FRESH:
            return "fresh: " + ", ".join(f"{tier} {outcome}" for tier, outcome in self.outcomes.items())
        return f"{self.state}: {self.reason}" if self.reason else self.state.value

    def document(self) -> dict[str, object]:
        """The standing as plain JSON types."""
        return {"state": self.state.value, "reason": self.reason, "tiers": self.outcomes}


def in_short(found: Mapping[str, Standing]) -> str:
    """The evidence of one patch on all bases, in a few words: tiers where it is fresh."""
    words = []
    for ref, one in found.items():
        if one.state is State.FRESH:
            bad = [f"{tier} {outcome}" for tier, outcome in one.outcomes.items() if outcome != "passed"]
            good = [tier for tier, outcome in one.outcomes.items() if outcome == "passed"]
            words.append(f"{ref}: {', '.join([*bad, *good])}")
        elif one.state is not State.NOT_NEEDED:
            words.append(f"{ref}: {one.state}")
    return "; ".join(words) or "-"


def standing(project: Project, name: str, base: Base) -> Standing:
    """How the evidence of the patch ``name`` on a supported base stands."""
    if project.file_for(name, base) is None:
        return Standing(State.NOT_NEEDED)
    path = evidence_path(project.patch_dir, name, base.ref)
    if not path.is_file():
        return Standing(State.NONE)
    try:
        evidence = parse_evidence(path.read_text("utf-8", "replace"), path.name)
        now = _binding_now(project, name, base, evidence.binding)
    except SeriesError as error:
        return Standing(State.STALE, error.message)
    reason = stale(evidence.binding, now)
    return Standing(State.STALE if reason else State.FRESH, reason, evidence)


def standings(project: Project) -> Mapping[str, Mapping[str, Standing]]:
    """Every patch's standing by name and base."""
    return {
        name: {base.ref: standing(project, name, base) for base in project.bases}
        for name in project.series.names
    }


def _binding_now(project: Project, name: str, base: Base, recorded: Binding) -> Binding:
    """What the evidence would be bound to today, with the prerequisites that it was made with."""
    order = project.series.names
    before = order[: order.index(name)]
    needs = {}
    for need in recorded.prerequisites:
        patch = project.patch(need, base) if need in before else None
        if patch is not None:
            needs[need] = patch.digest
    patch = project.patch(name, base)
    return Binding(name, patch.digest if patch else "", base.ref, base.commit, needs)
