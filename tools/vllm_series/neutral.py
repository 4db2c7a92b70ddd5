# SPDX-License-Identifier: Apache-2.0
"""Whether a rebase changed nothing but what it was meant to.

Two proofs. Each patch that nobody touched changes the same lines in the same functions as before. And what
upstream did from the old base to the new one is also what lies between the two patched trees, outside the
lines of patches that were resolved, merged or dropped.
"""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vllm_series import git
from vllm_series.git import Repository, TreeEntry
from vllm_series.linediff import LineChange, parse_line_diff
from vllm_series.patchfile import Patch
from vllm_series.verdict import Reference


@dataclass(frozen=True)
class PatchNeutrality:
    """What became of one patch.

    Attributes:
        name: The patch.
        how: How it came over.
        patch_id: Whether git's patch id is the same.
        lines: Whether it adds and removes the same lines of the same files.
        scopes: Functions that a hunk lands in now and did not before, with the file.

    """

    name: str
    how: str
    patch_id: bool
    lines: bool
    scopes: tuple[str, ...]

    @property
    def touched(self) -> bool:
        """Whether a merge or a person changed its surroundings or text."""
        return self.how not in ("clean", "offset")

    @property
    def ok(self) -> bool:
        """Whether it does what it did, or was touched on purpose."""
        return self.touched or (self.lines and not self.scopes)


@dataclass(frozen=True)
class Difference:
    """A line, with its sign, that one of two diffs has and the other has not."""

    path: str
    line: str


@dataclass(frozen=True)
class Neutrality:
    """The report.

    Attributes:
        patches: Per patch, in order.
        files: How many files were compared.
        explained: How many lines differ that are those of touched or dropped patches.
        unexplained: The other differences, of which there must be none.

    """

    patches: tuple[PatchNeutrality, ...]
    files: int
    explained: int
    unexplained: tuple[Difference, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing else changed."""
        return not self.unexplained and all(patch.ok for patch in self.patches)


def changed_lines(patch: Patch) -> list[tuple[str, str, tuple[tuple[str, bytes], ...]]]:
    """Per file what a patch does to it, without context and positions."""
    return [
        (
            change.action.value,
            change.path,
            tuple(
                (line.tag, line.content) for hunk in change.hunks for line in hunk.lines if line.tag != " "
            ),
        )
        for change in patch.changes
    ]


def compare_patches(
    repository: Repository,
    old: Mapping[str, Patch],
    new: Sequence[Patch],
    how: Mapping[str, str],
    references: tuple[Reference, Reference],
) -> tuple[PatchNeutrality, ...]:
    """Compare each carried patch with what it was.

    Args:
        repository: For patch ids.
        old: The patches on the old base, by name.
        new: The patches on the new base.
        how: How each came over.
        references: Where the hunks landed, before and after.

    """
    ids_before = repository.patch_id_list([old[patch.name].raw for patch in new])
    ids_after = repository.patch_id_list([patch.raw for patch in new])
    before, after = (_scopes(reference) for reference in references)
    return tuple(
        PatchNeutrality(
            name=patch.name,
            how=how[patch.name],
            patch_id=one == two,
            lines=changed_lines(old[patch.name]) == changed_lines(patch),
            scopes=tuple(sorted(after[patch.name] - before[patch.name])),
        )
        for patch, one, two in zip(new, ids_before, ids_after, strict=True)
    )


def _scopes(reference: Reference) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for (name, path, _), scope in reference.scopes.items():
        found[name].add(f"{path}: {scope or 'the module'}")
    return found


def compare_trees(
    repository: Repository,
    bases: tuple[str, str],
    results: tuple[str, str],
    touched: Iterable[Patch],
    paths: Sequence[str],
) -> tuple[int, list[Difference]]:
    """Compare what lies between the bases with what lies between the results.

    Args:
        repository: Holds all four commits.
        bases: Old and new base.
        results: Old and new base with the series.
        touched: Both texts of each patch that was merged, resolved or dropped.
        paths: Every path that the series changes, before or after.

    Returns:
        How many lines differ that are the touched patches' own, and the other differences.

    """
    theirs = _by_path(parse_line_diff(repository.line_diff(*bases, paths)))
    ours = _by_path(parse_line_diff(repository.line_diff(*results, paths)))
    own: dict[str, set[bytes]] = defaultdict(set)
    for patch in touched:
        for _, path, lines in changed_lines(patch):
            own[path].update(content.strip() for _, content in lines)
    explained = 0
    rest: list[Difference] = []
    for path in sorted(theirs.keys() | ours.keys()):
        one, two = theirs[path], ours[path]
        beyond = (one - two) + (two - one)
        foreign = [line for line in beyond if line[1].strip() and line[1].strip() not in own[path]]
        if foreign and own[path]:
            # Around other lines git may show a kept line as removed and added: then it cancels out.
            foreign = [line for line in foreign if _net(one, line[1]) != _net(two, line[1])]
        explained += beyond.total() - sum(beyond[line] for line in foreign)
        for sign, content in foreign:
            rest.append(Difference(path, sign + content.decode("utf-8", "replace").rstrip("\n")))
    odd = sorted({difference.path for difference in rest})
    files = [repository.entries(commit, odd) for commit in (*bases, *results)]
    contents = repository.objects({e.oid for side in files for e in side.values() if e.kind == "blob"})
    # The same change can be written down as different lines.
    neutral = {path for path in odd if _merges(*(_content(side, path, contents) for side in files))}
    return explained, [difference for difference in rest if difference.path not in neutral]


def _by_path(changes: Iterable[LineChange]) -> dict[str, Counter[tuple[str, bytes]]]:
    found: dict[str, Counter[tuple[str, bytes]]] = defaultdict(Counter)
    for change in changes:
        found[change.path].update(change.lines)
    return found


def _net(lines: Counter[tuple[str, bytes]], content: bytes) -> int:
    return lines["+", content] - lines["-", content]


def _content(side: Mapping[str, TreeEntry], path: str, contents: Mapping[str, bytes]) -> bytes:
    return contents.get(side[path].oid, b"") if path in side else b""


def _merges(old_base: bytes, new_base: bytes, old_result: bytes, new_result: bytes) -> bool:
    """Whether git merges upstream's change and the series' to exactly the new result."""
    with tempfile.TemporaryDirectory(prefix="vllm-series-merge-") as folder:
        return git.merge_file(new_base, old_base, old_result, Path(folder)) == new_result
