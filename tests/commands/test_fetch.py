# SPDX-License-Identifier: Apache-2.0
"""``fetch``: whole or not at all, once, checked, and the same everywhere."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from series_support import CONSOLE_SCRIPT, clean_env, git, sdist


@pytest.fixture
def fetch(cli, index, tmp_path):
    """``fetch`` from the small index into an empty cache."""
    cli.cache = tmp_path / "empty cache"
    cli.env["VLLM_SERIES_INDEX"] = f"{index.url}simple/"
    return cli


def tags(cache: Path) -> str:
    return (
        git(cache / "vllm.git", "for-each-ref", "--format=%(refname)")
        if (cache / "vllm.git").exists()
        else ""
    )


def nothing_half_done(cache: Path) -> None:
    assert tags(cache) == ""
    assert not list(cache.rglob("*.part"))
    assert not list((cache / "downloads").glob("*.tar.gz")) if (cache / "downloads").exists() else True


def test_once(fetch, index, world):
    result = fetch("fetch", "--json")
    assert result.code == 0, result
    assert [r["new"] for r in result.document["releases"]] == [True, True]
    assert len(index.requests) == 4
    for row in result.document["releases"]:
        assert git(world.cache / "vllm.git", "rev-parse", row["ref"]) == row["commit"]
    index.fault = "500"  # Nobody asks it any more.
    again = fetch("fetch", "--json")
    assert [r["new"] for r in again.document["releases"]] == [False, False]
    assert len(index.requests) == 4


def test_two_empty_caches_give_equal_ids(fetch, tmp_path):
    first = fetch.script("fetch", "v0.33.0", "--json", TZ="UTC").document["releases"]
    fetch.cache = tmp_path / "another"
    second = fetch.script("fetch", "v0.33.0", "--json", TZ="Asia/Tokyo", LC_ALL="C").document["releases"]
    assert first == second


def test_offline_with_a_warm_cache(fetch, index):
    assert fetch("fetch").code == 0
    fetch.env["VLLM_SERIES_INDEX"] = "http://127.0.0.1:9/simple/"
    for args in (("fetch",), ("status",), ("apply", "--dry-run"), ("refresh", "--check"), ("doctor",)):
        assert fetch(*args).code == 0, args


def test_a_verified_archive_is_used_again(fetch, index):
    """The repository was removed, the download was not: no network is needed."""
    assert fetch("fetch", "v0.33.0").code == 0
    subprocess.run(["rm", "-rf", fetch.cache / "vllm.git"], check=True)
    fetch.env["VLLM_SERIES_INDEX"] = "http://127.0.0.1:9/simple/"
    assert fetch("fetch", "v0.33.0").code == 0
    archive = fetch.cache / "downloads/vllm-0.33.0.tar.gz"
    archive.write_bytes(archive.read_bytes()[:-1])
    subprocess.run(["rm", "-rf", fetch.cache / "vllm.git"], check=True)
    assert fetch("fetch", "v0.33.0").code == 5, "a damaged one is not"
    fetch.env["VLLM_SERIES_INDEX"] = f"{index.url}simple/"
    assert fetch("fetch", "v0.33.0").code == 0


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("404", "does not know"),
        ("500", "500"),
        ("junk", "cannot"),
        ("file404", "404"),
        ("file500", "500"),
        ("cut", "cannot download"),
        ("short", "damaged"),
        ("wrong", "damaged"),
        ("nodigest", "digest"),
    ],
)
def test_a_bad_index(fetch, index, fault, words):
    index.fault = fault
    result = fetch("fetch", "v0.33.0", "--json")
    assert result.code == 5, result
    assert words in result.document["error"]["message"], result
    assert "Traceback" not in result.err
    nothing_half_done(fetch.cache)
    index.fault = ""
    assert fetch("fetch", "v0.33.0").code == 0


def test_no_digest_for_a_release_that_the_project_does_not_know(fetch, index, world):
    raw = sdist(fetch.cache / "x.tar.gz", "0.34.0", {"README.md": "new\n"}).read_bytes()
    index.archives["vllm-0.34.0.tar.gz"] = raw
    index.fault = "nodigest"
    assert fetch("fetch", "v0.34.0").code == 5
    index.fault = ""
    assert fetch("fetch", "v0.34.0").code == 0
    assert fetch("status", "--onto", "v0.34.0").code == 1


def test_another_archive_than_the_series_was_made_for(fetch, index, tmp_path):
    index.archives["vllm-0.33.0.tar.gz"] = sdist(
        tmp_path / "x.tar.gz", "0.33.0", {"README.md": "x"}
    ).read_bytes()
    result = fetch("fetch", "v0.33.0")
    assert result.code == 5
    assert "digest" in result.err
    nothing_half_done(fetch.cache)


def test_no_such_release(fetch):
    assert fetch("fetch", "v9.9.9").code == 2
    assert fetch("fetch", "main").code == 2
    nothing_half_done(fetch.cache)


def test_no_network(fetch):
    fetch.env["VLLM_SERIES_INDEX"] = "http://127.0.0.1:9/simple/"
    result = fetch("apply")
    assert result.code == 5
    assert "check the network" in result.err
    nothing_half_done(fetch.cache)
    for text in ("no address", "ftp://x/simple/", "http://"):
        fetch.env["VLLM_SERIES_INDEX"] = text
        result = fetch("fetch")
        assert result.code == 2, result
        assert "is no address of a package index" in result.err


@pytest.mark.parametrize("send", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_in_the_middle_of_the_download(fetch, index, send):
    index.fault = "slow"
    process = subprocess.Popen(
        [CONSOLE_SCRIPT, "fetch", "v0.33.0"],
        env=clean_env(**fetch._env({})), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert index.reached.wait(30)
    process.send_signal(send)
    _, err = process.communicate()
    assert process.returncode == (-9 if send == signal.SIGKILL else 130), err
    assert tags(fetch.cache) == ""
    assert not list((fetch.cache / "downloads").glob("*.gz"))
    index.release.set()
    index.fault = ""
    assert fetch("fetch", "v0.33.0").code == 0
    assert not list(fetch.cache.rglob("*.part"))


def test_killed_at_every_step(fetch, tmp_path, world):
    from series_support import die_at

    wanted = git(world.cache / "vllm.git", "rev-parse", "v0.33.0")
    for number in range(1, 40):
        cache = tmp_path / f"cache-{number}"
        result = die_at(number, "fetch", "v0.33.0", env=fetch._env({"VLLM_SERIES_CACHE": str(cache)}))
        assert tags(cache) in ("", "refs/tags/v0.33.0", "refs/vllm-series/import")
        fetch.cache = cache
        again = fetch("fetch", "v0.33.0", "--json")
        assert again.code == 0, again
        assert again.document["releases"][0]["commit"] == wanted
        assert tags(cache) == "refs/tags/v0.33.0"
        if result is not None:
            break
    assert 5 < number < 39


def test_read_only_cache_serves(cli, world, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs a read-only mount")
    cache = tmp_path / "cache"
    cache.mkdir()
    if subprocess.run(["mount", "--bind", world.cache, cache], check=False, capture_output=True).returncode:
        pytest.skip("a bind mount is not allowed here")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", cache], check=True)
        cli.cache = cache
        assert cli("fetch").code == 0
        assert cli("status").code == 0
        assert cli("apply", "--into", tmp_path / "new").code == 0
        result = cli("fetch", "v0.34.0")
        assert result.code == 5, result
    finally:
        subprocess.run(["umount", cache], check=True)
