# SPDX-License-Identifier: Apache-2.0
"""``vllm-series fetch``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from vllm_series.bases import version_of
from vllm_series.errors import EXIT_OK
from vllm_series.output import Output
from vllm_series.project import Project, find_project
from vllm_series.store import Fetched, Progress, ProgressTracker, Store


def fetch(out: Output, series_dir: Path | None, refs: Sequence[str] | None, index: str) -> int:
    """Bring releases into the store."""
    project = find_project(series_dir)
    wanted = list(refs or [base.ref for base in project.bases])
    fetched = [bring(out, project, Store.default(), ref, index) for ref in wanted]
    for item in fetched:
        out.say(f"{item.ref}  {item.commit}  {'fetched' if item.new else 'in the cache'}")
    return out.finish(
        EXIT_OK,
        releases=[{"ref": f.ref, "commit": f.commit, "new": f.new} for f in fetched],
    )


def bring(out: Output, project: Project, store: Store, ref: str, index: str = "") -> Fetched:
    """Bring one release into the store, with a progress bar on a terminal."""
    known = next((base for base in project.bases if base.ref == ref), None)
    if version_of(ref) is not None and store.find(ref) is None:
        out.note(f"fetching vLLM {ref}")
    with _bar(ref) as progress:
        return store.fetch(ref, known, progress=progress, index=index)


@contextmanager
def _bar(ref: str) -> Iterator[Progress]:
    if not sys.stderr.isatty():
        yield ProgressTracker
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:

        class Tracker(ProgressTracker):
            def __init__(self, total: int | None = None) -> None:
                super().__init__(total)
                self.task = bar.add_task(f"vLLM {ref}", total=total)

            def update(self, increment: int) -> None:
                bar.advance(self.task, increment)

            def __exit__(self, *_: object) -> None:
                bar.update(self.task, description=f"vLLM {ref}: importing", total=None)

        yield Tracker
