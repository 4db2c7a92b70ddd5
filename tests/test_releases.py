# SPDX-License-Identifier: Apache-2.0
"""Importing source archives: the same commit everywhere, nothing generated, nothing hostile."""

from __future__ import annotations

import io
import tarfile

import pytest
from series_support import RELEASE_33, git, sdist
from vllm_series import releases
from vllm_series.errors import EnvironmentFaultError
from vllm_series.store import Store


@pytest.fixture
def store(tmp_path) -> Store:
    made = Store(tmp_path / "cache")
    made.ensure()
    return made


def test_the_commit_depends_on_the_archive_alone(tmp_path, world):
    ids = set()
    for folder in ("one", "two"):
        store = Store(tmp_path / folder)
        store.ensure()
        ids.add(releases.import_archive(store.repository, "v0.33.0", world.sdists / "vllm-0.33.0.tar.gz"))
    assert len(ids) == 1
    assert ids == {git(world.cache / "vllm.git", "rev-parse", "v0.33.0")}


def test_blobs_modes_and_links_are_upstreams(world):
    bare, upstream = world.cache / "vllm.git", world.upstream
    assert git(bare, "ls-tree", "-r", "v0.33.0") == git(upstream, "ls-tree", "-r", "v0.33.0")
    text = git(bare, "log", "-1", "--format=%B", "v0.33.0")
    assert "Upstream-Commit: abcdef123" in text
    assert "Sdist-SHA256: " in text
    # Other tests share this cache and leave objects that nothing names.
    assert git(bare, "fsck", "--strict", "--full", "--no-dangling") == ""


@pytest.mark.parametrize(
    ("path", "content", "generated"),
    [
        ("PKG-INFO", b"", True),
        ("vllm/_version.py", b"", True),
        ("vllm.egg-info/SOURCES.txt", b"", True),
        ("setup.cfg", b"[egg_info]\ntag_build = \ntag_date = 0\n\n", True),
        ("setup.cfg", b"[metadata]\nname = vllm\n", False),
        ("vllm/engine.py", b"", False),
        ("docs/PKG-INFO", b"", False),
    ],
)
def test_generated_files(path, content, generated):
    assert releases.is_generated(path, content) is generated


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize(
    "hostile",
    [
        entry("vllm-0.33.0/../../evil"),
        entry("../evil"),
        entry("/etc/evil"),
        entry("vllm-0.33.0/link", tarfile.SYMTYPE, "/etc/passwd"),
        entry("vllm-0.33.0/link", tarfile.SYMTYPE, "../../outside"),
        entry("vllm-0.33.0/hard", tarfile.LNKTYPE, "../outside"),
        entry("vllm-0.33.0/hard", tarfile.LNKTYPE, "/etc/passwd"),
        entry("vllm-0.33.0/device", tarfile.CHRTYPE),
        entry("vllm-0.33.0/pipe", tarfile.FIFOTYPE),
        entry("other/top"),
        entry("no-folder"),
        entry("vllm-0.33.0/.git/config"),
        entry("vllm-0.33.0/a/../b"),
        entry("vllm-0.33.0/vllm//double"),
    ],
    ids=lambda info: f"{info.name} {info.linkname}".strip(),
)
def test_hostile_archives(tmp_path, store, hostile):
    archive = sdist(tmp_path / "vllm-0.33.0.tar.gz", "0.33.0", RELEASE_33, [hostile])
    with pytest.raises(EnvironmentFaultError):
        releases.import_archive(store.repository, "v0.33.0", archive)
    assert git(store.repository.git_dir, "for-each-ref") == ""
    assert not (tmp_path.parent / "evil").exists()


def test_a_hard_link_inside_is_a_copy(tmp_path, store):
    link = entry("vllm-0.33.0/hard.md", tarfile.LNKTYPE, "vllm-0.33.0/README.md")
    archive = sdist(tmp_path / "vllm-0.33.0.tar.gz", "0.33.0", RELEASE_33, [link])
    found = releases.import_archive(store.repository, "v0.33.0", archive)
    assert git(store.repository.git_dir, "show", f"{found}:hard.md") == str(RELEASE_33["README.md"]).rstrip(
        "\n"
    )


@pytest.mark.parametrize("size", [0, 10, 200, -1, -20])
def test_truncated_archives(tmp_path, store, world, size):
    raw = (world.sdists / "vllm-0.33.0.tar.gz").read_bytes()
    archive = tmp_path / "vllm-0.33.0.tar.gz"
    archive.write_bytes(raw[:size])
    with pytest.raises(EnvironmentFaultError, match="cannot be read"):
        releases.import_archive(store.repository, "v0.33.0", archive)
    assert git(store.repository.git_dir, "for-each-ref") == ""


def test_not_gzip(tmp_path, store):
    archive = tmp_path / "vllm-0.33.0.tar.gz"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(entry("vllm-0.33.0/x"))
    archive.write_bytes(buffer.getvalue())
    with pytest.raises(EnvironmentFaultError):
        releases.import_archive(store.repository, "v0.33.0", archive)


def test_a_killed_import_is_made_anew(store, world):
    """Its reference may be left: the new import must not build on it."""
    archive = world.sdists / "vllm-0.33.0.tar.gz"
    first = releases.import_archive(store.repository, "v0.33.0", archive)
    bare = store.repository.git_dir
    git(bare, "update-ref", "refs/vllm-series/import", first)
    git(bare, "tag", "-d", "v0.33.0")
    assert releases.import_archive(store.repository, "v0.33.0", archive) == first
    assert git(bare, "for-each-ref", "--format=%(refname)") == "refs/tags/v0.33.0"
