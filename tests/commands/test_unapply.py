# SPDX-License-Identifier: Apache-2.0
"""``unapply``: takes patches off, alone or with those that need them."""

from __future__ import annotations

from series_support import NAMES, commit, files_of, git, state_of


def names(repository) -> list[str]:
    out = git(repository, "log", "--reverse", "--format=%(trailers:key=Patch-Name,valueonly)")
    return [line for line in out.split("\n") if line]


def test_the_others_stay_byte_for_byte(cli, applied):
    old = {
        n: git(applied, "show", f"HEAD:{n}") for n in ("vllm/engine.py", "vllm/scheduler.py", "vllm/log.py")
    }
    result = cli("unapply", "engine-more", "--vllm", applied, "--json")
    assert result.code == 0, result
    assert result.document["removed"] == ["engine-more"]
    assert result.document["left"] == ["engine-fix", "worker-guard", "sched-log"]
    assert names(applied) == ["engine-fix", "worker-guard", "sched-log"]
    assert git(applied, "show", "HEAD:vllm/scheduler.py") == old["vllm/scheduler.py"]
    assert "item += 1\n" in (applied / "vllm/engine.py").read_text()
    assert git(applied, "status", "--porcelain") == ""


def test_needed_patches_are_refused_and_named(cli, applied):
    before = state_of(applied)
    result = cli("unapply", "engine-fix", "--vllm", applied)
    assert result.code == 4
    assert "engine-more (needs engine-fix)" in result.err
    assert "--with-dependents" in result.err
    result = cli("unapply", "worker-guard", "--vllm", applied, "--json")
    assert result.document["error"]["dependents"] == {"sched-log": "worker-guard"}
    assert state_of(applied) == before


def test_with_dependents(cli, applied):
    result = cli("unapply", "engine-fix", "--with-dependents", "--vllm", applied)
    assert result.code == 0, result
    assert names(applied) == ["worker-guard", "sched-log"]


def test_all_of_them_gives_the_base_back(cli, applied, clone):
    result = cli("unapply", *NAMES, "--vllm", applied)
    assert result.code == 0, result
    assert git(applied, "rev-parse", "HEAD") == git(applied, "rev-parse", "v0.33.0^{}")
    assert files_of(applied) == files_of(clone)
    assert git(applied, "for-each-ref", "refs/vllm-series") == ""


def test_apply_after_unapply_gives_the_same_commits(cli, applied):
    head = git(applied, "rev-parse", "HEAD")
    cli("unapply", "sched-log", "--vllm", applied)
    cli("apply", "--vllm", applied)
    assert git(applied, "rev-parse", "HEAD") == head


def test_refusals(cli, applied, clone):
    before = state_of(applied)
    assert cli("unapply", "nonsense", "--vllm", applied).code == 2
    assert cli("unapply", "engine-fix", "--vllm", clone).code == 4
    (applied / "vllm/worker.py").write_text("mine\n")
    assert cli("unapply", *NAMES, "--vllm", applied).code == 4
    git(applied, "checkout", "--", ".")
    assert state_of(applied) == before
    commit(applied, "my own", {"README.md": "x\n"})
    assert cli("unapply", "engine-fix", "--vllm", applied).code == 4
