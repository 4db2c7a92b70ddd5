# SPDX-License-Identifier: Apache-2.0
"""What a patch needs: what it says, and what its text cannot do without."""

from __future__ import annotations

from pathlib import Path

import pytest
from series_support import NAMES
from vllm_series.bases import Base
from vllm_series.dependencies import closure, declared, dependents, prerequisites, textual
from vllm_series.errors import UsageError
from vllm_series.git import Repository
from vllm_series.patchfile import Patch, parse_patch
from vllm_series.project import Project
from vllm_series.tree import CommitSource, Snapshot


@pytest.fixture
def patches(world) -> list[Patch]:
    project = Project(world.project)
    base: Base = project.pinned
    return project.patches(base)


@pytest.fixture
def snapshot(world) -> Snapshot:
    repository = Repository.bare(world.cache / "vllm.git")
    return Snapshot(CommitSource(repository, repository.commit("v0.33.0")))


def test_prerequisites(snapshot, patches):
    assert prerequisites(snapshot, patches) == {
        "engine-fix": (),
        "worker-guard": (),
        "engine-more": ("engine-fix",),
        "sched-log": ("worker-guard",),
    }
    # All four change one test file, and none needs another one's part of it.
    assert textual(snapshot, patches, "sched-log") == ()


def test_a_need_outside_the_stack_is_not_asked_for(snapshot, patches):
    """Taking patches off a checkout that lacks a declared need must work."""
    rest = [p for p in patches if p.name != "worker-guard"]
    assert prerequisites(snapshot, rest)["sched-log"] == ()


def renamed(patch: Patch, needs: str) -> Patch:
    raw = patch.raw.replace(b"Depends-on: worker-guard", f"Depends-on: {needs}".encode())
    return parse_patch(raw, Path("x.patch"), patch.name)


def test_declared_needs_stand_before(patches):
    assert declared(patches)["sched-log"] == ("worker-guard",)
    with pytest.raises(UsageError, match="nobody"):
        declared([*patches[:3], renamed(patches[3], "nobody")])
    with pytest.raises(UsageError):
        declared([patches[3], *patches[:3]])
    # One that serves no file here is not needed here; its place in the series counts.
    assert declared([patches[3]], NAMES)["sched-log"] == ("worker-guard",)
    with pytest.raises(UsageError):
        declared([patches[3]], ["sched-log", "worker-guard"])


def test_closure_and_dependents():
    needs = {"a": (), "b": ("a",), "c": ("b",), "d": (), "e": ("c", "d")}
    assert closure(needs, ["e"]) == {"c": "e", "d": "e", "b": "c", "a": "b"}
    assert closure(needs, ["a", "b"]) == {}
    assert dependents(needs, ["a"]) == {"b": "a", "c": "b", "e": "c"}
    assert dependents(needs, ["e"]) == {}
    loop = {"a": ("b",), "b": ("a",)}
    assert closure(loop, ["a"]) == {"b": "a"}
    assert dependents(loop, ["a"]) == {"b": "a"}
