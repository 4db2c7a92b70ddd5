# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from vllm_series import environment
from vllm_series.environment import FILES, MODELS, PYTHON_PATH
from vllm_series.errors import EnvironmentFaultError, PreconditionError
from vllm_series.locks import locked


@pytest.fixture
def files(tmp_path):
    """Requirement files that ask for nothing."""
    folder = tmp_path / "files"
    folder.mkdir()
    for name in ("requirements.txt", "constraints.txt"):
        (folder / name).write_text("# Nothing.\n")
    return folder


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    for name in (environment.ENVIRONMENT_VARIABLE, environment.INDEX_VARIABLE):
        monkeypatch.delenv(name, raising=False)


def create(tmp_path, files, **more):
    return list(environment.create(tmp_path / "cache", files=files, **more))


def test_an_environment_is_made_once(tmp_path, files):
    folder = environment.own_folder(tmp_path / "cache", files)
    assert create(tmp_path, files)[0] == f"making {folder}"
    found = environment.probe(folder)
    assert found.python == ".".join(map(str, sys.version_info[:3]))
    assert environment.is_whole(folder)
    assert create(tmp_path, files) == []


def test_changed_requirements_make_another_one(tmp_path, files):
    before = environment.own_folder(tmp_path, files)
    (files / "constraints.txt").write_text("six==1.17.0\n")
    assert environment.own_folder(tmp_path, files) != before


def test_a_killed_creation_is_made_anew(tmp_path, files):
    folder = environment.own_folder(tmp_path / "cache", files)
    making = environment.create(tmp_path / "cache", files=files)
    next(making)
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").write_text("junk")
    making.close()
    assert not environment.is_whole(folder)
    create(tmp_path, files)
    assert environment.probe(folder)


def test_two_do_not_make_the_same_one(tmp_path, files):
    folder = environment.own_folder(tmp_path / "cache", files)
    with locked(folder.with_name(f"{folder.name}.lock"), "it"), pytest.raises(PreconditionError):
        create(tmp_path, files)


def test_a_failed_installation_is_an_environment_fault(tmp_path, files, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    (files / "requirements.txt").write_text("torch==0.0.0+none\n")
    with pytest.raises(EnvironmentFaultError) as caught:
        create(tmp_path, files)
    assert caught.value.exit_code == 5
    assert "torch" in caught.value.message
    assert environment.CPU_INDEX in caught.value.hint
    assert not environment.is_whole(environment.own_folder(tmp_path / "cache", files))


@pytest.mark.parametrize("kind", ["missing", "fails"])
def test_a_named_environment_must_work(tmp_path, monkeypatch, kind):
    if kind == "fails":
        python = environment.interpreter(tmp_path)
        python.parent.mkdir()
        python.write_text("#!/bin/sh\necho broken >&2; exit 1\n")
        python.chmod(0o755)
    monkeypatch.setenv(environment.ENVIRONMENT_VARIABLE, str(tmp_path))
    with pytest.raises(EnvironmentFaultError):
        environment.find(tmp_path)


def pins():
    text = (FILES / "constraints.txt").read_text()
    return dict(re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE))


def test_every_requirement_is_pinned():
    normal = {name.lower().replace("_", "-") for name in pins()}
    rows = (FILES / "requirements.txt").read_text().splitlines()
    wanted = {re.split(r"[\[=<>]", row)[0] for row in rows if row and not row.startswith("#")}
    assert not {name.lower().replace("_", "-") for name in wanted} - normal
    assert "==" not in "".join(row for row in rows if not row.startswith("#"))


def test_a_cuda_build_cannot_come_in():
    text = (FILES / "constraints.txt").read_text()
    assert pins()["torch"] == "2.13.0"
    for name in ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-nccl-cu13", "cuda-bindings"):
        assert f"\n{name}<0\n" in text


def test_no_file_names_a_machine():
    for path in FILES.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            # Any absolute path would be some machine's, but for what every Linux has.
            found = re.search(
                r"(?:^|[\s\"'=(,:])/(?!proc/|dev/)[A-Za-z]\w*/|file://", path.read_text(), re.MULTILINE
            )
            assert not found, (path, found)


