# SPDX-License-Identifier: Apache-2.0
"""Two states of the series are compared by name, and line numbers do not count."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from series_support import NAMES
from vllm_series.patchfile import Patch, parse_patch
from vllm_series.project import Project
from vllm_series.seriesdiff import compare_series


@pytest.fixture
def patches(world) -> list[Patch]:
    project = Project(world.project)
    return project.patches(project.pinned)


def test_the_same(patches):
    rows = compare_series(patches, patches)
    assert [(r.name, r.mark, r.old, r.new, r.lines) for r in rows] == [
        (name, "=", n, n, ()) for n, name in enumerate(NAMES, 1)
    ]


def edited(patch: Patch, old: bytes, new: bytes) -> Patch:
    assert old in patch.raw
    return parse_patch(patch.raw.replace(old, new), Path("x.patch"), patch.name)


def test_line_numbers_do_not_count(patches):
    raw = re.sub(rb"@@ -\d+,(\d+) \+\d+,", rb"@@ -112,\1 +112,", patches[1].raw)
    moved = parse_patch(raw, Path("x.patch"), "worker-guard")
    assert raw != patches[1].raw
    rows = compare_series(patches, [patches[0], moved, *patches[2:]])
    assert [row.mark for row in rows] == ["="] * 4


def test_what_differs_is_shown(patches):
    other = edited(patches[1], b"+        assert path", b"+        assert bool(path)")
    (row,) = [r for r in compare_series(patches, [patches[0], other, *patches[2:]]) if r.mark != "="]
    assert (row.name, row.mark) == ("worker-guard", "!")
    assert [line for line in row.lines if line[0] in "+-"] == [
        "-+        assert path",
        "++        assert bool(path)",
    ]
    said = edited(patches[1], b"Because it is needed.", b"Because.")
    (row,) = [r for r in compare_series(patches, [patches[0], said, *patches[2:]]) if r.mark != "="]
    assert [line for line in row.lines if line[0] in "+-"] == ["-Because it is needed.", "+Because."]


def test_gone_new_and_moved(patches):
    one, two, three, four = patches
    new = replace(four, name="another")
    rows = compare_series(patches, [three, new, one])
    assert [(r.name, r.mark, r.old, r.new) for r in rows] == [
        ("engine-more", "=", 3, 1),
        ("sched-log", "<", 4, 0),
        ("another", ">", 0, 2),
        ("engine-fix", "=", 1, 3),
        ("worker-guard", "<", 2, 0),
    ]
    assert [r.mark for r in compare_series(patches, [])] == ["<"] * 4
    assert two.name == "worker-guard"
