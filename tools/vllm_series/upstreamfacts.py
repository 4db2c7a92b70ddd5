# SPDX-License-Identifier: Apache-2.0
"""What was found upstream: ``patches/upstream.json``, written by ``upstream sync`` alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from vllm_series.errors import UsageError
from vllm_series.project import Project

SCHEMA = 1
FILE = "upstream.json"


@dataclass(frozen=True)
class Thread:
    """A pull request or an issue.

    Attributes:
        state: ``open``, ``merged`` or ``closed``.
        title: Its title.

    """

    state: str
    title: str = ""


@dataclass(frozen=True)
class Search:
    """A search of the open pull requests for duplicates of one patch.

    Attributes:
        queries: What was searched for.
        numbers: What was found, pull requests by number.

    """

    queries: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Facts:
    """All that was found.

    Attributes:
        date: The day of the last look, empty if there was none.
        prs: Pull requests by number.
        issues: Issues by number.
        searches: By patch.

    """

    date: str = ""
    prs: Mapping[int, Thread] = field(default_factory=dict)
    issues: Mapping[int, Thread] = field(default_factory=dict)
    searches: Mapping[str, Search] = field(default_factory=dict)

    def describe_pr(self, number: int) -> str:
        """A pull request in a few words."""
        thread = self.prs.get(number)
        return f"#{number} ({thread.state})" if thread else f"#{number}"

    def render(self) -> bytes:
        """The file's bytes."""
        return (json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2, ensure_ascii=False) + "\n").encode()


def parse_facts(text: str, where: str = FILE) -> Facts:
    """Read the file.

    Raises:
        UsageError: It is something else, or of another version.

    """
    try:
        row = json.loads(text)
        if row.pop("schema") != SCHEMA:
            raise UsageError(f"{where}: it was written by another version of vllm-series")
        return Facts(
            row["date"],
            {int(number): Thread(**thread) for number, thread in row["prs"].items()},
            {int(number): Thread(**thread) for number, thread in row["issues"].items()},
            {
                name: Search(tuple(found["queries"]), tuple(found["numbers"]))
                for name, found in row["searches"].items()
            },
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(
            f"{where} cannot be read: {error!r}", hint="make it anew: vllm-series upstream sync"
        ) from None


def load_facts(project: Project) -> Facts:
    """A project's facts; nothing if upstream was never looked at."""
    path = project.patch_dir / FILE
    return parse_facts(path.read_text("utf-8"), str(path)) if path.is_file() else Facts()
