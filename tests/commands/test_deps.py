# SPDX-License-Identifier: Apache-2.0
"""``deps``, ``graph`` and ``diff``: what the series says of itself."""

from __future__ import annotations

from series_support import commit, git, init


def test_needs_are_united(cli):
    result = cli("deps", "--json")
    assert result.code == 0, result
    assert result.document["patches"] == [
        {"name": "engine-fix", "needs": [], "declared": []},
        {"name": "worker-guard", "needs": [], "declared": []},
        {"name": "engine-more", "needs": ["engine-fix"], "declared": []},
        {"name": "sched-log", "needs": ["worker-guard"], "declared": ["worker-guard"]},
    ]
    text = cli("deps").out.splitlines()
    assert text[3].split() == ["engine-more", "engine-fix", "-"]
    assert text[4].split() == ["sched-log", "-", "worker-guard"]
    assert cli("deps", "--onto", "v0.32.0", "--json").document["base"] == "v0.32.0"
    assert cli("deps", "--onto", "v0.1.0").code == 2


def test_independent_patches_commute(cli):
    result = cli("deps", "--check", "--json")
    assert (result.code, result.document["order_matters"]) == (0, [])


def test_a_hidden_order_is_found(cli, project):
    """sched-log changes a line that worker-guard has as context, and needs none of its lines."""
    path = project / "patches/sched-log.patch"
    more = (
        b"diff --git a/vllm/worker.py b/vllm/worker.py\n--- a/vllm/worker.py\n+++ b/vllm/worker.py\n"
        b"@@ -17,3 +17,3 @@\n \n-    def load_5(self, path):\n+    def load_5(self, path, more=0):\n"
        b"         return open(path + '.5')\n"
    )
    text = path.read_bytes().replace(b"Depends-on: worker-guard\n", b"")
    path.write_bytes(text.rstrip(b"\n") + b"\n" + more)
    result = cli("deps", "--check", "--json")
    assert result.code == 1, result
    (pair,) = result.document["order_matters"]
    assert (pair["first"], pair["second"]) == ("worker-guard", "sched-log")
    assert "do not commute" in cli("deps", "--check").out


def test_the_graph(cli):
    assert cli("graph").out.splitlines() == [
        "engine-fix",
        "└── engine-more",
        "worker-guard",
        "└── sched-log",
    ]
    dot = cli("graph", "--dot").out
    assert '"engine-more" -> "engine-fix";' in dot
    assert '"sched-log" -> "worker-guard" [style=dashed];' in dot
    assert (dot.startswith("digraph"), dot.rstrip().endswith("}")) == (True, True)
    assert cli("graph", "--json").document["edges"] == [
        {"from": "engine-more", "to": "engine-fix", "declared": False},
        {"from": "sched-log", "to": "worker-guard", "declared": True},
    ]


def test_diff_of_bases_and_revisions(cli, project):
    rows = cli("diff", "v0.32.0", "v0.33.0", "--json").document
    assert [(row["name"], row["mark"]) for row in rows["patches"]] == [
        ("engine-fix", "!"),
        ("worker-guard", "="),
        ("engine-more", "!"),
        ("sched-log", "="),
    ]
    assert rows["same"] is False
    refused = cli("diff", "HEAD")
    assert refused.code == 2, refused
    assert "neither a supported base nor a revision" in refused.err
    init(project)
    commit(project, "one")
    path = project / "patches/worker-guard.patch"
    path.write_bytes(path.read_bytes().replace(b"+        assert path", b"+        assert 1"))
    assert "  2 !   2  worker-guard" in cli("diff", "HEAD").out
    (project / "series").write_text("engine-fix.patch\n")
    commit(project, "two")
    out = cli("diff", "HEAD~1", "HEAD", "--name-only").out.splitlines()
    assert out == [
        "  1 =   1  engine-fix",
        "  2 <   -  worker-guard",
        "  3 <   -  engine-more",
        "  4 <   -  sched-log",
    ]
    assert cli("diff", "nothing", "HEAD").code == 2
    assert git(project, "status", "--porcelain", "--", "patches", "series") == ""
