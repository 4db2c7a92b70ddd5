# SPDX-License-Identifier: Apache-2.0
"""Evidence on disk against what is there: stale as soon as the patch, a prerequisite or the base differs."""

from __future__ import annotations

from pathlib import Path

import pytest
from vllm_series.evidence import Binding, record
from vllm_series.freshness import State, standing, standings
from vllm_series.project import find_project


@pytest.fixture
def recorded(project: Path) -> Path:
    """The project with evidence of ``engine-more``, which was made on ``engine-fix``."""
    found = find_project(project)
    base = found.pinned
    patch, need = found.patch("engine-more", base), found.patch("engine-fix", base)
    assert patch is not None
    assert need is not None
    binding = Binding("engine-more", patch.digest, base.ref, base.commit, {"engine-fix": need.digest})
    record(project / "patches", binding, {"cpu": {"outcome": "passed"}})
    return project


def look(project: Path, name: str = "engine-more"):
    found = find_project(project)
    return standing(found, name, found.pinned)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_what_has_not_changed_is_fresh(recorded):
    found = look(recorded)
    assert (found.state, found.text, found.outcomes) == (
        State.FRESH,
        "fresh: cpu passed",
        {"cpu": "passed"},
    )


def test_other_patches_do_not_matter(recorded):
    edit(recorded / "patches/sched-log.patch", "LOG = []", "LOG = [1]")
    assert look(recorded).state is State.FRESH


@pytest.mark.parametrize(
    ("file", "old", "new", "why"),
    [
        ("engine-more.patch", "item -= 1", "item -= 2", "the patch has changed"),
        ("engine-fix.patch", "item += 1", "item += 9", "the prerequisite engine-fix has changed"),
        ("base.toml", 'commit = "', 'commit = "0', "the base was"),
    ],
)
def test_stale(recorded, file, old, new, why):
    edit(recorded / "patches" / file, old, new)
    found = look(recorded)
    assert found.state is State.STALE
    assert why in found.reason
    assert found.outcomes == {}


def test_a_prerequisite_that_is_gone_or_stands_behind(recorded):
    (recorded / "series").write_text("engine-more.patch\nengine-fix.patch\n")
    assert look(recorded).reason == "the patch no longer needs engine-fix"


def test_none_and_not_needed(recorded):
    (recorded / "patches/sched-log.patch").unlink()
    assert look(recorded, "worker-guard").state is State.NONE
    assert look(recorded, "sched-log").text == "not-needed"


def test_what_cannot_be_read_is_stale(recorded):
    (recorded / "patches/evidence/engine-more@v0.33.0.json").write_text("{")
    assert "is no evidence" in look(recorded).text


def test_every_patch_on_every_base(recorded):
    found = standings(find_project(recorded))
    assert {name: [row.state.value for row in bases.values()] for name, bases in found.items()} == {
        "engine-fix": ["none", "none"],
        "worker-guard": ["none", "none"],
        "engine-more": ["fresh", "none"],
        "sched-log": ["none", "none"],
    }


def test_status_shows_it(recorded, cli):
    def cell(*args: str) -> str:
        result = cli("status", *args)
        return next(line for line in result.out.splitlines() if line.startswith("engine-more"))

    cli.project = recorded
    assert cell().endswith("v0.33.0: cpu; v0.32.0: none")
    assert "fresh: cpu passed" in cell("--onto", "v0.33.0")
    edit(recorded / "patches/engine-fix.patch", "item += 1", "item += 9")
    assert "v0.33.0: stale" in cell()
    rows = cli("status", "--json").document["bases"][0]["patches"]
    assert [row["tests"]["state"] for row in rows] == ["none", "none", "stale", "none"]
