# SPDX-License-Identifier: Apache-2.0
"""What is said of patches when upstream has taken them in its many ways, on histories made of real changes.

The changes are those between two releases, file by file. Each becomes a patch on the older one, and a made-up
history takes it exactly, squashed with others, edited by a reviewer, in part, reverted later, moved away, or
not at all. The verdicts are printed as a table.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from series_support import git, link_or_copy
from vllm_series.bases import parse_bases
from vllm_series.build import quote_path
from vllm_series.git import Repository
from vllm_series.patchfile import Patch
from vllm_series.plan import Target
from vllm_series.project import Project
from vllm_series.rebasing import Carry, snapshot_of, step
from vllm_series.refresh import export
from vllm_series.store import Store

ROOT = Path(__file__).resolve().parents[1]
BASES = parse_bases((ROOT / "patches/base.toml").read_text())
NEWER, OLDER = BASES[0], BASES[1]
#: The release that the made-up histories lead to.
NEXT = "v0.32.9"
PER_KIND = 5

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The user's cache, filled if it is not, as a copy that may be written to."""
    users = Store.default()
    for base in BASES:
        users.fetch(base.ref, base)
    target = tmp_path_factory.mktemp("upstream") / "cache"
    target.mkdir()
    shutil.copytree(users.repository.git_dir, target / "vllm.git", copy_function=link_or_copy)
    return Store(target)


@dataclass(frozen=True)
class RealChange:
    """One file between two releases."""

    path: str
    old: str
    new: str

    @property
    def name(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.path.lower()).strip("-")


def real_changes(repository: Repository) -> list[RealChange]:
    """Changes of a size that patches have, the same ones in every run."""
    rows = git(
        repository.git_dir, "diff", "--numstat", "--diff-filter=M", "--no-renames", OLDER.ref, NEWER.ref,
        "--", "vllm/*.py",
    )  # fmt: skip
    found = []
    for row in rows.split("\n"):
        added, removed, path = row.split("\t")
        if 4 <= int(added) <= 60 and int(removed) <= 60:
            found.append(path)
    sides = []
    for ref in (OLDER.ref, NEWER.ref):
        entries = repository.entries(ref, found)
        contents = repository.objects(e.oid for e in entries.values())
        sides.append({path: contents[entry.oid].decode() for path, entry in entries.items()})
    return [RealChange(path, sides[0][path], sides[1][path]) for path in sorted(found)]


def commit_files(
    repository: Repository, parent: str | None, text: str, files: Mapping[str, str | None]
) -> str:
    """One commit on top of another, written as objects."""
    ref = b"refs/vllm-series/test"
    stream = b"feature done\ncommit %b\nmark :1\ncommitter Ada Lovelace <ada@example.org> 1700000000 +0100\n"
    out = bytearray(stream % ref)
    out += b"data %d\n%b\n" % (len(text.encode()), text.encode())
    if parent:
        out += b"from %b\n" % parent.encode()
    for path, content in files.items():
        if content is None:
            out += b"D %b\n" % quote_path(path)
        else:
            raw = content.encode()
            out += b"M 100644 inline %b\ndata %d\n%b\n" % (quote_path(path), len(raw), raw)
    return repository.fast_import(bytes(out) + b"get-mark :1\ndone\n").decode().strip()


# -- what upstream does with a change: the file afterwards, None for "as it was" --------------------------


def hunks_of(change: RealChange) -> list[tuple[int, int, int, int]]:
    import difflib

    matcher = difflib.SequenceMatcher(None, change.old.splitlines(True), change.new.splitlines(True), False)
    return [(a, b, c, d) for tag, a, b, c, d in matcher.get_opcodes() if tag != "equal"]


def edited(change: RealChange) -> str | None:
    """A reviewer has changed one of the lines that the patch adds."""
    old, new = change.old.splitlines(True), change.new.splitlines(True)
    for _, _, start, end in hunks_of(change):
        for number in range(start, end):
            line = new[number]
            if len(line.strip()) > 12 and line not in old and new.count(line) == 1:
                return "".join([*new[:number], line.rstrip("\n") + "  # as reviewed\n", *new[number + 1 :]])
    return None


def shortened(change: RealChange) -> str | None:
    """A reviewer has taken one of the added lines out."""
    old, new = change.old.splitlines(True), change.new.splitlines(True)
    for _, _, start, end in hunks_of(change):
        for number in range(start, end):
            if len(new[number].strip()) > 12 and new[number] not in old and new.count(new[number]) == 1:
                return "".join(new[:number] + new[number + 1 :])
    return None


def half(change: RealChange) -> str | None:
    """Only the first of several places, far enough from the next one to be a hunk of its own."""
    rows = hunks_of(change)
    if len(rows) < 2 or rows[1][0] - rows[0][1] < 8:
        return None
    first = rows[0]
    old, new = change.old.splitlines(True), change.new.splitlines(True)
    lines = old[: first[0]] + new[first[2] : first[3]] + old[first[1] :]
    return "".join(lines)


KINDS: dict[str, Callable[[RealChange], str | None]] = {
    "exact": lambda c: c.new,
    "squashed": lambda c: c.new,
    "squashed, moved down": lambda c: "# A line more.\n\n" + c.new,
    "edited": edited,
    "shortened": shortened,
    "half": half,
    "reverted": lambda c: c.old,
    "file moved": lambda c: c.old,
    "copied elsewhere": lambda c: c.old,
    "untouched": lambda c: c.old,
    "lines above": lambda c: "# Three\n# lines\n# more.\n" + c.old,
}
EXACT, EQUIVALENT, PARTIAL = "upstream-exact", "upstream-equivalent", "upstream-partial"
HAS_IT = {EXACT, EQUIVALENT}
APPLIES = {"clean", "offset"}


