# SPDX-License-Identifier: Apache-2.0
"""``vllm-series deps`` and ``graph``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vllm_series.commands.fetch import bring
from vllm_series.dependencies import declared, order_matters, prerequisites, reduced
from vllm_series.errors import EXIT_NO, EXIT_OK, UsageError
from vllm_series.output import Output, plural
from vllm_series.patchfile import Patch, paths_of
from vllm_series.project import find_project
from vllm_series.store import Store
from vllm_series.tree import Snapshot


@dataclass(frozen=True)
class Needs:
    """The patches of one base and what each of them needs.

    Attributes:
        ref: The base.
        snapshot: Its files.
        patches: The patches in order.
        stated: What they declare.
        every: That, united with what their texts need.

    """

    ref: str
    snapshot: Snapshot
    patches: Sequence[Patch]
    stated: Mapping[str, Sequence[str]]
    every: Mapping[str, Sequence[str]]


def _find(out: Output, series_dir: Path | None, onto: str | None, index: str) -> Needs:
    project = find_project(series_dir)
    base = next((b for b in project.bases if b.ref == (onto or project.pinned.ref)), None)
    if base is None:
        raise UsageError(
            f"{onto} is no supported base", hint="supported: " + ", ".join(b.ref for b in project.bases)
        )
    store = Store.default()
    commit = bring(out, project, store, base.ref, index).commit
    patches = project.patches(base)
    snapshot = Snapshot.at(store.repository, commit, paths_of(patches))
    stated = declared(patches, project.series.names)
    return Needs(base.ref, snapshot, patches, stated, prerequisites(snapshot, patches))


def deps(out: Output, series_dir: Path | None, check: bool, onto: str | None, index: str) -> int:
    """List what each patch needs; with ``check``, try every pair that should commute."""
    needs = _find(out, series_dir, onto, index)
    names = [patch.name for patch in needs.patches]
    textual = {name: [n for n in needs.every[name] if n not in needs.stated[name]] for name in names}
    out.table(
        ("patch", "needs", "declared"),
        [(name, ", ".join(textual[name]) or "-", ", ".join(needs.stated[name]) or "-") for name in names],
    )
    found = order_matters(needs.snapshot, needs.patches, needs.every) if check else []
    for pair in found:
        out.say(
            f"{pair.first} and {pair.second} need nothing of each other and do not commute: {pair.problem}"
        )
    if check and not found:
        out.say(f"ok: {plural(len(names), 'patch')}; those that need nothing of each other commute")
    return out.finish(
        EXIT_NO if found else EXIT_OK,
        base=needs.ref,
        patches=[
            {"name": name, "needs": list(needs.every[name]), "declared": list(needs.stated[name])}
            for name in names
        ],
        order_matters=[vars(pair) for pair in found] if check else None,
    )


def graph(out: Output, series_dir: Path | None, dot: bool, onto: str | None, index: str) -> int:
    """Draw what each patch needs, as a tree or for Graphviz; needs that others bring along are left out."""
    needs = _find(out, series_dir, onto, index)
    direct = reduced(needs.every)
    for line in _dot(needs, direct) if dot else _tree(direct):
        out.say(line)
    return out.finish(
        EXIT_OK,
        base=needs.ref,
        edges=[
            {"from": name, "to": need, "declared": need in needs.stated[name]}
            for name, wanted in direct.items()
            for need in wanted
        ],
    )


def _dot(needs: Needs, direct: Mapping[str, Sequence[str]]) -> Iterator[str]:
    yield "digraph series {"
    yield "  rankdir=LR; node [shape=box];"
    for name, wanted in direct.items():
        yield f'  "{name}";'
        for need in wanted:
            style = " [style=dashed]" if need in needs.stated[name] else ""
            yield f'  "{name}" -> "{need}"{style};'
    yield "}"


def _tree(direct: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Each patch below the last one that it needs; others that it needs stand behind its name."""
    order = list(direct)
    parent = {name: max(wanted, key=order.index) for name, wanted in direct.items() if wanted}

    def below(name: str, lead: str) -> Iterator[str]:
        children = [child for child in order if parent.get(child) == name]
        for child in children:
            last = child == children[-1]
            others = [need for need in direct[child] if need != name]
            more = f"  (and {', '.join(others)})" if others else ""
            yield f"{lead}{'└── ' if last else '├── '}{child}{more}"
            yield from below(child, lead + ("    " if last else "│   "))

    for name in order:
        if name not in parent:
            yield name
            yield from below(name, "")
