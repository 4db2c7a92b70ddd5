# SPDX-License-Identifier: Apache-2.0
"""The facts, from real files; the driver is played by a module, for there is none here."""

from __future__ import annotations

import os
import sys

import flash_next
import pytest
from driver_support import Driver
from vllm_series.preflight import gather as gathering
from vllm_series.preflight.arguments import parse_arguments
from vllm_series.preflight.engines import find_engine
from vllm_series.preflight.facts import Finding, Gpu
from vllm_series.preflight.gather import gather, read_cdi, visible
from vllm_series.project import find_project


@pytest.fixture
def driver(monkeypatch):
    played = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", played)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return played


def test_snapshot(driver, tmp_path, monkeypatch):
    folder = flash_next.write_checkpoint(tmp_path / "model", "gptq")
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    facts = gather(parse_arguments([str(folder)]), None, None, os.environ)
    assert facts.driver == "580.95.05"
    assert [gpu.capability for gpu in facts.gpus] == [(8, 6)] * 2
    assert facts.gpus[0].processes[0].pid == 1
    assert facts.gpus[0].processes[0].name
    assert facts.gpus[1].processes == ()
    assert driver.shut == 1
    assert facts.model.layers == 48
    assert facts.weights.table > 0
    assert facts.shadow == tmp_path / "vllm"
    assert facts.memory >= facts.memory_free > 0
    assert facts.shared >= facts.shared_free >= 0


def test_driver_that_does_not_answer(driver):
    driver.broken = True
    facts = gather(parse_arguments([]), None, None, os.environ)
    assert facts.gpus == ()
    assert "version mismatch" in facts.driver_problem


def test_no_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "nvidia-ml-py is missing" in gather(parse_arguments([]), None, None, os.environ).driver_problem


def problem_of(model: object) -> Finding:
    found = gather(parse_arguments([str(model)]), None, None, os.environ).model_problem
    assert found is not None
    return found


def test_no_folder(driver, tmp_path):
    """A model of a hub is somewhere else, and may be in order; any other word is no model."""
    found = problem_of("Qwen/X")
    assert (found.stops, "is no folder here" in found.what) == (False, True)
    for word in ("docker", "…", str(tmp_path / "nope"), "./nope", "a/b/c"):
        found = problem_of(word)
        assert found.stops
        assert found.what.startswith(f"{word} is neither a folder here nor a model of a hub")


def test_missing_and_not_understood_are_told_apart(driver, tmp_path):
    missing = "what is not here cannot be checked"
    folder = flash_next.write_checkpoint(tmp_path / "model", "gptq")
    config = folder / "config.json"
    text = config.read_text()
    for broken, what, do in (
        ("{", "is no JSON", "download the file again"),
        ('{"architectures": ["LlamaForCausalLM"]}', "describes LlamaForCausalLM", "vllm serve itself says"),
        (text.replace('"head_dim"', '"head_dimension"'), "lacks head_dim", "published checkpoint"),
    ):
        config.write_text(broken)
        found = problem_of(folder)
        assert what in found.what
        assert do in found.do
        assert found.why != missing
    config.unlink()
    assert problem_of(folder).why == missing
    config.write_text(text)
    for file in folder.glob("*.safetensors"):
        file.write_bytes(b"short")
    found = problem_of(folder)
    assert ("is no safetensors file" in found.what, found.why != missing, "git lfs pull" in found.do) == (
        True, True, True,
    )  # fmt: skip
    for file in folder.glob("*.safetensors"):
        file.unlink()
    assert problem_of(folder).why == missing


GPUS = [Gpu(number, "card", 1, 1, (8, 6)) for number in range(3)]


@pytest.mark.parametrize(
    ("text", "indices"),
    [(None, [0, 1, 2]), ("2,0", [2, 0]), ("", []), ("-1", []), ("1,9,0", [1]), ("GPU-abc", [0, 1, 2])],
)
def test_visible(text, indices):
    environment = {} if text is None else {"CUDA_VISIBLE_DEVICES": text}
    assert [gpu.index for gpu in visible(GPUS, environment)] == indices


def test_cdi(tmp_path):
    assert read_cdi([tmp_path, tmp_path / "none"]) is None
    (tmp_path / "other.yaml").write_text("kind: vendor.com/device\n")
    assert read_cdi([tmp_path]) is None
    (tmp_path / "nvidia.yaml").write_text(
        "kind: nvidia.com/gpu\ncontainerEdits:\n  mounts:\n  - hostPath: /usr/lib/libcuda.so.580.95.05\n"
    )
    assert read_cdi([tmp_path]) == {"580.95.05"}


def test_patches_in_a_checkout(project, applied):
    series = find_project(project)
    assert find_engine(series, applied).patches == set(series.series.names)


def test_patches_in_a_clean_checkout_and_a_half_patched_one(project, clone, cli):
    series = find_project(project)
    assert find_engine(series, clone).patches == frozenset()
    result = cli("pick", "worker-guard", "--vllm", clone)
    assert result.code == 0, result
    assert find_engine(series, clone).patches == {"worker-guard"}


def test_patches_in_an_installed_package(project, applied, tmp_path):
    """A wheel has the package without tests, and a CUDA runtime beside it."""
    (applied / "vllm").rename(tmp_path / "vllm")
    (tmp_path / "nvidia_cuda_runtime-13.0.96.dist-info").mkdir()
    (tmp_path / "nvidia_cuda_runtime_cu12-12.9.79.dist-info").mkdir()
    found = find_engine(find_project(project), tmp_path)
    assert found.patches == set(find_project(project).series.names)
    assert found.cuda == 13


def test_no_package(tmp_path, monkeypatch):
    assert find_engine(None, tmp_path) is None
    monkeypatch.setattr(gathering.shutil, "which", lambda _: None)
    assert find_engine(None, None) is None


def test_package_behind_the_command(tmp_path, monkeypatch):
    """The command's own Python is asked where it finds the package."""
    site = tmp_path / "site"
    (site / "vllm").mkdir(parents=True)
    (site / "vllm" / "__init__.py").touch()
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho {site}/vllm/__init__.py\n")
    command = tmp_path / "bin" / "vllm"
    command.parent.mkdir()
    command.write_text(f"#!{python}\n")
    for path in (python, command):
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent))
    assert find_engine(None, None).folder == site
