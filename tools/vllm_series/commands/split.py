# SPDX-License-Identifier: Apache-2.0
"""``vllm-series split``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vllm_series.commands.rework import Bench, Options, Shape, existing, rework
from vllm_series.errors import UsageError
from vllm_series.facts import introduce
from vllm_series.output import Output
from vllm_series.patchfile import NAME
from vllm_series.project import Project, find_project
from vllm_series.rules import require_title
from vllm_series.splitting import Chosen
from vllm_series.splitting import split as parted


def split(
    out: Output,
    series_dir: Path | None,
    name: str,
    new: str,
    parts: Sequence[str],
    title: str,
    before: bool,
    options: Options,
) -> int:
    """Make a new patch of some files or hunks of a patch."""
    project = find_project(series_dir)
    name = existing(project, name)
    require_new(project, new)
    require_title(title)
    chosen = _chosen(parts)
    _require_changed(project, name, chosen)

    def make(now: Project, _: Bench) -> Shape:
        require_new(now, new)
        where = name if before else now.series.behind(name)
        series = now.series.inserted(new, where)
        return Shape(series, parted(name, new, chosen, title, first=before), same_result=True)

    text = f"split {new} off {name}"
    return rework(out, project, "split", text, make, options, lambda change: introduce(change, [new]))


def require_new(project: Project, name: str) -> None:
    """Raise unless ``name`` can be a new patch's."""
    if not NAME.fullmatch(name) or name.endswith(".patch"):
        raise UsageError(
            f"{name!r} is no patch name",
            hint="use lower-case letters, digits, '-', '.', '_' and '+', like my-fix",
        )
    if name in project.series.names:
        raise UsageError(f"the series has a patch {name} already", hint="choose another name")
    for file in sorted(project.files):
        if file.rpartition("/")[2] == f"{name}.patch":
            raise UsageError(
                f"patches/{file} exists, and the series does not name it",
                hint="choose another name, or put that file elsewhere",
            )


def _require_changed(project: Project, name: str, chosen: Chosen) -> None:
    """Raise unless the patch changes every chosen file, on some base: they may be called otherwise there."""
    paths = {change.path for patch in project.texts(name) for change in patch.changes}
    for path in (*chosen.files, *(path for path, _ in chosen.hunks)):
        if not any(Chosen([path]).has(known) for known in paths):
            raise UsageError(f"{name} does not change {path}", hint="it changes " + ", ".join(sorted(paths)))


def _chosen(parts: Sequence[str]) -> Chosen:
    """Read ``PATH`` and ``PATH:N,N``."""
    files: list[str] = []
    hunks: list[tuple[str, int]] = []
    for part in parts:
        path, colon, numbers = part.rpartition(":")
        if colon and numbers.replace(",", "").isdigit():
            hunks += [(path, int(number)) for number in numbers.split(",") if number]
        else:
            files.append(part)
    return Chosen(tuple(files), tuple(hunks))
