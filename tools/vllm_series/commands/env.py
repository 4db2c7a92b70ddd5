# SPDX-License-Identifier: Apache-2.0
"""``vllm-series env``."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_series import environment
from vllm_series.environment import Environment
from vllm_series.errors import EXIT_NO, EXIT_OK, EnvironmentFaultError
from vllm_series.output import Output, plural
from vllm_series.store import cache_folder

if TYPE_CHECKING:
    from rich.status import Status


def create(out: Output, extra_index: str) -> int:
    """Make the environment, unless it is there."""
    if environment.named_folder() is not None:
        out.note(f"{environment.ENVIRONMENT_VARIABLE} names an environment; nothing is made")
    found = provide(out, cache_folder(), extra_index)
    return _finish(out, found, "ready")


def show(out: Output) -> int:
    """Say which environment is used and what it is; exit 1 if it has to be made first."""
    cache = cache_folder()
    found = environment.find(cache)
    if found is None:
        folder = environment.own_folder(cache)
        out.say(f"{folder} is not made yet; make it with: vllm-series env create")
        return out.finish(EXIT_NO, state="missing", folder=str(folder))
    return _finish(out, found, "ready")


def remove(out: Output, every: bool) -> int:
    """Remove the environment from the cache."""
    removed = environment.remove(cache_folder(), every=every)
    for folder in removed:
        out.say(f"removed {folder}")
    if not removed:
        out.say("nothing to remove")
    return out.finish(EXIT_OK, removed=[str(folder) for folder in removed])


def provide(out: Output, cache: Path, extra_index: str = "") -> Environment:
    """The environment to use; it is made first if it is not there."""
    found = environment.find(cache)
    if found is None:
        out.note("making the Python environment for vLLM's tests; this takes some minutes")
        _show_lines(out, cache, extra_index)
        found = environment.find(cache)
    if found is None:
        raise EnvironmentFaultError(f"{environment.own_folder(cache)} was removed while it was made")
    return found


def _show_lines(out: Output, cache: Path, extra_index: str) -> None:
    count = 0
    with _spinner() as spinner:
        for line in environment.create(cache, extra_index=extra_index):
            if spinner is not None:
                spinner.update(line.strip()[:100].replace("[", "\\["))
            elif line.startswith(("making", "Collecting", "Installing", "Successfully")):
                count += line.startswith("Collecting")
                if not line.startswith("Collecting"):
                    out.note(line[:160])
    if count:
        out.note(f"{plural(count, 'package')} installed")


def _spinner() -> AbstractContextManager[Status | None]:
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status("preparing")


def _finish(out: Output, found: Environment, state: str) -> int:
    rows = [("folder", str(found.folder)), ("python", found.python), ("platform", found.platform)]
    rows += list(found.packages.items())
    rows.append(("digest", found.digest[:16]))
    if environment.named_folder() is not None:
        rows.append(("named by", environment.ENVIRONMENT_VARIABLE))
    out.table(("environment", ""), rows)
    return out.finish(EXIT_OK, state=state, folder=str(found.folder), **found.document())
