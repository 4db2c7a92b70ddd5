# SPDX-License-Identifier: Apache-2.0
"""``vllm-series list``."""

from __future__ import annotations

from pathlib import Path

from vllm_series.errors import EXIT_OK
from vllm_series.output import Output
from vllm_series.project import find_project


def list_patches(out: Output, series_dir: Path | None) -> int:
    """List the patches in order, with the bases that they have files for."""
    project = find_project(series_dir)
    rows, document = [], []
    for number, name in enumerate(project.series.names, 1):
        files = {base.ref: project.file_for(name, base) for base in project.bases}
        first = next((base for base in project.bases if files[base.ref]), project.pinned)
        patch = project.patch(name, first)
        status = project.status.of(name)
        subject = patch.subject if patch else ""
        serving = ", ".join(ref for ref, file in files.items() if file)
        rows.append((str(number), name, serving, status.intent, status.state, subject))
        document.append(
            {
                "name": name,
                "subject": subject,
                "files": files,
                "intent": status.intent,
                "state": status.state,
            }
        )
    out.table(("#", "patch", "bases", "intent", "upstream", "subject"), rows)
    return out.finish(EXIT_OK, root=str(project.root), patches=document)
