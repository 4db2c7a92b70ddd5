# SPDX-License-Identifier: Apache-2.0
"""The offline check of the whole patch directory: every finding at once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vllm_series.dropped import FILE as DROPPED
from vllm_series.dropped import parse_dropped
from vllm_series.errors import SeriesError
from vllm_series.evidence import evidence_path, parse_evidence
from vllm_series.freshness import State, standings
from vllm_series.patchfile import MESSAGE_ENDS, Patch, read_patch
from vllm_series.project import Project
from vllm_series.refresh import same_change
from vllm_series.rules import ORIGIN, TITLE
from vllm_series.testtable import load_tests
from vllm_series.tiers import SELECTING

#: vLLM's line length.
COLUMNS = 88
_CONFLICT_MARKER = re.compile(rb"(<{7}|>{7}|\|{7})( |\n|$)")
_SPDX = b"SPDX-License-Identifier"


@dataclass(frozen=True)
class Finding:
    """Something to be put right.

    Attributes:
        where: File, relative to the project.
        rule: Short name of the rule.
        text: What is wrong, one line.

    """

    where: str
    rule: str
    text: str


def lint(project: Project) -> list[Finding]:
    """Check series, patch files and the TOML files beside them against each other."""
    """Check series, patch files, facts, tests and evidence against each other."""
    findings: list[Finding] = []

    def attempt(where: str, rule: str, read: object) -> bool:
        try:
            read()  # type: ignore[operator]
        except SeriesError as error:
            findings.append(Finding(where, rule, error.message))
            return False
        return True

    good = attempt("series", "series", lambda: project.series)
    good &= attempt("patches/base.toml", "bases", lambda: project.bases)
    has_status = attempt("patches/status.toml", "status", lambda: project.status)
    attempt("patches/dropped.toml", "dropped", lambda: _dropped(project))
    if not good:
        return findings
    attempt("patches/tests.toml", "tests-table", lambda: load_tests(project, SELECTING))
    findings += _files(project)
    findings += _evidence(project)
    if has_status:
        findings += _status(project)
    plain: dict[str, Patch] = {}
    for base in project.bases:
        for name in project.series.names:
            file = project.file_for(name, base)
            if file is None:
                continue
            if base != project.pinned and "/" not in file:
                continue
            where = f"patches/{file}"
            try:
                patch = read_patch(project.patch_dir / file, name)
                findings += (Finding(where, *row) for row in patch_findings(patch))
            except SeriesError as error:
                findings.append(Finding(where, "corrupt", error.message))
                continue
            findings += _needs(where, patch, project.series.names)
            if base == project.pinned:
                plain[name] = patch
            elif name in plain and same_change(plain[name], patch):
                findings.append(
                    Finding(where, "variant", f"does the same as {name}.patch; remove the variant")
                )
    return findings


def _dropped(project: Project) -> None:
    path = project.patch_dir / DROPPED
    if path.is_file():
        parse_dropped(path.read_text("utf-8", "replace"))


def _files(project: Project) -> Iterator[Finding]:
    refs = {base.ref for base in project.bases}
    for file in sorted(project.files):
        folder, _, leaf = file.rpartition("/")
        name = leaf.removesuffix(".patch")
        if name not in project.series.names:
            yield Finding(f"patches/{file}", "orphan", "the series does not name it")
        if folder and folder not in refs:
            yield Finding(f"patches/{file}", "orphan", f"{folder} is no supported base")
    for name in project.series.names:
        if not any(f.rpartition("/")[2] == f"{name}.patch" for f in project.files):
            yield Finding("series", "missing", f"{name}.patch does not exist for any base")


def _status(project: Project) -> Iterator[Finding]:
    where = "patches/status.toml"
    for name in project.status.patches:
        if name not in project.series.names:
            yield Finding(where, "status", f"[{name}] is no patch of the series")
    for name in project.series.names:
        if name not in project.status.patches:
            yield Finding(where, "status", f"{name} has no entry")
            continue
        status = project.status.of(name)
        if status.intent != "never" and status.retire is None:
            yield Finding(where, "retire", f"{name} has no retire condition")
        partial = any(project.file_for(name, base) is None for base in project.bases)
        if partial and status.retire is None:
            yield Finding(where, "retire", f"{name} has no file for some base and no condition says why")


def _evidence(project: Project) -> Iterator[Finding]:
    """Files that are no evidence, or of nothing that is there; stale evidence is no finding."""
    bases = {base.ref for base in project.bases}
    for path in sorted((project.patch_dir / "evidence").glob("*")):
        where = f"patches/evidence/{path.name}"
        try:
            binding = parse_evidence(path.read_text("utf-8", "replace"), path.name).binding
        except SeriesError as error:
            yield Finding(where, "evidence", error.message)
            continue
        if binding.patch not in project.series.names or binding.base not in bases:
            yield Finding(where, "orphan", f"the series has no {binding.patch} on {binding.base}")
        elif path != evidence_path(project.patch_dir, binding.patch, binding.base):
            yield Finding(where, "evidence", f"it is about {binding.patch} on {binding.base}")


def stale_evidence(project: Project) -> list[str]:
    """One line per evidence that says nothing any more.

    No finding: an edit makes evidence stale in the best of directories, and what must not be done with
    stale evidence is to send a patch, which ``export`` refuses to prepare without a finding.
    """
    return [
        f"the evidence of {name} on {ref} is stale: {found.reason}"
        for name, row in standings(project).items()
        for ref, found in row.items()
        if found.state is State.STALE
    ]


def _needs(where: str, patch: Patch, series: Sequence[str]) -> Iterator[Finding]:
    """A need that has no file for a base is not needed there; its place in the series counts."""
    before = series[: series.index(patch.name)]
    for need in patch.depends_on:
        if need not in before:
            yield Finding(where, "depends-on", f"{need} does not stand before it in the series")


def patch_findings(patch: Patch) -> Iterator[tuple[str, str]]:
    """Rule and text of every finding on one patch file alone."""
    for text in patch.canonical_findings():
        yield "form", text
    if patch.trailer("Patch-Name") != (patch.name,):
        yield "patch-name", f"its trailer must be exactly 'Patch-Name: {patch.name}'"
    origin = patch.trailer("Origin")
    if len(origin) != 1 or not ORIGIN.fullmatch(origin[0]):
        yield (
            "origin",
            "it needs one trailer 'Origin: own', 'backport', 'upstream, COMMIT' or a URL",
        )
    if not TITLE.fullmatch(patch.subject):
        yield "title", f"{patch.subject!r} is no title like '[Bugfix][Qwen4Exp] Do this'"
    for line in patch.body.splitlines():
        if line.startswith(MESSAGE_ENDS):
            yield "message", f"git am would end the message at {line!r}"
    if not any(path.startswith("tests/") for path in patch.paths):
        yield "tests", "it changes no test of vLLM"
    for change in patch.changes:
        if change.action == "create" and change.path.endswith(".py"):
            first = b"".join(line.content for hunk in change.hunks for line in hunk.lines[:2])
            if first and _SPDX not in first:
                yield "spdx", f"{change.path} is new and lacks the SPDX header"
        for hunk in change.hunks:
            number = hunk.new_start - 1
            for row in hunk.lines:
                number += row.tag != "-"
                if row.tag == "+":
                    for rule, text in _added_line(change.path, row.content):
                        yield rule, f"{change.path}:{number}: {text}"


def _added_line(path: str, content: bytes) -> Iterator[tuple[str, str]]:
    text = content.rstrip(b"\n")
    if _CONFLICT_MARKER.match(content):
        yield "marker", "a conflict marker"
    # Two spaces are a line break in Markdown.
    line_break = path.endswith(".md") and text == text.rstrip() + b"  "
    if text != text.rstrip() and not line_break:
        yield "whitespace", "white space at the end of the line"
    long = path.endswith(".py") and len(text.decode("utf-8", "replace")) > COLUMNS
    if long and not re.search(rb"https?://|noqa", text):
        yield "columns", f"longer than {COLUMNS} columns"
