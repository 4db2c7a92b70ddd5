# SPDX-License-Identifier: Apache-2.0
"""``vllm-series check``."""

from __future__ import annotations

from pathlib import Path

from vllm_series.errors import EXIT_NO, EXIT_OK
from vllm_series.lint import lint, stale_evidence
from vllm_series.output import Output, plural
from vllm_series.project import find_project


def check(out: Output, series_dir: Path | None) -> int:
    """Lint the patch directory."""
    project = find_project(series_dir)
    findings = lint(project)
    for finding in findings:
        out.say(f"{finding.where}: [{finding.rule}] {finding.text}")
    if not any(finding.rule in ("series", "bases") for finding in findings):
        for line in stale_evidence(project):
            out.warn(line)
    if findings:
        out.note(f"{plural(len(findings), 'finding')} in {project.root}")
    else:
        out.say(f"ok: {plural(len(project.series.names), 'patch')}, {plural(len(project.files), 'file')}")
    return out.finish(
        EXIT_NO if findings else EXIT_OK,
        root=str(project.root),
        findings=[{"where": f.where, "rule": f.rule, "text": f.text} for f in findings],
    )