@pytest.fixture(scope="module")
def kinds(store) -> dict[str, list[RealChange]]:
    """Which change is for which kind; every change serves once."""
    rest = real_changes(store.repository)
    found: dict[str, list[RealChange]] = defaultdict(list)
    # Those that few changes are fit for choose first.
    for kind in sorted(KINDS, key=lambda k: k not in ("half", "edited", "shortened")):
        for change in list(rest):
            if len(found[kind]) < PER_KIND and KINDS[kind](change) is not None:
                found[kind].append(change)
                rest.remove(change)
    return found


@pytest.fixture(scope="module")
def project(store, kinds, tmp_path_factory) -> Project:
    """A series with one patch per change, on the older release."""
    root = tmp_path_factory.mktemp("upstream") / "project"
    (root / "patches").mkdir(parents=True)
    repository = store.repository
    base = tip = repository.commit(OLDER.ref)
    for change in (c for rows in kinds.values() for c in rows):
        text = f"[Core] Change {change.path}\n\nPatch-Name: {change.name}\nOrigin: own\n"
        tip = commit_files(repository, tip, text, {change.path: change.new})
    for patch in export(repository, base, tip):
        (root / "patches" / f"{patch.name}.patch").write_bytes(patch.raw)
        with (root / "series").open("a") as stream:
            stream.write(f"{patch.name}.patch\n")
    rows = "".join(f'{key} = "{value}"\n' for key, value in vars(OLDER).items())
    (root / "patches/base.toml").write_text(f"[[base]]\n{rows}")
    return Project(root)


def make_history(store: Store, kinds: Mapping[str, list[RealChange]]) -> str:
    """Upstream's commits on top of the older release; returns the last one."""
    repository = store.repository
    tip = repository.commit(OLDER.ref)
    for number, change in enumerate(kinds["exact"]):
        tip = commit_files(repository, tip, f"Take {number}", {change.path: change.new})
    for kind in ("edited", "shortened", "half", "lines above", "squashed, moved down"):
        for change in kinds[kind]:
            tip = commit_files(repository, tip, f"{kind}", {change.path: KINDS[kind](change)})
    files = {change.path: change.new for change in kinds["squashed"]}
    tip = commit_files(repository, tip, "Squashed", {**files, "NEWS.md": "News.\n"})
    for change in kinds["reverted"]:
        tip = commit_files(repository, tip, "Take", {change.path: change.new})
        tip = commit_files(repository, tip, "Revert", {change.path: change.old})
    for change in kinds["file moved"]:
        files = {change.path: None, change.path.replace("vllm/", "vllm/moved/"): change.old}
        tip = commit_files(repository, tip, "Move", files)
    for change in kinds["copied elsewhere"]:
        tip = commit_files(repository, tip, "Copy", {f"copies/{change.path}": change.new})
    return tip


def judge_all(project: Project, store: Store, commit: str, repository: Repository) -> dict[str, str]:
    """The verdict on every patch, as a rebase would come to it."""
    patches: tuple[Patch, ...] = tuple(project.patches(project.pinned))
    old = store.repository.commit(OLDER.ref)
    carry = Carry(
        project=project,
        store=store,
        patches=patches,
        target=Target(repository, commit, NEXT, project.pinned),
        old_base=snapshot_of(store, old, patches),
        new_base=snapshot_of(store, commit, patches),
    )
    snapshot = carry.new_base
    found = {}
    for patch in patches:
        this = step(carry, snapshot, patch)
        found[patch.name] = this.verdict.verdict.value
        if not this.asks and this.application is not None:
            snapshot = snapshot.with_changes(this.application.changes)
    return found


def print_table(title: str, table: Mapping[str, Counter[str]]) -> None:
    verdicts = sorted({verdict for row in table.values() for verdict in row})
    print(f"\n{title}")
    print(f"{'upstream did':<24}" + "".join(f"{verdict:>21}" for verdict in verdicts))
    for kind in KINDS:
        print(f"{kind:<24}" + "".join(f"{table[kind][verdict] or '':>21}" for verdict in verdicts))


@pytest.mark.parametrize("history", [True, False], ids=["with history", "release alone"])
def test_verdicts(store, project, kinds, history):
    tip = make_history(store, kinds)
    commit = tip
    if not history:
        # As a release from the package index is imported: the same files, no past.
        tree = store.repository.trees([tip])[0]
        commit = git(store.repository.git_dir, "commit-tree", tree, "-m", NEXT)
    verdicts = judge_all(project, store, commit, store.repository)
    table = {kind: Counter(verdicts[change.name] for change in rows) for kind, rows in kinds.items()}
    print_table("with upstream's history" if history else "with the released files alone", table)
    for kind, row in table.items():
        assert row.total() == PER_KIND, kind
    assert set(table["exact"]) == ({EXACT} if history else {EQUIVALENT})
    assert set(table["squashed"]) == {EQUIVALENT}
    assert set(table["squashed, moved down"]) == {EQUIVALENT}
    for kind in ("reverted", "copied elsewhere", "untouched", "lines above"):
        assert set(table[kind]) <= APPLIES, kind
    # What upstream has only in part, or otherwise, is never taken for the whole.
    for kind in ("edited", "shortened", "half", "file moved"):
        assert not HAS_IT.intersection(table[kind]), kind
        assert not APPLIES.intersection(table[kind]), kind
    assert set(table["half"]) == {PARTIAL}
    assert set(table["file moved"]) == {"target-moved"}