def test_model_configurations_can_be_read():
    found = {path.parent.relative_to(MODELS).as_posix() for path in MODELS.rglob("config.json")}
    assert found == {"Qwen/Qwen3-0.6B", "Qwen/Qwen1.5-7B"}
    for name in found:
        assert json.loads((MODELS / name / "config.json").read_text())["architectures"]


# -- what is put into the path of the tests ----------------------------------------------------------------


def python(code, tmp_path, *path, **env):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(map(str, (*path, PYTHON_PATH))), **env},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def two_trees(tmp_path):
    for name in ("tree", "other"):
        (tmp_path / name / "vllm").mkdir(parents=True)
        (tmp_path / name / "vllm" / "__init__.py").write_text(f"name = {name!r}\n")
    return tmp_path / "tree", tmp_path / "other"


def guarded(tmp_path, tree):
    return {"VLLM_SERIES_TREE": str(tree), "VLLM_SERIES_FOREIGN": str(tmp_path / "foreign")}


def test_the_tree_is_imported(tmp_path, two_trees):
    tree, other = two_trees
    done = python("import vllm; print(vllm.name)", tmp_path, tree, other, **guarded(tmp_path, tree))
    assert (done.returncode, done.stdout, done.stderr) == (0, "tree\n", "")
    assert not (tmp_path / "foreign").exists()


def test_another_vllm_is_refused(tmp_path, two_trees):
    tree, other = two_trees
    code = f"import sys; sys.path.insert(0, {str(other)!r})\nimport vllm"
    done = python(code, tmp_path, tree, **guarded(tmp_path, tree))
    assert done.returncode == 1
    assert f"not from the tree {tree}" in done.stderr
    assert str(other / "vllm/__init__.py") in (tmp_path / "foreign").read_text()


def test_another_vllm_is_refused_in_a_spawned_child(tmp_path, two_trees):
    tree, other = two_trees
    code = (
        "import multiprocessing, sys\n"
        "def child():\n    import vllm\n"
        "if __name__ == '__main__':\n"
        f"    sys.path.insert(0, {str(other)!r})\n"
        "    process = multiprocessing.get_context('spawn').Process(target=child)\n"
        "    process.start(); process.join(); sys.exit(0)\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    environment_ = {"PYTHONPATH": f"{tree}:{PYTHON_PATH}", **guarded(tmp_path, tree)}
    subprocess.run([sys.executable, str(script)], env=environment_, check=True, capture_output=True)
    assert str(other) in (tmp_path / "foreign").read_text()


FAKE_TORCH = """
class Ops:
    def load_library(self, path):
        raise OSError("libcudart is missing")
class Library:
    def __init__(self, name, kind): print("library", name, kind)
    def define(self, schema): print("define", schema.split("(")[0])
class library:
    Library = Library
ops = Ops()
"""


@pytest.mark.parametrize("loads", [False, True])
def test_operators_of_torchvision_are_declared_if_its_own_cannot_be_loaded(tmp_path, loads):
    vision = tmp_path / "torchvision"
    vision.mkdir()
    (vision / "__init__.py").write_text("print('torchvision')\n")
    (vision / "_C.so").write_bytes(b"")
    torch = FAKE_TORCH.replace("raise OSError", "return str") if loads else FAKE_TORCH
    (tmp_path / "torch.py").write_text(torch)
    done = python("import torchvision", tmp_path, tmp_path)
    declared = "" if loads else "library torchvision DEF\ndefine nms\ndefine qnms\n"
    assert (done.stdout, done.stderr) == (f"{declared}torchvision\n", "")


def test_torch_is_not_imported_before_it_is_needed(tmp_path):
    done = python("import sys; print('torch' in sys.modules)", tmp_path)
    assert (done.stdout, done.stderr) == ("False\n", "")
    assert Path(PYTHON_PATH / "sitecustomize.py").is_file()
