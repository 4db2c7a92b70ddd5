# SPDX-License-Identifier: Apache-2.0
"""The static tier: the changed files compile, import and satisfy vLLM's own linter.

Every step is a test of its own, so that steps which fail on the base already can be told from new ones.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from vllm_series.errors import EnvironmentFaultError
from vllm_series.testreport import Outcome, Test

#: Characters of a linter's finding that are kept.
_LONGEST = 300


def find_ruff(interpreter: Path) -> Path:
    """The linter: the environment's, else the one beside this Python, else any.

    Raises:
        EnvironmentFaultError: There is none.

    """
    for place in (interpreter.parent, Path(sys.executable).parent):
        if (place / "ruff").is_file():
            return place / "ruff"
    found = shutil.which("ruff")
    if found is None:
        raise EnvironmentFaultError(
            "ruff is not installed", hint="vLLM's hooks name ruff 0.14.0: pip install ruff==0.14.0"
        )
    return Path(found)


def about(tests: Iterable[Test], paths: Iterable[str]) -> tuple[Test, ...]:
    """The steps that were about some of the files."""
    names = set()
    for path in paths:
        parts = PurePosixPath(path).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        names |= {f"compile {path}", f"import {module}", f"ruff check {path}", f"ruff format {path}"}
    return tuple(test for test in tests if test.node.split(": ")[0] in names)


def lint(ruff: Path, tree: Path, paths: Sequence[str]) -> list[Test]:
    """``ruff check`` and ``ruff format`` on files of a tree, under the tree's configuration.

    Args:
        ruff: The program.
        tree: The tree; its ``pyproject.toml`` is the configuration.
        paths: Python files, relative to the tree.

    Returns:
        One failed test per finding, and one passed test per file and step without findings.

    """
    there = [path for path in paths if (tree / path).is_file()]
    if not there:
        return []
    return [*_check(ruff, tree, there), *_format(ruff, tree, there)]


def _check(ruff: Path, tree: Path, paths: Sequence[str]) -> list[Test]:
    result = _ruff(ruff, tree, "check", "--output-format=json", paths=paths)
    found: dict[str, list[Test]] = {path: [] for path in paths}
    try:
        rows = json.loads(result.stdout)
    except ValueError:
        raise _fault(result) from None
    for row in rows:
        path = Path(row["filename"]).resolve().relative_to(tree.resolve()).as_posix()
        reason = f"{row['code'] or 'syntax error'} {row['message']}"[:_LONGEST]
        node = f"ruff check {path}: {reason}"
        place = f"{path}:{row['location']['row']}"
        found.setdefault(path, []).append(Test(node, Outcome.FAILED, 0.0, f"line {place}", place))
    clean = [Test(f"ruff check {path}", Outcome.PASSED) for path, tests in found.items() if not tests]
    return [*clean, *(test for tests in found.values() for test in tests)]


def _format(ruff: Path, tree: Path, paths: Sequence[str]) -> list[Test]:
    """Compare files with their formatted text: what ``--check`` prints differs between versions."""
    found = []
    for path in paths:
        content = (tree / path).read_bytes()
        result = _ruff(ruff, tree, "format", f"--stdin-filename={path}", paths=["-"], data=content)
        if result.returncode == 2:
            continue  # It does not parse; `compile` tells of it.
        if result.returncode != 0:
            raise _fault(result)
        same = result.stdout == content
        outcome, reason = (Outcome.PASSED, "") if same else (Outcome.FAILED, "ruff format would change it")
        found.append(Test(f"ruff format {path}", outcome, 0.0, reason, "" if same else path))
    return found


def _ruff(
    ruff: Path, tree: Path, verb: str, *options: str, paths: Sequence[str], data: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    config = tree / "pyproject.toml"
    command = [str(ruff), verb, "--no-cache", *options]
    command += ["--config", str(config)] if config.is_file() else ["--isolated"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RUFF_")}
    return subprocess.run(
        [*command, "--", *paths], cwd=tree, input=data, capture_output=True, check=False, env=environment
    )


def _fault(result: subprocess.CompletedProcess[bytes]) -> EnvironmentFaultError:
    lines = result.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"]
    return EnvironmentFaultError(f"ruff failed: {lines[0]}")
