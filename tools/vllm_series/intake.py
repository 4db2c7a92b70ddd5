# SPDX-License-Identifier: Apache-2.0
"""Put foreign patches on top of a commit, one after the other, and say what became of each.

git applies them, since it reads every form of diff. All are tried, also behind one that conflicts, so that
the report is complete; the result is used only if nothing conflicts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from vllm_series.git import Index, Repository
from vllm_series.incoming import Incoming
from vllm_series.messages import stated_name, tidy, trailer_of, with_trailers
from vllm_series.patchfile import Patch
from vllm_series.refresh import export, same_lines
from vllm_series.rules import ORIGIN


class Fate(StrEnum):
    """What became of a foreign patch."""

    CLEAN = "clean"
    MERGED = "needs-3way"
    PRESENT = "present"
    CONFLICT = "conflict"
    NO_DIFF = "no-diff"


@dataclass(frozen=True)
class Taken:
    """A foreign patch, and what became of it.

    Attributes:
        incoming: As it came.
        name: The name that it gets.
        fate: ``clean``, ``needs-3way`` (its context has drifted), ``present`` (its changes are there),
            ``conflict``, ``no-diff`` (a cover letter).
        detail: Why, one line; may be empty.
        notes: What was changed about its message.

    """

    incoming: Incoming
    name: str
    fate: Fate
    detail: str = ""
    notes: tuple[str, ...] = ()


@dataclass
class Intake:
    """Takes patches in on top of a commit.

    Attributes:
        bench: A scratch repository.
        start: The commit.
        taken: The names that are given away.
        origin: Value of the ``Origin`` trailer, empty for the one that each patch suggests.
        known: Every text of the patches of the series, by name.

    """

    bench: Repository
    start: str
    taken: set[str] = field(default_factory=set)
    origin: str = ""
    known: Mapping[str, Sequence[Patch]] = field(default_factory=dict)
    _tip: str = ""

    def run(self, incoming: Iterable[Incoming]) -> list[Taken]:
        """Try every patch in order."""
        self._tip = self.start
        tree = self.bench.trees([self.start])[0]
        found = []
        with self.bench.index_of(tree) as index:
            for one in incoming:
                row, tree = self._try(index, tree, one)
                found.append(row)
        return found

    def patches(self) -> list[Patch]:
        """The patches that were applied, in canonical form."""
        return export(self.bench, self.start, self._tip) if self._tip != self.start else []

    def _try(self, index: Index, tree: str, one: Incoming) -> tuple[Taken, str]:
        if not one.has_diff:
            return Taken(one, one.name, Fate.NO_DIFF, "it changes nothing"), tree
        if self._known(one):
            return Taken(one, one.name, Fate.PRESENT, "the series has it"), tree
        options = ["--reverse"] if one.reverse else []
        level, problem = self._apply(index, tree, one, options)
        fate, detail = Fate.CLEAN, ""
        if problem:
            options.append(f"-p{level}")
            back = "--reverse" not in options
            other = [*(["--reverse"] if back else []), f"-p{level}"]
            if not index.apply(one.diff, "--check", *other):
                return Taken(one, one.name, Fate.PRESENT, "its changes are there already"), tree
            fate, detail = Fate.MERGED, problem
            if index.apply(one.diff, "--3way", *options):
                index.reset(tree)
                return Taken(one, one.name, Fate.CONFLICT, problem), tree
        new = index.write_tree()
        if new == tree:
            return Taken(one, one.name, Fate.PRESENT, "its changes are there already"), tree
        name = self._name(one.name)
        body, notes = tidy(one.body)
        brought = trailer_of(body, "Origin") if not self.origin else []
        if odd := [value for value in brought if not ORIGIN.fullmatch(value)]:
            notes.append(f"check will refuse its 'Origin: {odd[0]}'; name another with --origin")
        origin = () if brought else (self.origin or one.origin,)
        trailers = [("Patch-Name", name), *(("Origin", value) for value in origin)]
        message = f"{one.subject}\n\n{with_trailers(body, trailers)}\n"
        self._tip = self.bench.commit_tree(new, self._tip, one.author, message)
        return Taken(one, name, fate, detail, tuple(notes)), new

    def _known(self, one: Incoming) -> bool:
        """Whether it is a patch of the series: later ones on the same lines may hide its changes."""
        texts = self.known.get(stated_name(one.body), ()) if not one.reverse else ()
        changes = one.changes if texts else None
        return changes is not None and any(same_lines(changes, text.changes) for text in texts)

    def _apply(self, index: Index, tree: str, one: Incoming, options: Sequence[str]) -> tuple[int, str]:
        """Apply with the right ``-p``; says which one it was, and why it cannot be applied."""
        levels = one.levels if one.strip is None else (one.strip,)
        if len(levels) == 1:
            return levels[0], index.apply(one.diff, *options, f"-p{levels[0]}")
        problems = {}
        fallback = None
        for level in levels:
            problem = index.apply(one.diff, *options, f"-p{level}")
            if problem:
                problems[level] = problem
                continue
            if self._at_home(tree, index.write_tree()):
                return level, ""
            fallback = level if fallback is None else fallback
            index.reset(tree)
        if fallback is not None:
            return fallback, index.apply(one.diff, *options, f"-p{fallback}")
        # A level at which the files are there, and the lines are not, is the right one.
        right = [level for level, text in problems.items() if text.startswith("patch failed")]
        level = (right or list(problems))[0]
        return level, problems[level]

    def _at_home(self, tree: str, new: str) -> bool:
        """Whether new files lie where the tree has folders: a wrong ``-p`` puts them elsewhere."""
        changed = self.bench.changed_paths(tree, new)
        before = self.bench.entries(tree, changed)
        folders = {path.partition("/")[0] for path in changed if path not in before and "/" in path}
        return len(self.bench.entries(tree, sorted(folders))) == len(folders)

    def _name(self, wanted: str) -> str:
        name, count = wanted, 1
        while name in self.taken:
            count += 1
            name = f"{wanted}-{count}"
        self.taken.add(name)
        return name


def refused(rows: Collection[Taken], *, three_way: bool) -> list[Taken]:
    """The patches because of which nothing can be imported."""
    bad = {Fate.CONFLICT} if three_way else {Fate.CONFLICT, Fate.MERGED}
    return [row for row in rows if row.fate in bad]
