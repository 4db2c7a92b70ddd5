# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from series_support import RELEASE_33, commit, files_of, git, init, release_tree
from vllm_series.git import Repository
from vllm_series.trees import Trees

CHANGED = {
    "vllm/engine.py": "new = 1\n",
    "vllm/added/__init__.py": "",
    "vllm/worker.py": None,
    "docs/with space.md": "more space\n",
    "docs/naïve.md": None,
}


@pytest.fixture
def trees(tmp_path):
    """The folders of a base and of a tree with changes; both are made."""
    root = init(tmp_path / "vllm")
    release_tree(root, RELEASE_33)
    commit(root, "base")
    commit(root, "change", CHANGED)
    return Trees(tmp_path / "trees", Repository(root / ".git", root / ".git"))


@pytest.fixture
def ids(trees):
    return trees.repository.trees(["HEAD~", "HEAD"])


def expected(trees, commit_, tmp_path):
    target = tmp_path / f"expected-{commit_}"
    git(tmp_path, "clone", "--quiet", str(trees.repository.git_dir), str(target))
    git(target, "checkout", "--quiet", "--detach", trees.repository.commit(commit_))
    return files_of(target)


def test_a_folder_has_exactly_the_files_of_its_tree(trees, ids, tmp_path):
    base, changed = ids
    unchanged = expected(trees, "HEAD~", tmp_path)
    assert files_of(trees.get(base)) == unchanged
    assert files_of(trees.get(changed, base)) == expected(trees, "HEAD", tmp_path)
    assert files_of(trees.get(base)) == unchanged


def test_unchanged_files_and_compiled_ones_are_links(trees, ids):
    base, changed = ids
    place = trees.get(base)
    script = "import vllm.engine, vllm.scheduler"
    subprocess.run([sys.executable, "-c", script], cwd=place, check=True, env={"PYTHONPATH": str(place)})
    other = trees.get(changed, base)
    assert (place / "vllm/scheduler.py").samefile(other / "vllm/scheduler.py")
    assert not (place / "vllm/engine.py").samefile(other / "vllm/engine.py")
    compiled = {path.name.split(".")[0] for path in (other / "vllm/__pycache__").iterdir()}
    assert compiled == {"__init__", "scheduler"}
    code = "import vllm.engine; print(vllm.engine.new)"
    subprocess.run([sys.executable, "-c", code], cwd=other, check=True, env={"PYTHONPATH": str(other)})


def test_a_base_is_compiled_once_for_all(trees, ids):
    base, changed = ids
    compiling = Trees(trees.folder, trees.repository, Path(sys.executable))
    other = compiling.get(changed, base)
    assert {path.name.split(".")[0] for path in (other / "vllm/__pycache__").iterdir()} >= {"scheduler"}
    assert not list((other / "vllm/__pycache__").glob("engine.*"))


def test_a_folder_is_made_once(trees, ids):
    base, changed = ids
    place = trees.get(changed, base)
    before = place.stat().st_ino
    assert trees.get(changed, base).stat().st_ino == before
    os.utime(place / "vllm/engine.py")  # Another time is no other content.
    assert trees.get(changed, base).stat().st_ino == before


@pytest.mark.parametrize("damage", ["write", "same size", "delete", "half made"])
def test_a_damaged_folder_is_made_anew(trees, ids, tmp_path, damage):
    base, changed = ids
    place = trees.get(changed, base)
    file = place / "vllm/scheduler.py"
    if damage == "write":  # In place, so the base's folder is damaged as well.
        file.write_text("oops\n")
    elif damage == "same size":
        file.write_bytes(file.read_bytes().replace(b"picked", b"picker"))
    elif damage == "delete":
        file.unlink()
    else:
        (trees.folder / f"{changed}.index").unlink()
    assert files_of(trees.get(changed, base)) == expected(trees, "HEAD", tmp_path)
    assert files_of(trees.get(base)) == expected(trees, "HEAD~", tmp_path)


def test_the_least_recently_used_go_first(trees, ids):
    base, changed = ids
    for number, tree in enumerate((base, changed)):
        os.utime(trees.get(tree), (number, number))
    (trees.folder / f"{base}.cache").mkdir()
    trees.prune(limit=1)
    assert sorted(path.name for path in trees.folder.iterdir()) == [changed, f"{changed}.index"]
    trees.prune(keep=[changed], limit=0)
    assert (trees.folder / changed).is_dir()


def test_a_damaged_folder_is_made_anew_when_nobody_uses_it(trees, ids):
    base, changed = ids
    order = []

    def again():
        with trees.use(changed, base) as place:
            order.append((place / "vllm/scheduler.py").read_text() != "oops\n")

    other = threading.Thread(target=again)
    with trees.use(changed, base) as place, trees.use(changed, base):
        (place / "vllm/scheduler.py").write_text("oops\n")
        other.start()
        time.sleep(0.3)
        assert (place / "vllm/scheduler.py").read_text() == "oops\n"
        order.append("left")
    other.join(30)
    assert order == ["left", True]
