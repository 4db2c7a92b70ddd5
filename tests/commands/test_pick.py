# SPDX-License-Identifier: Apache-2.0
"""``pick``: single patches with what they need, on top of whatever is checked out."""

from __future__ import annotations

from series_support import WORKER, commit, git, state_of, write


def names(repository) -> list[str]:
    out = git(repository, "log", "--reverse", "--format=%(trailers:key=Patch-Name,valueonly)")
    return [line for line in out.split("\n") if line]


def test_on_top_of_ones_own_work(cli, clone):
    own = commit(clone, "mine", {"README.md": "mine\n"})
    result = cli("pick", "sched-log", "--vllm", clone)
    assert result.code == 0, result
    assert names(clone) == ["worker-guard", "sched-log"]
    assert "sched-log needs worker-guard" in result.err
    assert git(clone, "rev-parse", "HEAD~2") == own
    result = cli("pick", "engine-more", "--vllm", clone)
    assert names(clone) == ["worker-guard", "sched-log", "engine-fix", "engine-more"]


def test_what_is_there_is_left_alone(cli, applied):
    before = state_of(applied)
    result = cli("pick", "engine-fix", "--vllm", applied, "--json")
    assert result.code == 0, result
    assert result.document["action"] == "unchanged"
    assert [s["verdict"] for s in result.document["skipped"]] == ["applied"]
    assert state_of(applied) == before


def test_here_is_the_default(cli, clone):
    assert cli("pick", "worker-guard", cwd=clone).code == 0
    assert names(clone) == ["worker-guard"]


def test_refusals(cli, clone):
    write(clone, {"vllm/worker.py": "mine\n"})
    before = state_of(clone)
    assert cli("pick", "worker-guard", "--vllm", clone).code == 4
    assert cli("pick", "nonsense", "--vllm", clone).code == 2
    assert cli("pick", "--vllm", clone).code == 2
    assert state_of(clone) == before
    commit(clone, "conflict", {"vllm/worker.py": WORKER.replace("load_4", "fetch_4")})
    before = state_of(clone)
    assert cli("pick", "worker-guard", "--vllm", clone).code == 3
    assert state_of(clone) == before
