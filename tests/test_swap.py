# SPDX-License-Identifier: Apache-2.0
"""Files and folders are replaced in one step."""

from __future__ import annotations

import pytest
from series_support import files_of, write
from vllm_series import swap
from vllm_series.errors import EnvironmentFaultError


@pytest.fixture
def folder(tmp_path):
    write(tmp_path, {"patches/a.patch": "a\n", "patches/v/b.patch": "b\n"})
    (tmp_path / "patches/link").symlink_to("a.patch")
    return tmp_path / "patches"


def test_write_file(tmp_path):
    path = tmp_path / "file"
    swap.write_file(path, b"one")
    path.chmod(0o640)
    swap.write_file(path, b"two")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"two", 0o640)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    with pytest.raises(EnvironmentFaultError):
        swap.write_file(tmp_path / "missing/file", b"x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(EnvironmentFaultError):
        swap.write_file(tmp_path / "folder", b"x")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.parametrize("exchange", [True, False])
def test_swap(folder, monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr(swap, "_exchange", lambda *_: False)
    stamp = (folder / "v/b.patch").stat().st_mtime_ns
    staging = swap.staging_directory(folder)
    assert files_of(staging) == files_of(folder)
    (staging / "a.patch").write_text("new\n")
    swap.swap_directory(folder, staging)
    assert (folder / "a.patch").read_text() == "new\n"
    assert (folder / "v/b.patch").stat().st_mtime_ns == stamp
    assert (folder / "link").is_symlink()
    assert [p.name for p in folder.parent.iterdir()] == ["patches"]


def test_leftovers_go(folder):
    write(folder.parent, {".patches.new/x": "x", ".patches.old/y": "y"})
    before = files_of(folder)
    swap.recover_directory(folder)
    assert files_of(folder) == before
    assert [p.name for p in folder.parent.iterdir()] == ["patches"]


def test_a_folder_between_two_names_comes_back(folder):
    before = files_of(folder)
    folder.rename(folder.with_name(".patches.old"))
    assert swap.lost(folder)
    swap.recover_directory(folder)
    assert files_of(folder) == before
    assert not swap.lost(folder)


def test_a_file_system_that_cannot_exchange(tmp_path):
    with pytest.raises(EnvironmentFaultError):
        swap._exchange(tmp_path / "no", tmp_path / "nothing")
