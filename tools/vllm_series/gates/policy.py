# SPDX-License-Identifier: Apache-2.0
"""Whether it may be sent at all: intent, duplicates, order, and how much is open."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_series.gates.subject import Finding, Subject

#: Pull requests that one contributor may have open at once.
OPEN_AT_ONCE = 6


def findings(subject: Subject) -> Iterator[Finding]:
    """Gates ``intent``, ``duplicate``, ``prerequisite`` and ``open-limit``."""
    status, key = subject.status, f"status.toml, [{subject.name}]"
    if status.intent != "upstream":
        note = f" ({status.note})" if status.note else ""
        yield Finding("intent", f"its intent is {status.intent}{note}", f"change it in {key} when that ends")
    if status.prs and not status.differs:
        numbers = ", ".join(f"#{number}" for number in status.prs)
        yield Finding(
            "duplicate",
            f"{numbers} on the same ground, and nothing says how this one differs",
            f"read it, then withdraw this one or write {key} differs",
        )
    waiting = [name for name, need in subject.prerequisites.items() if need.state != "merged"]
    if waiting:
        yield Finding(
            "prerequisite",
            f"it needs {', '.join(waiting)}, which upstream does not have",
            "send what it needs first; until then its pull request shows those changes too",
        )
    if len(subject.open_requests) >= OPEN_AT_ONCE and not status.pr:
        numbers = ", ".join(f"#{number}" for number in subject.open_requests)
        yield Finding(
            "open-limit",
            f"{len(subject.open_requests)} are open already ({numbers}), and {OPEN_AT_ONCE} are the limit",
            "wait until one is merged or closed",
        )
