# SPDX-License-Identifier: Apache-2.0
"""Compiled modules that Python would load although their source says something else.

Python takes a ``.pyc`` on trust if time and size of the source are those that it names, or if it says that
the source need not be looked at at all. Files that were copied with their old times, as containers and
overlays do, get past that.
"""

from __future__ import annotations

import importlib.util
import marshal
import re
from dataclasses import dataclass
from pathlib import Path

#: What follows the module's name: the implementation, and the optimization unless it is 0.
_TAG = re.compile(r"[a-z]+-?\d+(?:\.opt-(?P<level>\d))?\.pyc")
_HEADER = 16
_HASH_BASED, _CHECKED = 1, 2


@dataclass(frozen=True)
class Stale:
    """A compiled module that does not belong to its source.

    Attributes:
        path: The ``.pyc`` file.
        reason: What is wrong with it, one line.
        loaded: Whether Python would load it nevertheless; else it compiles the source anew.

    """

    path: Path
    reason: str
    loaded: bool


def find_stale(source: Path) -> list[Stale]:
    """The stale ones among the compiled forms of one module, for every Python that has left one."""
    folder = source.parent / "__pycache__"
    found = []
    for path in sorted(folder.glob(f"{_literal(source.stem)}.*.pyc")):
        match = _TAG.fullmatch(path.name.removeprefix(f"{source.stem}."))
        if match is not None:
            stale = _examine(path, source, int(match["level"] or 0))
            if stale is not None:
                found.append(stale)
    return found


def _literal(stem: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", stem)


def _examine(path: Path, source: Path, level: int) -> Stale | None:
    raw = path.read_bytes()
    text = source.read_bytes()
    if len(raw) < _HEADER:
        return Stale(path, "it is cut off", False)
    flags = int.from_bytes(raw[4:8], "little")
    same_python = raw[:4] == importlib.util.MAGIC_NUMBER
    if flags & _HASH_BASED:
        if not same_python or raw[8:16] == importlib.util.source_hash(text):
            return None
        unchecked = not flags & _CHECKED
        reason = "made from another source" + (", and says not to look at it" if unchecked else "")
        return Stale(path, reason, unchecked)
    facts = source.stat()
    named = int.from_bytes(raw[8:12], "little"), int.from_bytes(raw[12:16], "little")
    if named != (int(facts.st_mtime) & 0xFFFFFFFF, facts.st_size & 0xFFFFFFFF):
        return Stale(path, "older than its source", False)
    if same_python and not _compiles_to(text, raw[_HEADER:], str(source), level):
        return Stale(path, "made from another source of the same time and size", True)
    return None


def _compiles_to(text: bytes, code: bytes, name: str, level: int) -> bool:
    try:
        # Code objects are equal whatever file name they were compiled with.
        return bool(marshal.loads(code) == compile(text, name, "exec", dont_inherit=True, optimize=level))
    except (SyntaxError, ValueError, EOFError, TypeError):
        return False
