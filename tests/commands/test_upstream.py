# SPDX-License-Identifier: Apache-2.0
"""``upstream sync`` against a fake of ``gh`` that answers from a table and notes what it is asked."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from series_support import die_at, files_of
from vllm_series.upstreamfacts import parse_facts

GH = """\
import json, os, pathlib, sys
folder = pathlib.Path(__file__).parent
with (folder / "calls").open("a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
table = json.loads((folder / "table.json").read_text())
key = " ".join(sys.argv[1:4]) if sys.argv[2] != "list" else "list " + sys.argv[sys.argv.index("--search") + 1]
answer = table.get(key)
if key == "auth status":
    sys.exit(0 if os.environ.get("GH_TOKEN") else 1)
if answer is None:
    sys.stderr.write("GraphQL: Could not resolve to a PullRequest\\n")
    sys.exit(1)
print(answer if isinstance(answer, str) else json.dumps(answer))
"""
STATUS = """\
# Facts.

[engine-fix]   # the first
intent = "upstream"
state = "open"
prs = [11, 12]
issues = [21]
differs = "It has a test."
retire = { path = "vllm/engine.py", pattern = "SOLVED_0" }

[worker-guard]
state = "none"
prs = [13]
retire = { path = "vllm/engine.py", pattern = "SOLVED_1" }

[engine-more]
pr = 14
state = "open"
retire = { path = "vllm/engine.py", pattern = "SOLVED_2" }

[sched-log]
intent = "never"
"""


def thread(number: int, state: str, title: str = "Fix it") -> dict[str, object]:
    return {"number": number, "state": state, "title": title}


TABLE = {
    "pr view 11": thread(11, "MERGED"),
    "pr view 12": thread(12, "CLOSED"),
    "pr view 13": thread(13, "MERGED"),
    "pr view 14": thread(14, "OPEN", "Ours"),
    "issue view 21": thread(21, "OPEN", "It is broken"),
    "list Count was stepped": [thread(11, "OPEN"), thread(31, "OPEN", "Count steps")],
    "list vllm engine": [thread(31, "OPEN", "Count steps"), thread(32, "OPEN", "Engine [/x]")],
    "list 21 in:body": [],
    "list Demand path kernel": [],
    "list vllm worker": [],
    "list Step further": [thread(14, "OPEN", "Ours")],
}


class Gh:
    """The fake: its answers, and what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "gh.py").write_text(GH)
        (folder / "gh").write_text(f'#!/bin/sh\nexec {sys.executable} {folder}/gh.py "$@"\n')
        (folder / "gh").chmod(0o755)
        self.answer(TABLE)

    def answer(self, table: dict[str, object]) -> None:
        (self.folder / "table.json").write_text(json.dumps(table))

    @property
    def env(self) -> dict[str, str]:
        return {"PATH": f"{self.folder}:/usr/bin:/bin", "GH_TOKEN": "x"}

    @property
    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]


@pytest.fixture
def gh(tmp_path: Path) -> Gh:
    return Gh(tmp_path / "bin")


@pytest.fixture
def project(project: Path) -> Path:
    (project / "patches/status.toml").write_text(STATUS)
    return project


def test_states_follow_the_pull_request_that_would_solve_it(cli, project, gh):
    result = cli("upstream", "sync", "--json", **gh.env)
    assert result.code == 0, result
    assert result.document["states"] == {"engine-fix": "merged"}
    text = (project / "patches/status.toml").read_text()
    assert text == STATUS.replace('state = "open"\nprs = [11', 'state = "merged"\nprs = [11')


def test_what_was_found_is_kept(cli, project, gh):
    cli("upstream", "sync", **gh.env)
    facts = parse_facts((project / "patches/upstream.json").read_text())
    assert {n: (t.state, t.title) for n, t in facts.prs.items()} == {
        11: ("merged", "Fix it"),
        12: ("closed", "Fix it"),
        13: ("merged", "Fix it"),
        14: ("open", "Ours"),
        31: ("open", "Count steps"),
        32: ("open", "Engine [/x]"),
    }
    assert facts.issues[21].state == "open"
    assert facts.searches["engine-fix"].queries == ("Count was stepped", "vllm engine", "21 in:body")
    assert "sched-log" not in facts.searches
    board = cli("board", "--markdown")
    assert "others" not in board.out.split("engine-more")[1].splitlines()[0]


def test_possible_duplicates_are_named(cli, gh):
    result = cli("upstream", "sync", **gh.env)
    lines = result.out.splitlines()
    assert "engine-fix: perhaps a duplicate: #31 Count steps" in lines
    assert "engine-fix: perhaps a duplicate: #32 Engine [/x]" in lines
    assert lines[-1] == "ok: 6 pull requests and 1 issue looked at, 1 state changed, 4 candidates found"
    assert not any("#11" in line or "#14" in line for line in lines if "duplicate" in line)


def test_it_only_reads(cli, gh):
    cli("upstream", "sync", **gh.env)
    for call in gh.calls:
        assert call[:2] in (["auth", "status"], ["pr", "view"], ["issue", "view"], ["pr", "list"])
        assert call[:2] == ["auth", "status"] or call[call.index("--repo") + 1] == "vllm-project/vllm"


@pytest.mark.parametrize("lacks", ["gh", "token"])
def test_without_gh_it_says_what_to_run(cli, project, gh, lacks):
    before = files_of(project)
    env = {**gh.env, "PATH": "/usr/bin:/bin"} if lacks == "gh" else {**gh.env, "GH_TOKEN": ""}
    result = cli("upstream", "sync", **env)
    assert result.code == 5
    assert "gh auth login" in result.err
    assert "#14" in result.err
    assert files_of(project) == before


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"pr view 12": None}, "gh pr view 12 failed: GraphQL: Could not resolve"),
        ({"list vllm worker": "<html>"}, "gh pr list --repo gave no JSON"),
        ({"pr view 12": {"number": 12}}, "gh pr view 12 gave another answer"),
    ],
)
def test_nothing_changes_if_an_answer_fails(cli, project, gh, change, what):
    before = files_of(project)
    gh.answer({**TABLE, **change})
    result = cli("upstream", "sync", **gh.env)
    assert result.code == 5, result
    assert what in result.err
    assert {k: v for k, v in files_of(project).items() if "lock" not in k} == before


def test_a_damaged_file_of_facts(cli, project):
    (project / "patches/upstream.json").write_text('{"schema": 1}')
    result = cli("board", "--markdown")
    assert result.code == 2
    assert "vllm-series upstream sync" in result.err


def test_a_kill_leaves_all_or_nothing(cli, project, gh):
    new = STATUS.replace('state = "open"\nprs = [11', 'state = "merged"\nprs = [11')
    for number in range(1, 200):
        (project / "patches/status.toml").write_text(STATUS)
        (project / "patches/upstream.json").unlink(missing_ok=True)
        ended = die_at(
            number,
            "upstream", "sync",
            env={"VLLM_SERIES_DIR": str(project), "VLLM_SERIES_CACHE": str(cli.cache), **gh.env},
        )  # fmt: skip
        assert cli("list").code == 0
        text = (project / "patches/status.toml").read_text()
        assert (text == new) is (project / "patches/upstream.json").exists()
        assert text in (STATUS, new)
        if ended is not None:
            assert ended.code == 0
            return
    raise AssertionError("it never ended")
