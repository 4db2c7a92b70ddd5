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
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import TextIO


def module_of(path: str) -> str:
    """The module's name for a file of the package vllm, empty for any other file."""
    parts = pathlib.PurePosixPath(path).with_suffix("").parts
    if not path.endswith(".py") or parts[0] != "vllm" or parts[-1] == "__main__":
        return ""
    if not all(part.isidentifier() for part in parts):
        return ""
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _attempt(stream: TextIO, node: str, step: Callable[[], object]) -> None:
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
    stream.write(json.dumps({**row, "seconds": time.monotonic() - started}) + "\n")
    stream.flush()


def _compile(file: pathlib.Path) -> None:
    compile(file.read_bytes(), str(file), "exec", dont_inherit=True)


def main(paths: Sequence[str]) -> None:
    """Compile every file, then import what is a module of vllm."""
    tree = pathlib.Path(os.environ["VLLM_SERIES_TREE"])
    with open(os.environ["VLLM_SERIES_REPORT"], "a", encoding="utf-8") as stream:  # noqa: PTH123
        for path in paths:
            _attempt(stream, f"compile {path}", partial(_compile, tree / path))
        for name in filter(None, map(module_of, paths)):
            _attempt(stream, f"import {name}", partial(importlib.import_module, name))
        stream.write(json.dumps({"event": "finish"}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
