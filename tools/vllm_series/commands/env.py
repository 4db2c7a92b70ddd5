# SPDX-License-Identifier: Apache-2.0
"""``vllm-series env``."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_series import environment
from vllm_series.environment import Environment
from vllm_series.errors import EXIT_NO, EXIT_OK, EnvironmentFaultError, PreconditionError
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


@dataclass(frozen=True)
class PackOptions:
    """The arguments of ``env pack``, as documented on the command line."""

    folder: Path
    wheels: Path | None
    onto: str
    architecture: int
    part_size: int
    index: str = ""


def pack(out: Output, series_dir: Path | None, options: PackOptions) -> int:
    """Pack the trees and the environment of the GPU tiers."""
    from vllm_series import packplan
    from vllm_series.commands.fetch import bring
    from vllm_series.pack import Contents, write_pack
    from vllm_series.plan import Target
    from vllm_series.project import find_project
    from vllm_series.store import Store
    from vllm_series.testtable import load_tests
    from vllm_series.tiers import SELECTING

    project = find_project(series_dir)
    if project.installed:
        raise PreconditionError(
            "this copy is installed, and has no tests to pack",
            hint="work in a checkout of this project, or name one with --series-dir",
        )
    ref = options.onto or project.pinned.ref
    store = Store.default()
    target = Target.of(project, store.repository, bring(out, project, store, ref, options.index).commit)
    trees = packplan.roles(project, target, load_tests(project, SELECTING))
    release = target.release or ref
    folder = options.wheels or store.folder / "wheels"
    out.note(f"looking for wheels in {folder}")
    vllm, others = packplan.wheels(folder, release)
    out.note(f"packing {plural(len(trees), 'tree')} and {plural(len(others), 'package')}; this takes minutes")
    base = store.repository.trees([target.commit])[0]
    contents = Contents(
        release, store.repository, base, trees, vllm, others, project.root, options.architecture
    )
    parts = write_pack(contents, options.folder.absolute(), options.part_size)
    total = sum(path.stat().st_size for path in parts)
    out.table(("role", "tree"), [(role, tree[:12]) for role, tree in trees.items()])
    out.say(f"{options.folder}: {plural(len(parts), 'part')}, {total / 1e6:.1f} MB")
    out.say(f"there: python3 {options.folder.name}/unpack.py {options.folder.name} FOLDER")
    return out.finish(EXIT_OK, release=release, trees=trees, parts=[path.name for path in parts], bytes=total)


def unpack(out: Output, parts: Path, folder: Path) -> int:
    """Unpack what :func:`pack` packed."""
    from vllm_series.unpack import UnpackError
    from vllm_series.unpack import unpack as extract

    try:
        place = extract(parts, folder.absolute(), out.note)
    except UnpackError as error:
        raise EnvironmentFaultError(str(error)) from None
    out.say(f"unpacked into {place}; run: bash {place}/project/ci/gpu.sh {place} RESULTS-FOLDER")
    return out.finish(EXIT_OK, folder=str(place))
