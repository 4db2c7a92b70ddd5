# SPDX-License-Identifier: Apache-2.0
"""What the verbs share that give the series another shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from vllm_series.commands.fetch import bring
from vllm_series.errors import EXIT_OK
from vllm_series.facts import write_restacked
from vllm_series.git import Repository
from vllm_series.oplog import Change, recorded
from vllm_series.output import Output, plural
from vllm_series.project import Project
from vllm_series.restack import Ground, Recipe, Restacked, restack
from vllm_series.series import Series
from vllm_series.store import Store


@dataclass(frozen=True)
class Options:
    """What every one of these verbs can be told."""

    three_way: bool = False
    dry_run: bool = False
    index: str = ""


@dataclass(frozen=True)
class Bench:
    """A scratch repository with the supported bases; what is written into it is thrown away."""

    repository: Repository
    grounds: tuple[Ground, ...]


@dataclass(frozen=True)
class Shape:
    """The series to be.

    Attributes:
        series: The series file.
        recipe: What its patches are made of.
        same_result: Whether the patched files must stay what they are.

    """

    series: Series
    recipe: Recipe
    same_result: bool = False


@contextmanager
def workbench(out: Output, project: Project, index: str) -> Iterator[Bench]:
    """A scratch repository; releases that are not in the cache are fetched."""
    store = Store.default()
    grounds = tuple(Ground(b, bring(out, project, store, b.ref, index).commit) for b in project.bases)
    with store.repository.pristine() as repository:
        yield Bench(repository, grounds)


def rework(
    out: Output,
    project: Project,
    verb: str,
    text: str,
    make: Callable[[Project, Bench], Shape],
    options: Options,
    facts: Callable[[Change], None] | None = None,
) -> int:
    """Give the series another shape, in one step that ``undo`` takes back.

    Args:
        out: Where to report.
        project: The series.
        verb: The command.
        text: What it does, one line.
        make: Makes the new shape from the series as it is under the lock.
        options: As on the command line.
        facts: Changes what stands beside the patches.

    """
    if options.dry_run:
        with workbench(out, project, options.index) as bench:
            restacked = _restack(project, bench, make(project, bench), options)
        return conclude(out, project, f"would {text}", restacked, None)
    with workbench(out, project, options.index) as bench, recorded(project, verb, text) as change:
        shape = make(change.project, bench)
        restacked = _restack(change.project, bench, shape, options)
        write_restacked(change, restacked, shape.series.render())
        if facts is not None:
            facts(change)
    return conclude(out, project, f"ok: {text}", restacked, change.number)


def _restack(project: Project, bench: Bench, shape: Shape, options: Options) -> Restacked:
    return restack(
        project,
        bench.repository,
        bench.grounds,
        shape.recipe,
        shape.series.names,
        three_way=options.three_way,
        same_result=shape.same_result,
    )


def conclude(
    out: Output, project: Project, text: str, restacked: Restacked, number: int | None, **values: object
) -> int:
    """Say what was done, and write the document; without a number of an operation it would be done."""
    would = number is None
    for base, name in restacked.merged:
        out.warn(f"{name} {'would be' if would else 'was'} merged on {base}: read its hunks")
    written = restacked.written
    removed = sorted(path for path, content in restacked.files.items() if content is None)
    out.say(text)
    words = ("would write", "would remove") if would else ("wrote", "removed")
    for word, paths in zip(words, (written, removed), strict=True):
        if paths:
            out.say(f"  {word} {plural(len(paths), 'patch file')}: {', '.join(paths)}")
    return out.finish(
        EXIT_OK,
        root=str(project.root),
        operation=number,
        written=list(written),
        removed=removed,
        merged=[{"base": base, "name": name} for base, name in restacked.merged],
        **values,
    )


def existing(project: Project, name: str) -> str:
    """The name of a patch of the series, whether or not with ``.patch``."""
    (found,) = project.known([name])
    return found


def one_line(text: str) -> str:
    """Text that a person wrote, as the log of operations takes it."""
    return " ".join(text.split())
