# SPDX-License-Identifier: Apache-2.0
"""What the tool did to a checkout of vLLM is taken back and done again."""

from __future__ import annotations

import pytest
from series_support import commit, copy_tree, die_at, git, run_here, state_of


def test_there_and_back(cli, clone):
    states = [state_of(clone)]
    for args in (
        ("apply", "engine-fix", "--vllm", clone),
        ("apply", "--vllm", clone),
        ("unapply", "sched-log", "--vllm", clone),
        ("pick", "sched-log", "--vllm", clone),
        ("apply", "--vllm", clone, "--onto", "v0.32.0"),
    ):
        assert cli(*args).code == 0, args
        states.append(state_of(clone))
    assert git(clone, "symbolic-ref", "HEAD") == "refs/heads/vllm-series/v0.32.0"
    result = cli("undo", "--vllm", clone, "--json")
    assert result.code == 0, result
    assert result.document["moves"][0]["verb"] == "apply"
    # The branch that the last one made is gone too.
    assert state_of(clone) == states[4]
    assert cli("undo", "-n", "2", "--vllm", clone).code == 0
    assert state_of(clone) == states[2]
    assert cli("redo", "-n", "3", "--vllm", clone).code == 0
    assert state_of(clone) == states[5]
    assert cli("redo", "--vllm", clone).code == 2
    rows = [line.split() for line in cli("log", "--vllm", clone).out.splitlines()]
    assert [(row[2], row[-1] == "done") for row in rows[1:4]] == [
        ("redo", False),
        ("redo", False),
        ("redo", False),
    ]
    assert [row[2] for row in rows if row[-1] == "done"] == ["apply", "pick", "unapply", "apply", "apply"]
    assert cli("undo", "-n", "6", "--vllm", clone).code == 2
    assert state_of(clone) == states[5], "all of them, or none"
    assert cli("undo", "-n", "5", "--vllm", clone).code == 0
    assert state_of(clone) == states[0]
    assert cli("redo", "-n", "6", "--vllm", clone).code == 2
    assert state_of(clone) == states[0]
    assert cli("undo", "--vllm", clone).code == 2
    assert cli("undo", "-n", "0", "--vllm", clone).code == 2


def test_hints_are_about_the_checkout(cli, clone, tmp_path):
    for verb in ("undo", "redo"):
        result = cli(verb, "--vllm", clone)
        assert result.code == 2, result
        assert result.err.endswith(f"there is nothing to {verb}\n  see: vllm-series log --vllm {clone}\n")
    (tmp_path / "plain").mkdir()
    for args in (("log",), ("undo",), ("status",), ("pick", "engine-fix")):
        for folder in ("plain", "nope"):
            result = cli(*args, "--vllm", tmp_path / folder)
            assert result.code == 4, result
            assert "name a git checkout of vLLM; a new one is made by: vllm-series apply --into" in result.err


def test_a_detached_head(cli, clone):
    git(clone, "checkout", "--quiet", "--detach")
    before = state_of(clone)
    assert cli("apply", "--vllm", clone).code == 0
    assert cli("undo", "--vllm", clone).code == 0
    assert state_of(clone) == before


def test_moved_by_hand_since(cli, clone):
    assert cli("apply", "--vllm", clone).code == 0
    commit(clone, "mine", {"mine.txt": "mine\n"})
    before = state_of(clone)
    result = cli("undo", "--vllm", clone)
    assert result.code == 4, result
    assert "moved by hand since the apply" in result.err
    assert state_of(clone) == before
    git(clone, "reset", "--quiet", "--hard", "HEAD~1")
    path = clone / "vllm/engine.py"
    path.write_text(path.read_text() + "# dirty\n")
    result = cli("undo", "--vllm", clone)
    assert result.code == 4, result
    assert "would be overwritten" in result.err
    git(clone, "checkout", "--quiet", ".")
    assert cli("undo", "--vllm", clone).code == 0
    git(clone, "checkout", "--quiet", "-b", "other")
    assert cli("redo", "--vllm", clone).code == 4


def test_a_damaged_list(cli, clone):
    assert cli("apply", "engine-fix", "--vllm", clone).code == 0
    (clone / ".git/vllm-series-moves.json").write_text("{")
    assert cli("undo", "--vllm", clone).code == 4
    # It stops nothing else.
    assert cli("apply", "--vllm", clone).code == 0
    assert cli("undo", "--vllm", clone).code == 0


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_every_step(cli, clone, tmp_path, after):
    """Whoever comes next finds the one state or the other, and can go either way."""
    old = state_of(clone)
    assert cli("apply", "--vllm", clone).code == 0
    new = state_of(clone)
    died = 0
    for number in range(2 if after else 1, 200, 4):
        work = copy_tree(clone, tmp_path / f"work-{number}")
        if die_at(number, "undo", "--vllm", work, after=after, env=cli._env({})) is not None:
            break
        died += 1
        again = run_here("undo", "--vllm", work, env=cli._env({}))
        assert again.code in (0, 2), again
        assert state_of(work) == old, number
        assert run_here("redo", "--vllm", work, env=cli._env({})).code == 0
        assert state_of(work) == new
    assert died > 3
