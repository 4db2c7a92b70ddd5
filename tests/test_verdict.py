# SPDX-License-Identifier: Apache-2.0
"""Every verdict, from the situation that it is for, by way of ``status``."""

from __future__ import annotations

import pytest
from series_support import NAMES, SCHEDULER, WORKER, commit, git, series_changes, write


def judged(cli, clone, *args: str) -> dict[str, dict]:
    """Patch name to its judgement on HEAD of a clone."""
    result = cli("status", "--vllm", clone, "--json", *args)
    assert result.code in (0, 1), result
    (base,) = result.document["bases"]
    assert [p["name"] for p in base["patches"]] == list(NAMES), "every patch is reported"
    found = {p["name"]: p for p in base["patches"]}
    good = {"clean", "offset", "retired", "upstream-exact", "upstream-equivalent"}
    assert result.code == (0 if all(p["verdict"] in good for p in found.values()) else 1)
    return found


def verdicts(found: dict[str, dict]) -> dict[str, str]:
    return {name: patch["verdict"] for name, patch in found.items()}


@pytest.fixture
def changes(clone) -> dict[str, dict[str, str]]:
    """Per patch its changed files, as they are after the whole series up to it."""
    files = {n: (clone / n).read_text() for n in ("vllm/engine.py", "tests/test_engine.py")}
    return {name: new for name, _, new in series_changes(files)}


def test_clean(cli, clone):
    found = judged(cli, clone)
    assert set(verdicts(found).values()) == {"clean"}
    hunk = found["engine-fix"]["hunks"][-1]
    assert hunk["scope"] == hunk["scope_expected"] == "Engine.step_3"
    assert (hunk["state"], hunk["offset"]) == ("clean", 0)


def test_offset(cli, clone):
    commit(clone, "shift", {"vllm/worker.py": "# one\n# two\n" + WORKER})
    found = judged(cli, clone)
    assert found["worker-guard"]["verdict"] == "offset"
    assert [h["offset"] for h in found["worker-guard"]["hunks"] if h["path"] == "vllm/worker.py"] == [2]


def test_context_drift(cli, clone):
    commit(clone, "drift", {"vllm/worker.py": WORKER.replace("path + '.3'", "path + '.three'")})
    found = judged(cli, clone)
    assert found["worker-guard"]["verdict"] == "context-drift"
    assert "three-way merge" in found["worker-guard"]["evidence"]
    assert found["sched-log"]["verdict"] == "clean"


def test_conflict_and_blocked(cli, clone):
    text = (clone / "vllm/engine.py").read_text().replace("+= item * 3\n", "+= item * 4\n")
    commit(clone, "other", {"vllm/engine.py": text})
    found = judged(cli, clone)
    assert verdicts(found) == {
        "engine-fix": "conflict",
        "worker-guard": "offset",
        "engine-more": "blocked",
        "sched-log": "offset",  # The test that engine-fix adds above is not there.
    }
    assert "hunk" in found["engine-fix"]["evidence"]
    assert found["engine-more"]["evidence"] == "it needs engine-fix"


def test_blocked_by_a_declared_need(cli, clone):
    commit(clone, "other", {
        "vllm/worker.py": WORKER.replace("load_4", "fetch_4"),
        "vllm/scheduler.py": SCHEDULER.replace("return picked", "return list(picked)"),
    })  # fmt: skip
    found = judged(cli, clone)
    assert found["sched-log"]["verdict"] == "blocked"
    assert found["sched-log"]["evidence"] == "it needs worker-guard"


def test_upstream_exact(cli, clone, applied):
    git(clone, "fetch", "--quiet", str(applied), "main:refs/heads/merged")
    git(clone, "cherry-pick", "merged~3", "merged~2")
    commit(clone, "later", {"README.md": "later\n"})
    git(clone, "commit", "--quiet", "--amend", "-m", "No trailers of ours on top")
    found = judged(cli, clone)
    assert verdicts(found) == {
        "engine-fix": "upstream-exact",
        "worker-guard": "upstream-exact",
        "engine-more": "clean",
        "sched-log": "clean",
    }
    assert "has its patch id" in found["engine-fix"]["evidence"]


def test_upstream_equivalent_after_a_squash(cli, clone, changes):
    """Two patches on the same lines, merged as one commit: no patch id is left."""
    commit(clone, "squashed", {**changes["engine-fix"], **changes["engine-more"]})
    found = judged(cli, clone)
    assert found["engine-fix"]["verdict"] == found["engine-more"]["verdict"] == "upstream-equivalent"


def test_upstream_partial(cli, clone, changes):
    commit(clone, "half", {"vllm/worker.py": changes["worker-guard"]["vllm/worker.py"]})
    found = judged(cli, clone)
    assert found["worker-guard"]["verdict"] == "upstream-partial"
    assert "1 of 2 hunks" in found["worker-guard"]["evidence"]
    states = {h["path"]: h["state"] for h in found["worker-guard"]["hunks"]}
    assert states["vllm/worker.py"] == "present"
    assert states["tests/test_engine.py"] != "present"


