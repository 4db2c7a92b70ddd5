# SPDX-License-Identifier: Apache-2.0
"""``vllm-series env``."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tarfile
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


def test_what_is_no_archive_is_not_unpacked(tmp_path):
    result = env(tmp_path, "unpack", str(tmp_path), str(tmp_path / "place"), "--json")
    assert result.code == 5
    assert "holds no packed environment" in result.document["error"]["message"]
    assert not (tmp_path / "place").exists()


def test_an_unpacked_archive_says_what_to_run(tmp_path):
    parts = tmp_path / "parts"
    parts.mkdir()
    with tarfile.open(parts / "archive.000", "w:xz") as archive:
        for name, text in (
            ("pack.json", '{"trees": {"series": "a1"}}'),
            ("base/vllm/__init__.py", ""),
            ("trees/a1/removed.json", "[]"),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    digest = hashlib.sha256((parts / "archive.000").read_bytes()).hexdigest()
    rows = [{"name": "archive.000", "sha256": digest}]
    (parts / "parts.json").write_text(json.dumps({"schema": 1, "parts": rows}))
    result = env(tmp_path, "unpack", str(parts), str(tmp_path / "place"))
    assert result.code == 0, result
    assert f"bash {tmp_path}/place/project/ci/gpu.sh" in result.out
    assert (tmp_path / "place/trees/a1/vllm/__init__.py").is_file()


def test_an_installed_copy_has_nothing_to_pack(tmp_path, monkeypatch):
    from vllm_series.project import Project

    monkeypatch.setattr("vllm_series.project.find_project", lambda _: Project(tmp_path, installed=True))
    result = env(tmp_path, "pack", str(tmp_path / "pack"))
    assert result.code == 4
    assert "installed" in result.err
    assert not (tmp_path / "pack").exists()
