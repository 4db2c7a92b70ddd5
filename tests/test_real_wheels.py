# SPDX-License-Identifier: Apache-2.0
"""The overlay on the Python files of vLLM's official wheels, with the series of this checkout."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest
from series_support import files_of, git, run_here, write
from vllm_series.bases import parse_bases
from vllm_series.store import Store
from wheel_support import official_python_files

ROOT = Path(__file__).resolve().parents[1]
BASES = parse_bases((ROOT / "patches/base.toml").read_text())

pytestmark = pytest.mark.network


@pytest.fixture(scope="module", params=BASES, ids=lambda base: base.ref)
def base(request):
    store = Store.default()
    store.fetch(request.param.ref, request.param)
    return request.param


@pytest.fixture(scope="module")
def archive(base):
    return official_python_files(base.version, Store.default().folder)


@pytest.fixture
def site(archive, tmp_path):
    with zipfile.ZipFile(archive) as stream:
        stream.extractall(tmp_path / "site")
    return tmp_path / "site"


@pytest.fixture
def run():
    env = {"VLLM_SERIES_CACHE": str(Store.default().folder), "VLLM_SERIES_DIR": str(ROOT)}
    return lambda *args: run_here(*args, env=env)


def test_the_wheel_has_the_files_of_the_source_archive(base, archive):
    """What makes one series serve both: a file that the wheel has is the archive's, byte for byte."""
    repository = Store.default().repository
    entries = repository.all_entries(base.commit, "vllm")
    with zipfile.ZipFile(archive) as stream:
        names = [n for n in stream.namelist() if n in entries]
        assert len(names) > 2000
        for name in names:
            content = stream.read(name)
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False)
            assert blob.hexdigest() == entries[name].oid, name


def test_in_and_out(base, site, run, tmp_path):
    before = files_of(site)
    result = run("overlay", "--site-packages", site, "--json")
    assert result.code == 0, result
    files = result.document["manifest"]["files"]
    assert run("apply", "--onto", base.ref, "--into", tmp_path / "tree").code == 0
    changed = git(tmp_path / "tree", "diff", "--name-only", base.ref, "HEAD", "--", "vllm").split("\n")
    # The installed package is the checkout's.
    assert sorted(files) == sorted(changed)
    for name in changed:
        assert (site / name).read_bytes() == (tmp_path / "tree" / name).read_bytes(), name
    assert run("overlay", "--site-packages", site, "--json").document["action"] == "unchanged"
    assert run("overlay", "--site-packages", site, "--uninstall").code == 0
    assert files_of(site) == before


def test_an_edited_file(site, run):
    name = "vllm/models/qwen4_exp/nvidia/model.py"
    write(site, {name: (site / name).read_bytes() + b"# mine\n"})
    before = files_of(site)
    result = run("overlay", "--site-packages", site, "--json")
    assert result.code == 4
    assert result.document["error"]["files"] == [name]
    assert files_of(site) == before
