# SPDX-License-Identifier: Apache-2.0
"""``check``: each finding from the fault that it is for, all of them at once, none on a clean directory."""

from __future__ import annotations

from pathlib import Path

import pytest


def findings(cli) -> list[tuple[str, str]]:
    result = cli("check", "--json")
    rows = [(f["rule"], f["where"]) for f in result.document["findings"]]
    assert result.code == (1 if rows else 0)
    assert "Traceback" not in result.err
    return rows


def edit(project: Path, old: str, new: str, name: str = "sched-log.patch") -> None:
    path = project / "patches" / name
    text = path.read_bytes().decode()
    assert old in text, (old, text)
    path.write_bytes(text.replace(old, new, 1).encode())


def test_a_clean_directory_has_none(cli):
    assert findings(cli) == []
    assert cli("check").out == "ok: 4 patches, 6 files\n"


P = "patches/sched-log.patch"
S = "patches/status.toml"
#: A replacement in a file, and the finding that it must give.
FAULTS: dict[str, tuple[str, str, str, tuple[str, str]]] = {
    "numbered": ("sched-log.patch", "Subject: [PATCH] ", "Subject: [PATCH 4/4] ", ("form", P)),
    "commit id": ("sched-log.patch", "From 0000000", "From 1111111", ("form", P)),
    "name": ("sched-log.patch", "Patch-Name: sched-log", "Patch-Name: other", ("patch-name", P)),
    "no name": ("sched-log.patch", "Patch-Name: sched-log\n", "", ("patch-name", P)),
    "no origin": ("sched-log.patch", "Origin: own\n", "", ("origin", P)),
    "odd origin": ("sched-log.patch", "Origin: own\n", "Origin: somewhere\n", ("origin", P)),
    "title": (
        "engine-more.patch",
        "[PATCH] [Bugfix] Step",
        "[PATCH] Step",
        ("title", "patches/engine-more.patch"),
    ),
    "unknown need": ("sched-log.patch", "Depends-on: worker-guard", "Depends-on: nobody", ("depends-on", P)),
    "later need": (
        "engine-fix.patch",
        "Origin: own\n",
        "Origin: own\nDepends-on: sched-log\n",
        ("depends-on", "patches/engine-fix.patch"),
    ),
    "no spdx": (
        "sched-log.patch",
        "+# SPDX-License-Identifier: Apache-2.0\n+LOG",
        "+# nothing\n+LOG",
        ("spdx", P),
    ),
    "long line": ("sched-log.patch", "+LOG = []", "+LOG = []" + " " * 80 + "# x", ("columns", P)),
    "white space": ("sched-log.patch", "+LOG = []", "+LOG = [] ", ("whitespace", P)),
    "conflict marker": ("sched-log.patch", "+LOG = []", "+<<<<<<< HEAD", ("marker", P)),
    "damaged": ("sched-log.patch", "@@ -", "@@ ", ("corrupt", P)),
    "variant of nothing": (
        "v0.32.0/engine-fix.patch",
        "Patch-Name: engine-fix",
        "Patch-Name: x",
        ("patch-name", "patches/v0.32.0/engine-fix.patch"),
    ),
    "unknown key": ("status.toml", 'intent = "upstream"', 'intention = "upstream"', ("status", S)),
    "bad intent": ("status.toml", 'intent = "upstream"', 'intent = "maybe"', ("status", S)),
    "bad state": ("status.toml", 'state = "none"', 'state = "unsure"', ("status", S)),
    "no toml": ("status.toml", "[engine-fix]", "[engine-fix", ("status", S)),
    "no entry": ("status.toml", "[engine-fix]", "[someone-else]", ("status", S)),
    "bad pattern": ("status.toml", "SOLVED_0", "(", ("status", S)),
    "no condition": (
        "status.toml",
        'retire = { path = "vllm/engine.py", pattern = "SOLVED_0" }',
        "",
        ("retire", S),
    ),
    "bad base": ("base.toml", 'ref = "v0.33.0"', 'ref = "main"', ("bases", "patches/base.toml")),
    "missing key": ("base.toml", 'version = "0.33.0"', "", ("bases", "patches/base.toml")),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_finding(cli, project, fault):
    name, old, new, wanted = FAULTS[fault]
    edit(project, old, new, name)
    assert wanted in findings(cli)


def test_files_and_lines_of_the_series(cli, project):
    (project / "patches/orphan.patch").write_bytes((project / "patches/sched-log.patch").read_bytes())
    (project / "patches/v0.1.0").mkdir()
    (project / "patches/v0.1.0/sched-log.patch").write_bytes(
        (project / "patches/sched-log.patch").read_bytes()
    )
    (project / "patches/worker-guard.patch").unlink()
    rows = findings(cli)
    assert ("orphan", "patches/orphan.patch") in rows
    assert ("orphan", "patches/v0.1.0/sched-log.patch") in rows
    assert ("missing", "series") in rows


def test_a_variant_that_does_the_same(cli, project):
    source = project / "patches/sched-log.patch"
    (project / "patches/v0.32.0/sched-log.patch").write_bytes(source.read_bytes())
    assert findings(cli) == [("variant", "patches/v0.32.0/sched-log.patch")]


def test_no_test_of_vllm(cli, project):
    path = project / "patches/sched-log.patch"
    head, _, rest = path.read_text().partition("diff --git a/tests/")
    _, mark, rest = rest.partition("diff --git a/vllm/")
    path.write_text(head + mark + rest)
    assert findings(cli) == [("tests", "patches/sched-log.patch")]


@pytest.mark.parametrize(
    "text", ["a.patch -p1\n", "engine-fix.patch\nengine-fix.patch\n", "a/b.patch\n", "engine-fix.patch\r\n"]
)
def test_a_bad_series_file(cli, project, text):
    (project / "series").write_bytes(text.encode())
    assert findings(cli) == [("series", "series")]


def test_all_at_once(cli, project):
    edit(project, "Origin: own\n", "", "engine-fix.patch")
    edit(project, "Patch-Name: worker-guard\n", "", "worker-guard.patch")
    edit(project, "+LOG = []", "+LOG = [] ")
    (project / "patches/engine-more.patch").write_bytes(b"")
    edit(project, "[engine-fix]", "[someone-else]", "status.toml")
    assert {rule for rule, _ in findings(cli)} == {"origin", "patch-name", "whitespace", "corrupt", "status"}


def test_markup_in_patches_is_text(cli, project):
    edit(project, "+LOG = []", "+LOG = '[/x] [kernel]' ")
    edit(project, "Subject: [PATCH] [Core] Demand", "Subject: [PATCH] Demand [/x]", "worker-guard.patch")
    result = cli("check")
    assert "'Demand [/x] a path [kernel] [/x]'" in result.out, result


@pytest.mark.parametrize(
    "text",
    ["[engine-fix", "[nobody]\n", '[engine-fix]\ntpu = ["tests/a.py"]\n', '[engine-fix]\ncpu = ["a.py"]\n'],
)
def test_an_invalid_table_of_tests(cli, project, text):
    (project / "patches/tests.toml").write_text(text)
    assert findings(cli) == [("tests-table", "patches/tests.toml")]


def evidence(project: Path, patch: str = "engine-fix", base: str = "v0.33.0", file: str = "") -> None:
    folder = project / "patches/evidence"
    folder.mkdir(exist_ok=True)
    (folder / (file or f"{patch}@{base}.json")).write_text(
        f'{{"schema": 1, "patch": "{patch}", "sha256": "aa", "base": "{base}", "commit": "bb", '
        '"prerequisites": {}, "tiers": {}}'
    )


def test_stale_evidence_is_a_note(cli, project):
    evidence(project)
    result = cli("check", "--json")
    assert result.code == 0
    (warning,) = result.document["warnings"]
    assert warning.startswith("the evidence of engine-fix on v0.33.0 is stale: the base was bb")
    assert warning in result.err


def test_evidence_of_nothing(cli, project):
    evidence(project, patch="nobody")
    evidence(project, base="v0.1.0")
    evidence(project, file="other.json")
    (project / "patches/evidence/junk.json").write_text("{}")
    where = "patches/evidence"
    assert set(findings(cli)) == {
        ("orphan", f"{where}/nobody@v0.33.0.json"),
        ("orphan", f"{where}/engine-fix@v0.1.0.json"),
        ("evidence", f"{where}/other.json"),
        ("evidence", f"{where}/junk.json"),
    }
