# SPDX-License-Identifier: Apache-2.0
"""The evidence: there, about the present text, good, and with a control that fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vllm_series.bases import version_of
from vllm_series.freshness import State
from vllm_series.gates.subject import Finding, Subject
from vllm_series.tiers import RECORDED

#: The tier that runs no tests.
STATIC = "static"


def findings(subject: Subject) -> Iterator[Finding]:
    """Gates ``evidence`` and ``load-bearing``."""
    run = f"vllm-series test {subject.name} --each --record --onto {subject.base}"
    if version_of(subject.base) is None:  # Evidence is recorded on releases.
        run = f"vllm-series export {subject.name}, without --no-test"
    if not subject.has_tests:
        yield Finding(
            "load-bearing",
            "tests.toml names no test that fails without the patch",
            "name one there; where it needs a GPU, say so in the patch and attach the run",
        )
    standing = subject.standing
    if standing.state is State.STALE:
        yield Finding("evidence", f"the evidence is stale: {standing.reason}", f"record it anew: {run}")
    elif standing.evidence is None:
        reason = standing.reason or f"there is no evidence on {subject.base}"
        yield Finding("evidence", reason, f"record it: {run}")
    else:
        yield from _recorded(subject, standing.evidence.tiers, run)


def _recorded(subject: Subject, tiers: Mapping[str, Mapping[str, object]], run: str) -> Iterator[Finding]:
    closure = {subject.name, *subject.prerequisites}
    if tiers and all(tier in RECORDED for tier in tiers):
        yield Finding("evidence", "it was run on a GPU machine alone, among other patches", f"run: {run}")
    for tier, entry in tiers.items():
        outcome, patches = entry.get("outcome"), entry.get("patches")
        # What runs on a GPU runs on the trees that were carried there.
        if tier not in RECORDED and isinstance(patches, list) and set(patches) != closure:
            yield Finding("evidence", f"{tier}: it was run among other patches, not alone", f"run: {run}")
        if outcome == "not-load-bearing":
            yield Finding("load-bearing", f"{tier}: {entry.get('reason')}", "test what the patch changes")
        elif outcome != "passed":
            yield Finding(
                "evidence", f"{tier}: {outcome}: {entry.get('reason')}", f"put it right; then {run}"
            )
    controls = [entry for tier, entry in tiers.items() if tier != STATIC]
    if subject.has_tests and not any(map(_shows_the_patch, controls)):
        yield Finding("load-bearing", "no recorded test fails without the patch", f"record one: {run}")


def _shows_the_patch(entry: Mapping[str, object]) -> bool:
    """Whether a control was run and judged, whatever it said."""
    return isinstance(entry.get("control"), Mapping)
