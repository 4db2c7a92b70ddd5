# SPDX-License-Identifier: Apache-2.0
"""The command line: one document, exit codes, no markup, quiet ends."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
import vllm_series
from series_support import CONSOLE_SCRIPT, WORKER, clean_env, commit, copy_tree, run_script
from typer.main import get_command
from vllm_series.main import app
from vllm_series.output import Output, plural


def test_json_on_every_exit(cli, clone, project, tmp_path):
    """Standard output holds one document and nothing else, whatever the exit code."""
    cases = {
        ("list",): 0,
        ("show", "engine-fix"): 0,
        ("show", "engine-fix", "--patch"): 0,
        ("check",): 0,
        ("status",): 0,
        ("doctor",): 0,
        ("board",): 0,
        ("board", "--markdown"): 0,
        ("fetch",): 0,
        ("refresh", "--check"): 0,
        ("apply", "--vllm", clone, "--dry-run"): 0,
        ("show", "nothing"): 2,
        ("show", "engine-fix", "--onto", "bogus"): 2,
        ("show", "engine-fix", "--onto", "0.33.0"): 0,
        ("status", "--onto", "0.33.0"): 0,
        ("fetch", "0.33.0"): 0,
        ("export", "nothing"): 2,
        ("apply", "nothing"): 2,
        ("fetch", "main"): 2,
        ("apply", "--vllm", tmp_path): 4,
        ("unapply", "engine-fix", "--vllm", clone): 4,
        ("pick", "engine-fix", "--vllm", clone / "vllm"): 4,
        ("fetch", "v0.99.0"): 5,
    }
    for args, code in cases.items():
        result = cli(*args, "--json")
        assert result.code == code, (args, result)
        document = result.document
        assert document["verb"] == args[0]
        assert "\x1b" not in result.out + result.err
        if code:
            assert document["error"]["message"]
            assert document["error"]["kind"]
    commit(clone, "other", {"vllm/worker.py": WORKER.replace("load_4", "fetch_4")})
    assert cli("apply", "--vllm", clone, "--json").document["exit"] == 3
    assert cli("status", "--vllm", clone, "--json").document["exit"] == 1
    (project / "series").write_text("bad line\n")
    assert cli("list", "--json").document["exit"] == 2
    assert cli("check", "--json").document["exit"] == 1


@pytest.mark.parametrize(
    ("args", "verb", "words"),
    [
        (("drop",), "drop", "NAME"),
        (("drop", "engine-fix"), "drop", "--reason"),
        (("list", "--bogus"), "list", "--bogus"),
        (("undo", "-n", "x"), "undo", "'x'"),
        (("test", "--jobs", "0"), "test", "--jobs"),
        (("rebase", "a", "b"), "rebase", "b"),
        (("upstream", "sync", "--bogus"), "upstream sync", "--bogus"),
        (("plan", "--model", "M", "--kv", "fp4"), "plan", "fp4"),
        (("doctor", "M"), "doctor", "M"),
        (("bench", "--users", "0"), "bench", "--users"),
        (("bench", "compare", "A"), "bench compare", "B"),
        (("bench", "--users", "3", "compare", "A", "B"), "bench", "--users"),
        (("apply", "--onto", ""), "apply", "--onto"),
        (("status", "--onto", "v0.33.0", "--onto", ""), "status", "--onto"),
        (("fetch", "--index", ""), "fetch", "--index"),
        (("--bogus",), "", "--bogus"),
        (("no-such-verb",), "", "no-such-verb"),
        ((), "", "--json"),
    ],
)
def test_json_of_a_command_line_that_nobody_understands(cli, args, verb, words):
    result = cli(*args, "--json")
    assert result.code == 2, result
    assert (result.document["verb"], result.document["exit"]) == (verb, 2)
    assert result.document["error"]["kind"] == "usage"
    assert words in result.document["error"]["message"]
    assert result.err
    if args:
        assert cli(*args).out == ""


@pytest.mark.parametrize(
    ("args", "redirection", "code"),
    [
        ("list", ">&-", 0),
        ("list --json", ">&-", 0),
        ("list", "<&- >&- 2>&-", 0),
        ("show nothing", "2>&-", 2),
        ("list", ">/dev/full", 5),
        ("list", ">/dev/full 2>&-", 5),
        ("show engine-fix", ">&-", 0),
        ("show engine-fix", ">/dev/full", 5),
        ("list --json", ">/dev/full", 5),
        ("list --bogus --json", ">/dev/full", 5),
        ("show nothing", "2>/dev/full", 2),
    ],
)
def test_streams_that_are_closed_or_full(cli, args, redirection, code):
    done = subprocess.run(
        f"{CONSOLE_SCRIPT} {args} {redirection}",
        shell=True,
        env=clean_env(**cli._env({})),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr


def test_errors_go_to_standard_error(cli):
    result = cli("show", "nothing")
    assert (result.code, result.out) == (2, "")
    assert (
        result.err
        == "vllm-series: error: the series has no patch nothing\n  list them with: vllm-series list\n"
    )


def test_a_bug_is_70(cli, monkeypatch):
    import vllm_series.commands.list as module

    def broken(*_: object) -> int:
        raise ZeroDivisionError("[/x] markup")

    monkeypatch.setattr(module, "list_patches", broken)
    result = cli("list", "--json")
    assert result.code == 70
    assert result.document["error"]["kind"] == "bug"
    assert "ZeroDivisionError: [/x] markup" in result.err
    assert "please report" in result.err


@pytest.mark.parametrize(
    "args",
    [("[/x]",), ("show", "[/x]"), ("apply", "[kernel]"), ("list", "--[/x]"), ("status", "--onto", "[/x]")],
)
def test_markup_in_arguments(cli, args):
    result = cli.script(*args, FORCE_COLOR="1", TERMINAL_WIDTH="200")
    assert result.code == 2, result
    assert "Traceback" not in result.err
    assert args[-1].lstrip("-") in result.err


def test_markup_in_messages_and_text(cli, project):
    result = cli("list")
    assert "[Core] Demand a path [kernel] [/x]" in result.out
    assert "[Core] Demand a path [kernel] [/x]" in cli("show", "worker-guard").out
    shown = cli("show", "worker-guard", "--patch")
    assert shown.out.encode() == (project / "patches/worker-guard.patch").read_bytes()


@pytest.mark.parametrize(
    ("columns", "words"), [(200, b"[Core] Demand a path [kernel] [/x]"), (50, b"worker-guard")]
)
def test_on_a_terminal(cli, columns, words):
    """Drawn with colours, and still nothing is taken for markup; a name is never broken."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [CONSOLE_SCRIPT, "list"],
        env=clean_env(**cli._env({"TERM": "xterm-256color", "COLUMNS": str(columns)})),
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    text = b""
    while True:
        try:
            chunk = os.read(controller, 4096)
        except OSError:
            break
        if not chunk:
            break
        text += chunk
    os.close(controller)
    assert process.wait() == 0
    assert words in text


