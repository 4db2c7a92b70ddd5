# SPDX-License-Identifier: Apache-2.0
"""What to search for among upstream's open pull requests before a patch is sent."""

from __future__ import annotations

import re
import shlex
from pathlib import PurePosixPath

from vllm_series.gates.size import changed_lines, needs_design
from vllm_series.patchfile import Patch
from vllm_series.sendoff import UPSTREAM
from vllm_series.statusfile import Status

_WORDS = re.compile(r"\d*-?[A-Za-z_][\w.-]+")
#: Words of a title that find everything.
_COMMON = re.compile(
    r"a|an|the|and|for|with|from|into|only|one|all|not|what|where|when|are|use|of|instead|its|that|than|per|of|on|in|to|is|it|be|by|as|at",
    re.IGNORECASE,
)
_LONGEST = 5


def queries(patch: Patch, status: Status) -> tuple[str, ...]:
    """Two searches or more: words of the title, the file that is changed most, and every issue."""
    title = re.sub(r"^(\[[^\]]*\])+ *", "", patch.subject)
    words = [word for word in _WORDS.findall(title) if not _COMMON.fullmatch(word)][:_LONGEST]
    paths = [path for path in patch.paths if needs_design(path)] or sorted(patch.paths)
    most = max(sorted(paths), key=lambda path: changed_lines(patch, lambda other: other == path))
    place = PurePosixPath(most)
    issues = [f"{number} in:body" for number in status.issues]
    return (" ".join(words), f"{place.parent.name} {place.stem}", *issues)


def search_arguments(query: str) -> tuple[str, ...]:
    """The arguments of ``gh`` for one search."""
    return (
        "pr", "list", "--repo", UPSTREAM, "--state", "open", "--search", query, "--json", "number,title",
    )  # fmt: skip


def commands(patch: Patch, status: Status) -> tuple[str, ...]:
    """The searches as a person would type them."""
    return tuple(
        f"gh pr list --repo {UPSTREAM} --state open --search {shlex.quote(query)}"
        for query in queries(patch, status)
    )
