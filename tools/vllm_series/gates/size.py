# SPDX-License-Identifier: Apache-2.0
"""How much a reviewer has to read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

from vllm_series.gates.subject import Finding, Subject
from vllm_series.patchfile import Patch

#: Changed lines that a bug fix may have.
BUG_FIX = 250
#: Changed lines, without tests, kernels, data and configuration, above which vLLM wants an RFC first.
RFC = 500

_RFC_NOTED = re.compile(r"RFC\b.{0,60}?(#\d+|https?://\S+)", re.IGNORECASE | re.DOTALL)
_DATA = {".json", ".yaml", ".yml", ".toml", ".txt", ".csv", ".jinja", ".md"}
_KERNEL = {".cu", ".cuh", ".cpp", ".h", ".hpp", ".hip"}


def changed_lines(patch: Patch, counts: Callable[[str], bool] = lambda path: True) -> int:
    """Added and removed lines of the files for which ``counts`` is true."""
    return sum(
        line.tag != " "
        for change in patch.changes
        if counts(change.path)
        for hunk in change.hunks
        for line in hunk.lines
    )


def needs_design(path: str) -> bool:
    """Whether a file counts for an RFC: no test, kernel, data or configuration file."""
    place = PurePosixPath(path)
    kernel = place.suffix in _KERNEL or {"ops", "kernels", "csrc"}.intersection(place.parts)
    return not (path.startswith("tests/") or kernel or place.suffix in _DATA)


def findings(subject: Subject) -> Iterator[Finding]:
    """Gates ``size`` and ``rfc``."""
    total = changed_lines(subject.patch)
    if "[bugfix]" in subject.patch.subject.lower() and total > BUG_FIX:
        yield Finding(
            "size",
            f"a bug fix of {total} changed lines, and {BUG_FIX} are the limit",
            "split it, or say in the title what more than a fix it is",
        )
    rest = changed_lines(subject.patch, needs_design)
    if rest > RFC and not _RFC_NOTED.search(f"{subject.patch.message}\n{subject.status.note}"):
        yield Finding(
            "rfc",
            f"{rest} changed lines beside tests, kernels and data, and above {RFC} an RFC comes first",
            f"open an RFC issue and note its number: status.toml, [{subject.name}] note = 'RFC: #N'",
        )