def test_every_option_stands_in_the_docs():
    root = Path(__file__).parent.parent
    text = "".join(page.read_text("utf-8") for page in (root / "README.md", *(root / "docs").glob("*.md")))

    def options(command, path):
        for parameter in command.params:
            names = [name for name in (*parameter.opts, *parameter.secondary_opts) if name.startswith("--")]
            if names:
                yield path, names
        for name, below in getattr(command, "commands", {}).items():
            yield from options(below, f"{path} {name}")

    known = list(options(get_command(app), "vllm-series"))
    assert len(known) > 100
    words = set(re.findall(r"--[a-z0-9-]+", text))
    assert [(path, names) for path, names in known if not words.intersection(names)] == []


@pytest.mark.parametrize("command", ["list", "check", "status", "show worker-guard --patch", "list --json"])
def test_a_reader_that_leaves(cli, command):
    done = subprocess.run(
        f"{CONSOLE_SCRIPT} {command} | true; echo ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        env=clean_env(**cli._env({})),
        capture_output=True,
        check=False,
    )
    assert done.stderr == b""
    assert done.stdout == b"0\n"


def test_a_reader_that_leaves_does_not_stop_the_work(cli, clone):
    subprocess.run(
        f"{CONSOLE_SCRIPT} apply --vllm {clone} | true",
        shell=True,
        executable="/bin/bash",
        env=clean_env(**cli._env({})),
        capture_output=True,
        check=True,
    )
    assert "nothing to do" in cli("apply", "--vllm", clone).out


def test_version_help_and_module(cli):
    assert cli("--version").out == f"vllm-series {vllm_series.__version__}\n"
    verbs = ("apply", "pick", "unapply", "fetch", "doctor", "list", "show", "check", "refresh", "status")
    for verb in (*verbs, "board", "export"):
        result = cli(verb, "--help")
        assert result.code == 0
        assert "--json" in result.out
    assert cli().code in (0, 2)
    done = subprocess.run(
        [sys.executable, "-m", "vllm_series", "--version"], env=clean_env(), capture_output=True, check=True
    )
    assert done.stdout.decode() == f"vllm-series {vllm_series.__version__}\n"


def test_where_the_project_is_found(cli, project, tmp_path, world):
    env = {"VLLM_SERIES_CACHE": str(world.cache)}
    inside = run_script("list", "--json", cwd=project / "patches/v0.32.0", env=env)
    assert inside.document["root"] == str(project)
    other = copy_tree(project, tmp_path / "other")
    named = cli("list", "--json", "--series-dir", other)
    assert named.document["root"] == str(other)
    assert cli("list", "--series-dir", tmp_path).code == 2
    for args in (("list", "--series-dir"), ("apply", "--vllm"), ("refresh", "--from"), ("verify",)):
        result = cli(*args, tmp_path / "nope")
        assert result.code == 4, result
        assert "nope is not a folder\n  name " in result.err
    assert cli("list", VLLM_SERIES_DIR=str(tmp_path / "none")).code == 4


def test_doctor(cli, clone, project, tmp_path):
    result = cli("doctor", "--vllm", clone, "--json")
    assert result.code == 0, result
    assert [c["check"] for c in result.document["checks"]] == [
        "git",
        "cache",
        "series",
        "base v0.33.0",
        "base v0.32.0",
        "checkout",
    ]
    assert cli("doctor", "--vllm", tmp_path).code == 5
    (project / "series").write_text("bad line\n")
    result = cli("doctor")
    assert result.code == 5
    assert "bad line" in result.out


def test_output_survives_any_text(capsys):
    out = Output("x", True)
    out.warn("surrogate \udce9 and [/x]")
    out.finish(0, text="\udce9")
    out.finish(1, text="the last one counts")
    assert out.close(1) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["text"] == "the last one counts"
    assert json.loads(captured.out)["warnings"] == ["surrogate \udce9 and [/x]"]


def test_plural():
    assert [plural(n, w) for n, w in ((1, "patch"), (2, "patch"), (0, "file"))] == [
        "1 patch",
        "2 patches",
        "0 files",
    ]
