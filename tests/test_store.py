# SPDX-License-Identifier: Apache-2.0
"""The cache: what is in it is used, what is in the way is said."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from series_support import copy_tree, git
from vllm_series.bases import parse_bases
from vllm_series.errors import EnvironmentFaultError, PreconditionError, UsageError
from vllm_series.locks import locked
from vllm_series.store import Store, cache_folder


@pytest.fixture
def base(world):
    return parse_bases((world.project / "patches/base.toml").read_text())[0]


def test_the_variable_names_the_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("VLLM_SERIES_CACHE", "~/there")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "there"
    monkeypatch.setenv("VLLM_SERIES_CACHE", "relative")
    assert cache_folder() == Path.cwd() / "relative"
    monkeypatch.delenv("VLLM_SERIES_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg/vllm-series"


def test_an_empty_cache_knows_nothing(tmp_path):
    assert Store(tmp_path / "none").find("v0.33.0") is None
    assert not (tmp_path / "none").exists()


def test_what_is_there_is_used(world, base):
    found = Store(world.cache).fetch("v0.33.0", base, index="http://127.0.0.1:9/")
    assert (found.commit, found.new) == (base.commit, False)


def test_another_commit_under_the_same_tag(world, base):
    known = dataclasses.replace(base, commit="1" * 40)
    with pytest.raises(EnvironmentFaultError, match=r"another v0\.33\.0"):
        Store(world.cache).fetch("v0.33.0", known)


@pytest.mark.parametrize("ref", ["main", "0.33.0", "v0.33", "v0.33.0; rm", "../v0.33.0", "v0.33.0/../x", ""])
def test_no_release_tag(tmp_path, ref):
    with pytest.raises(UsageError, match="no vLLM release tag"):
        Store(tmp_path).fetch(ref)


def test_a_writer_is_at_work(tmp_path, base):
    store = Store(tmp_path)
    with locked(store.lock_path, "it"), pytest.raises(PreconditionError, match="in use"):
        store.fetch("v0.33.0", base, index="http://127.0.0.1:9/")


def test_what_another_run_brought_while_this_one_waited(world, base, tmp_path, monkeypatch):
    """Both found nothing; the second must not import over the first."""
    store = Store(copy_tree(world.cache, tmp_path / "cache"))
    answers = iter([None])
    find = Store.find
    monkeypatch.setattr(Store, "find", lambda self, ref: next(answers, find(self, ref)))
    found = store.fetch("v0.33.0", base, index="http://127.0.0.1:9/")
    assert (found.commit, found.new) == (base.commit, False)


def test_a_half_made_repository_is_made_anew(tmp_path):
    store = Store(tmp_path)
    (tmp_path / "vllm.git.new/refs").mkdir(parents=True)
    store.ensure()
    assert git(tmp_path / "vllm.git", "rev-parse", "--is-bare-repository") == "true"
    assert not (tmp_path / "vllm.git.new").exists()


def test_a_file_in_the_place_of_the_cache(tmp_path):
    (tmp_path / "cache").write_text("")
    with pytest.raises(EnvironmentFaultError, match="cache"):
        Store(tmp_path / "cache").ensure()