def test_taken_and_reverted_later_is_not_there(cli, clone, applied):
    """The tree is judged, not the history."""
    git(clone, "fetch", "--quiet", str(applied), "main:refs/heads/merged")
    git(clone, "cherry-pick", "merged~2")
    git(clone, "revert", "--no-edit", "HEAD")
    assert judged(cli, clone)["worker-guard"]["verdict"] == "clean"


def test_retired(cli, clone):
    write(clone, {"vllm/engine.py": (clone / "vllm/engine.py").read_text() + "# SOLVED_1 differently\n"})
    commit(clone, "theirs")
    found = judged(cli, clone)
    assert found["worker-guard"]["verdict"] == "retired"
    assert "vllm/engine.py has /SOLVED_1/" in found["worker-guard"]["evidence"]


def test_target_moved_with_candidates(cli, clone):
    git(clone, "mv", "vllm/worker.py", "vllm/worker_v2.py")
    commit(clone, "move")
    found = judged(cli, clone)
    assert found["worker-guard"]["verdict"] == "target-moved"
    assert found["worker-guard"]["candidates"] == ["vllm/worker_v2.py"]


def test_target_gone(cli, clone):
    (clone / "vllm/worker.py").unlink()
    commit(clone, "gone")
    found = judged(cli, clone)
    assert found["worker-guard"]["verdict"] == "target-gone"
    assert found["worker-guard"]["candidates"] == []


def test_corrupt_does_not_hide_the_others(cli, clone, project):
    """Also when another patch declares that it needs the damaged one."""
    path = project / "patches/worker-guard.patch"
    path.write_bytes(path.read_bytes()[:-30])
    found = judged(cli, clone)
    assert verdicts(found) == {
        "engine-fix": "clean",
        "worker-guard": "corrupt",
        "engine-more": "offset",
        "sched-log": "offset",
    }
    path.write_bytes(b"")
    assert "empty" in judged(cli, clone)["worker-guard"]["evidence"]


def test_a_hunk_in_the_wrong_function(cli, clone):
    """Every hunk applies, and one lands where nobody meant it."""
    text = (clone / "vllm/engine.py").read_text()
    moved = text.replace("class Engine:", "class Other:").replace("total_3", "total_x")
    moved = moved.replace("step_3(", "fresh(").replace("step_2(", "step_3(").replace("fresh(", "step_2(")
    moved = moved.replace("total_x", "total_3")
    commit(clone, "shuffle", {"vllm/engine.py": moved})
    result = cli("status", "--vllm", clone)
    assert "landed in Other." in result.err, result
    assert "made for Engine.step_3" in result.err
    document = cli("status", "--vllm", clone, "--json").document
    assert any("landed in" in text for text in document["warnings"])
    strict = cli("status", "--vllm", clone, "--strict")
    assert strict.code == 1
    relaxed = result.code
    names = {p["name"]: p["verdict"] for p in document["bases"][0]["patches"]}
    assert relaxed == (0 if set(names.values()) <= {"clean", "offset"} else 1)


def test_several_bases_give_the_matrix(cli):
    result = cli("status")
    rows = [line.split() for line in result.out.strip().split("\n")]
    assert rows[0] == ["patch", "v0.33.0", "v0.32.0", "tests"]
    assert [row[0] for row in rows[1:]] == list(NAMES)
    assert "(variant)" in result.out
    document = cli("status", "--json").document
    assert [b["ref"] for b in document["bases"]] == ["v0.33.0", "v0.32.0"]
    assert [b["files"] for b in document["bases"]] == ["v0.33.0", "v0.32.0"]
    one = cli("status", "--onto", "v0.32.0", "--hunks")
    assert "in Engine.step_3" in one.out


def test_own_checkout_with_the_series_on_it(cli, applied):
    """The base below the series commits is judged: what stands on it is not upstream's."""
    found = judged(cli, applied)
    assert set(verdicts(found).values()) == {"clean"}


def test_a_commit_that_is_not_there(cli, clone):
    assert cli("status", "--vllm", clone, "--onto", "nothing").code == 2
    assert cli("status", "--onto", "main").code == 2


def test_colourful_settings_do_not_reach_the_candidates(cli, clone):
    git(clone, "mv", "vllm/worker.py", "vllm/worker_v2.py")
    commit(clone, "move")
    for key, value in (("color.ui", "always"), ("color.grep", "always"), ("grep.fullName", "true")):
        git(clone, "config", key, value)
    assert judged(cli, clone)["worker-guard"]["candidates"] == ["vllm/worker_v2.py"]
