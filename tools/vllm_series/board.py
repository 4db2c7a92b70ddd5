# SPDX-License-Identifier: Apache-2.0
"""The board: per patch where it stands on its way upstream, and what to do next. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vllm_series.freshness import Standing
from vllm_series.gates.subject import Finding
from vllm_series.statusfile import Status
from vllm_series.upstreamfacts import Facts, Thread

GITHUB = "https://github.com/vllm-project/vllm"
#: Where the table stands in a page that embeds it.
BEGIN, END = "<!-- patches -->", "<!-- /patches -->"


@dataclass(frozen=True)
class Link:
    """A thread upstream, as the board shows it."""

    number: int
    kind: str
    thread: Thread | None = None
    own: bool = False

    @property
    def url(self) -> str:
        """Its address."""
        return f"{GITHUB}/{'issues' if self.kind == 'issue' else 'pull'}/{self.number}"

    @property
    def text(self) -> str:
        """It in a few words."""
        whose = "our " if self.own else ""
        state = f" {self.thread.state}" if self.thread else ""
        return f"{whose}{self.kind} #{self.number}{state}"


@dataclass(frozen=True)
class Row:
    """One patch.

    Attributes:
        name: The patch.
        title: Its subject; empty if no file serves the pinned base.
        status: What is known about it.
        standings: Its evidence by base.
        gates: Findings by family of gates; empty if they were not run.
        links: Threads upstream.

    """

    name: str
    title: str
    status: Status
    standings: Mapping[str, Standing] = field(default_factory=dict)
    gates: Mapping[str, tuple[Finding, ...]] = field(default_factory=dict)
    links: tuple[Link, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Every finding."""
        return tuple(finding for found in self.gates.values() for finding in found)

    @property
    def ready(self) -> bool:
        """Whether no gate objects."""
        return bool(self.gates) and not self.findings

    @property
    def upstream(self) -> str:
        """Where it stands upstream, in one word or two."""
        if self.status.intent == "never":
            return "not for upstream"
        if self.status.pr:
            return f"sent, {self.status.state}"
        if self.status.intent == "hold":
            return "held back"
        others = {"open": "others have one open", "merged": "solved by others", "closed": "others gave up"}
        return others.get(self.status.state, "to be sent")

    @property
    def next_step(self) -> str:
        """What to do next, one line."""
        status = self.status
        if status.intent == "never":
            return "nothing; it leaves with the releases that need it"
        if status.state == "merged":
            return "take it off at the next release: vllm-series status"
        if status.pr:
            again = f"read why #{status.pr} was closed"
            return f"answer the reviews of #{status.pr}" if status.state == "open" else again
        if status.intent == "hold":
            return f"held back: {status.note}" if status.note else "held back; status.toml should say why"
        # Who sends it is settled when it is exported.
        first = next((finding for finding in self.findings if finding.code not in ("dco", "author")), None)
        if first is not None:
            return f"{first.code}: {first.fix}"
        reset = any(finding.code == "author" for finding in self.findings)
        return f"vllm-series export {self.name}{' --reset-author' if reset else ''}"

    def document(self) -> dict[str, object]:
        """The row as plain JSON types."""
        return {
            "name": self.name,
            "title": self.title,
            "intent": self.status.intent,
            "state": self.status.state,
            "pr": self.status.pr or None,
            "upstream": self.upstream,
            "links": [{"number": x.number, "kind": x.kind, "own": x.own, "url": x.url} for x in self.links],
            "evidence": {ref: found.document() for ref, found in self.standings.items()},
            "gates": {family: [vars(f) for f in found] for family, found in self.gates.items()},
            "next": self.next_step,
        }


def links_of(status: Status, facts: Facts) -> tuple[Link, ...]:
    """The threads that belong to a patch: its own pull request, others' and issues."""
    own = [Link(status.pr, "PR", facts.prs.get(status.pr), own=True)] if status.pr else []
    others = [Link(number, "PR", facts.prs.get(number)) for number in status.prs if number != status.pr]
    issues = [Link(number, "issue", facts.issues.get(number)) for number in status.issues]
    return (*own, *others, *issues)


def gates_text(row: Row) -> str:
    """The gates that object, by code."""
    if not row.gates:
        return "-"
    return ", ".join(dict.fromkeys(finding.code for finding in row.findings)) or "ok"


def markdown(rows: Sequence[Row]) -> str:
    """The table that the README embeds, between its marks.

    It says what changes slowly, and is written from the project's files alone.
    """
    lines = [BEGIN, "| patch | what it does | proven on | upstream |", "|---|---|---|---|"]
    for row in rows:
        threads = ", ".join(f"[#{link.number}]({link.url})" for link in row.links if link.kind == "PR")
        upstream = f"{row.upstream}; see {threads}" if threads else row.upstream
        cells = (f"`{row.name}`", row.status.summary or row.title, row.status.proven or "-", upstream)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, END]) + "\n"
