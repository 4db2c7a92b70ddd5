# SPDX-License-Identifier: Apache-2.0
"""Whether changed Python modules compile.

A module's content decides, so a good result is remembered by blob id and Python version: the second
``apply`` of the same series does not compile again.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vllm_series.errors import AnswerNoError
from vllm_series.tree import File


@dataclass(frozen=True)
class Checked:
    """How many modules compile, and how many of these were known from an earlier run."""

    modules: int
    remembered: int


def check_compiles(changes: Mapping[str, File | None], cache: Path) -> Checked:
    """Byte-compile every Python file of ``changes``.

    Args:
        changes: New content by path; None for deleted files.
        cache: Folder of the results that are known.

    Raises:
        AnswerNoError: A module does not compile.

    """
    memory = cache / "compiled" / f"{sys.implementation.cache_tag}.txt"
    known = set(memory.read_text().split()) if memory.is_file() else set()
    modules = {path: f for path, f in changes.items() if f is not None and path.endswith(".py")}
    new = []
    for path, file in modules.items():
        if file.oid not in known:
            _compile(path, file.content)
            new.append(file.oid)
    _remember(memory, new)
    return Checked(len(modules), len(modules) - len(new))


def _compile(path: str, content: bytes) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(content, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise AnswerNoError(
            f"{path}{f':{line}' if line else ''} does not compile after the series: {error}",
            hint="a hunk landed in the wrong place, or the patch is wrong; nothing was changed",
        ) from None


def _remember(memory: Path, oids: Iterable[str]) -> None:
    lines = "".join(f"{oid}\n" for oid in oids)
    if not lines:
        return
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        with memory.open("a") as stream:
            stream.write(lines)
    except OSError:
        return  # Only speed is lost.
