# SPDX-License-Identifier: Apache-2.0
"""``vllm-series doctor --serve``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from vllm_series.errors import EXIT_NO, EXIT_OK
from vllm_series.output import Output, plural
from vllm_series.preflight.arguments import parse_arguments, split_variables
from vllm_series.preflight.checks import CHECKS, examine
from vllm_series.preflight.facts import Facts
from vllm_series.preflight.gather import gather
from vllm_series.project import find_project


def doctor_serve(out: Output, series_dir: Path | None, vllm: Path | None, words: Sequence[str]) -> int:
    """Say what would go wrong with a start of ``vllm serve``: what, why it matters, what to do."""
    variables, command = split_variables(words)
    arguments = parse_arguments(command)
    facts = gather(arguments, find_project(series_dir), vllm, {**os.environ, **variables})
    found = examine(facts)
    for finding in sorted(found, key=lambda finding: not finding.stops):
        out.say(f"{'error' if finding.stops else 'warning'}: {finding.check}: {finding.what}")
        out.say(f"  why: {finding.why}")
        out.say(f"  do:  {finding.do}")
    stops = sum(finding.stops for finding in found)
    out.say(_summary(len(found), stops))
    return out.finish(
        EXIT_NO if stops else EXIT_OK,
        findings=[asdict(finding) for finding in found],
        facts=_facts_document(facts),
    )


def _summary(found: int, stops: int) -> str:
    if not found:
        return f"{plural(len(CHECKS), 'check')}, nothing found"
    return f"{plural(stops, 'error')}, {plural(found - stops, 'warning')}"


def _facts_document(facts: Facts) -> dict[str, object]:
    engine = facts.engine
    return {
        "driver": facts.driver,
        "cards": [asdict(gpu) for gpu in facts.gpus],
        "vllm": None if engine is None else str(engine.folder),
        "patches": None if engine is None else sorted(engine.patches),
        "model": facts.arguments.model,
    }
