# SPDX-License-Identifier: Apache-2.0
"""A series of 60 patches on a much older release is carried to the newest one, with conflicts.

Each patch adds a line to a file that has changed since: most in places that are the same in both, every sixth
in the middle of lines that upstream has changed. The script resolves a conflict as a person would: upstream's
file, with the line added at its end.
"""

from __future__ import annotations

import difflib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from series_support import git, link_or_copy, run_here
from vllm_series.bases import parse_bases
from vllm_series.build import commit_stack, drop_build_ref
from vllm_series.diff import parse_diff
from vllm_series.git import Ident, Repository
from vllm_series.patchfile import Patch
from vllm_series.project import Project
from vllm_series.rebasefiles import base_of
from vllm_series.refresh import export
from vllm_series.stack import Application
from vllm_series.store import Store
from vllm_series.tree import File

ROOT = Path(__file__).resolve().parents[1]
NEW = parse_bases((ROOT / "patches/base.toml").read_text())[0]
OLD = "v0.30.0"
PATCHES = 60

pytestmark = [pytest.mark.network, pytest.mark.slow]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """The user's cache with both releases, as a copy that may be written to."""
    users = Store.default()
    users.fetch(NEW.ref, NEW)
    users.fetch(OLD)
    (tmp_path / "cache").mkdir()
    shutil.copytree(users.repository.git_dir, tmp_path / "cache/vllm.git", copy_function=link_or_copy)
    return Store(tmp_path / "cache")


def places(old: str, new: str, *, collide: bool) -> Iterator[int]:
    """Where a line may be added: in lines that are the same in both, or among those that differ."""
    one, two = old.splitlines(), new.splitlines()
    for tag, start, end, _, _ in difflib.SequenceMatcher(None, one, two, autojunk=False).get_opcodes():
        if collide and tag == "replace" and end - start > 6:
            yield (start + end) // 2
        if not collide and tag == "equal" and end - start > 12 and start > 0:
            around = "\n".join(one[(start + end) // 2 - 3 : (start + end) // 2 + 3])
            if old.count(around) == 1 == new.count(around):
                yield (start + end) // 2


def make_series(repository: Repository, root: Path) -> list[str]:
    """Write the series; returns the names of the patches that collide."""
    base = repository.commit(OLD)
    paths = git(
        repository.git_dir, "diff", "--name-only", "--diff-filter=M", OLD, NEW.ref, "--", "vllm/*.py"
    ).split("\n")
    texts = []
    for ref in (OLD, NEW.ref):
        entries = repository.entries(ref, paths)
        contents = repository.objects(entry.oid for entry in entries.values())
        texts.append({path: contents[entry.oid].decode() for path, entry in entries.items()})
    applications: list[Application] = []
    colliding = []
    for path in paths:
        number = len(applications)
        if number == PATCHES:
            break
        collide = number % 6 == 5
        at = next(places(texts[0][path], texts[1][path], collide=collide), None)
        if at is None:
            continue
        lines = texts[0][path].splitlines(keepends=True)
        lines.insert(at, f"# Foreign change {number}.\n")
        name = f"foreign-{number:02d}"
        who = Ident("Ada Lovelace", "ada@example.org", 1_700_000_000 + number, "+0100")
        patch = Patch(
            name, Path(name), b"", who, f"[Core] Change {number}", f"Patch-Name: {name}\nOrigin: own", ""
        )
        applications.append(Application(patch, (), {path: File("100644", "".join(lines).encode())}))
        if collide:
            colliding.append(name)
    commits = commit_stack(repository, base, applications)
    (root / "patches").mkdir(parents=True)
    for patch in export(repository, base, commits[-1]):
        assert parse_diff(patch.diff_text)
        (root / "patches" / f"{patch.name}.patch").write_bytes(patch.raw)
    drop_build_ref(repository)
    (root / "series").write_text("".join(f"{a.patch.name}.patch\n" for a in applications))
    values = vars(base_of(OLD, next(iter(repository.commits(base, 1)))))
    rows = "".join(f'{key} = "{value}"\n' for key, value in values.items())
    (root / "patches/base.toml").write_text(f"[[base]]\n{rows}")
    return colliding


def test_sixty_patches(store, tmp_path):
    root = tmp_path / "project"
    colliding = make_series(store.repository, root)
    assert len(Project(root).series.names) == PATCHES
    env = {"VLLM_SERIES_CACHE": str(store.folder), "VLLM_SERIES_DIR": str(root)}
    started = time.perf_counter()
    result = run_here("rebase", NEW.ref, "--json", env=env)
    asked = []
    while result.code == 3:
        question = result.document["question"]
        asked.append(question["patch"])
        assert question["verdict"] == "conflict"
        assert question["upstream"][0]["sources"], question
        assert question["upstream"][0]["lines"], question
        tree = Path(question["tree"])
        (path,) = question["conflicts"]
        git(tree, "checkout", "--quiet", "--ours", "--", path)
        with (tree / path).open("a") as stream:
            stream.write(f"# Foreign change {int(question['patch'][-2:])}.\n")
        git(tree, "add", "--", path)
        result = run_here("rebase", "--continue", "--json", env=env)
    assert result.code == 0, (asked, result.err)
    seconds = time.perf_counter() - started
    print(
        f"{PATCHES} patches, {len(asked)} conflicts: {seconds:.1f} s, {seconds / PATCHES * 1000:.0f} ms each"
    )
    assert asked == colliding
    report = result.document["report"]
    assert report["ok"]
    assert report["unexplained"] == []
    for patch in report["patches"]:
        touched = patch["name"] in colliding
        assert (patch["how"] == "resolved") == touched, patch
        # The line is the same one; where it was resolved it stands elsewhere.
        assert patch["lines"], patch
        assert patch["patch_id"] != touched, patch
    assert run_here("status", "--json", env=env).code == 0
