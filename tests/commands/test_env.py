# SPDX-License-Identifier: Apache-2.0
"""``vllm-series env``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from series_support import run_here
from vllm_series import environment


def env(cache: Path, *args: str, **variables: str):
    return run_here("env", *args, env={"VLLM_SERIES_CACHE": str(cache), **variables})


def test_nothing_is_there_at_first(tmp_path):
    result = env(tmp_path, "show", "--json")
    assert result.code == 1
    assert result.document["state"] == "missing"
    assert result.document["folder"].startswith(str(tmp_path))
    assert "vllm-series env create" in env(tmp_path, "show").out
    assert env(tmp_path, "remove").code == 0


@pytest.mark.parametrize("verb", ["show", "create"])
def test_a_named_environment_is_used(tmp_path, verb):
    result = env(tmp_path, verb, "--json", VLLM_SERIES_ENV=sys.prefix)
    assert result.code == 0
    assert result.document["folder"] == sys.prefix
    assert result.document["python"] == ".".join(map(str, sys.version_info[:3]))
    assert not any(tmp_path.iterdir())


def test_a_named_environment_that_is_none(tmp_path):
    result = env(tmp_path, "show", "--json", VLLM_SERIES_ENV=str(tmp_path))
    assert result.code == 5
    assert "no usable Python environment" in result.document["error"]["message"]


def fake(cache: Path, name: str) -> Path:
    folder = cache / "env" / name
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / environment.MARKER).write_text(json.dumps({}))
    return folder


def test_the_made_one_is_shown_and_removed(tmp_path):
    folder = fake(tmp_path, environment.own_folder(tmp_path).name)
    result = env(tmp_path, "show")
    assert result.code == 0
    assert str(folder) in result.out
    assert env(tmp_path, "remove", "--json").document["removed"] == [str(folder)]
    assert not folder.exists()


def test_earlier_ones_are_removed_on_demand(tmp_path):
    old, new = fake(tmp_path, "cpu-0123"), fake(tmp_path, environment.own_folder(tmp_path).name)
    assert env(tmp_path, "remove").code == 0
    assert (old.exists(), new.exists()) == (True, False)
    assert env(tmp_path, "remove", "--all").code == 0
    assert not old.exists()
