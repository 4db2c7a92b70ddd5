# SPDX-License-Identifier: Apache-2.0
"""``vllm-series show``."""

from __future__ import annotations

from pathlib import Path

from vllm_series.bases import version_of
from vllm_series.errors import EXIT_OK, UsageError
from vllm_series.output import Output
from vllm_series.project import find_project


def show(out: Output, series_dir: Path | None, name: str, onto: str | None, text: bool) -> int:
    """Show one patch as it serves a base."""
    project = find_project(series_dir)
    name = name.removesuffix(".patch")
    project.known([name])
    if onto is not None and version_of(onto) is None:
        raise UsageError(
            f"{onto} is no vLLM release tag",
            hint="supported: " + ", ".join(base.ref for base in project.bases),
        )
    base = project.base_for(onto)
    patch = project.patch(name, base)
    if patch is None and onto is None:
        base = next(b for b in project.bases if project.file_for(name, b))
        patch = project.patch(name, base)
    if patch is None:
        raise UsageError(
            f"no file of {name} serves {base.ref}",
            hint=f"see why: vllm-series status --onto {base.ref}",
        )
    if text and not out.json:
        out.raw(patch.raw)
        return EXIT_OK
    files = {b.ref: project.file_for(name, b) for b in project.bases}
    status = project.status.of(name)
    out.say(patch.subject)
    out.say()
    out.say(patch.body)
    out.say()
    for ref, file in files.items():
        out.say(f"{ref:<10} {f'patches/{file}' if file else 'no file: not needed there'}")
    out.say(f"{'author':<10} {patch.author.name} <{patch.author.email}>")
    out.say(f"{'sha256':<10} {patch.digest}")
    out.say(f"{'upstream':<10} {status.state}, intent {status.intent}")
    if status.retire:
        out.say(f"{'retire':<10} when {status.retire.path} has /{status.retire.pattern}/")
    if status.differs:
        out.say(f"{'differs':<10} {status.differs}")
    out.say()
    rows = [(c.action.value, f"+{c.added}", f"-{c.removed}", c.path) for c in patch.changes]
    out.table(("action", "added", "removed", f"file (for {base.ref})"), rows)
    return out.finish(
        EXIT_OK,
        name=name,
        base=base.ref,
        files=files,
        subject=patch.subject,
        body=patch.body,
        author={"name": patch.author.name, "email": patch.author.email},
        sha256=patch.digest,
        trailers=[list(row) for row in patch.trailers],
        changes=[
            {"path": c.path, "action": c.action.value, "added": c.added, "removed": c.removed}
            for c in patch.changes
        ],
        status={
            "intent": status.intent,
            "state": status.state,
            "issues": status.issues,
            "prs": status.prs,
            "differs": status.differs,
        },
        text=patch.raw.decode("utf-8", "replace") if text else None,
    )
