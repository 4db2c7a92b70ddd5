# SPDX-License-Identifier: Apache-2.0
"""Byte-compile files and import modules of a tree: ``python -m vllm_series_import PATH…``.

Paths are relative to the tree that ``VLLM_SERIES_TREE`` names. A line of JSON per step goes to the file
``VLLM_SERIES_REPORT``, in the form of the pytest plugin's.
"""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial


def module_of(path: str) -> str:
    """The module's name for a file of the package vllm, empty for any other file."""
    parts = pathlib.PurePosixPath(path).with_suffix("").parts
    if not path.endswith(".py") or parts[0] != "vllm" or parts[-1] == "__main__":
        return ""
    if not all(part.isidentifier() for part in parts):
        return ""
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _attempt(node: str, step: Callable[[], object]) -> dict[str, object]:
    row: dict[str, object] = {"event": "phase", "node": node, "when": "call", "outcome": "passed"}
    started = time.monotonic()
    try:
        step()
    except (Exception, SystemExit) as error:  # a module may do anything when it is imported
        place = traceback.extract_tb(error.__traceback__)[-1]
        row.update(
            outcome="failed",
            reason=f"{type(error).__name__}: {error}".split("\n")[0],
            place=f"{place.filename}:{place.lineno}",
            text=traceback.format_exc(),
        )
    return {**row, "seconds": time.monotonic() - started}


def _compile(file: pathlib.Path) -> None:
    compile(file.read_bytes(), str(file), "exec", dont_inherit=True)


def _import(names: Sequence[str], write: Callable[[dict[str, object]], None]) -> None:
    """Import modules, those that fail once more together in a process of their own.

    Some modules exclude each other: the NVIDIA and the AMD form of a model may register the same operators.
    """
    failed: dict[str, dict[str, object]] = {}
    for name in names:
        row = _attempt(f"import {name}", partial(importlib.import_module, name))
        if row["outcome"] == "passed":
            write(row)
        else:
            failed[name] = row
    if failed and len(failed) < len(names):
        with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as report:
            command = [sys.executable, "-m", "vllm_series_import", "--modules", *failed]
            subprocess.run(command, env={**os.environ, "VLLM_SERIES_REPORT": report.name}, check=False)
            for row in map(json.loads, report):
                name = str(row.get("node", "")).removeprefix("import ")
                if name in failed:
                    failed[name] = row
    for row in failed.values():
        write(row)


def main(arguments: Sequence[str]) -> None:
    """Compile every file, then import what is a module of vllm; with ``--modules``, import modules alone."""
    tree = pathlib.Path(os.environ["VLLM_SERIES_TREE"])
    with open(os.environ["VLLM_SERIES_REPORT"], "a", encoding="utf-8") as stream:  # noqa: PTH123

        def write(row: dict[str, object]) -> None:
            stream.write(json.dumps(row) + "\n")
            stream.flush()

        if arguments[:1] == ["--modules"]:
            _import(arguments[1:], write)
        else:
            for path in arguments:
                write(_attempt(f"compile {path}", partial(_compile, tree / path)))
            _import([name for name in map(module_of, arguments) if name], write)
        write({"event": "finish"})


if __name__ == "__main__":
    main(sys.argv[1:])
