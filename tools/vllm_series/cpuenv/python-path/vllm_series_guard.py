# SPDX-License-Identifier: Apache-2.0
"""See to it that ``vllm`` is the tree under test.

An installed vLLM, an editable one or a path that a test puts first would be imported without a word, and
the test would prove nothing. The import is refused, and written down, in case that the test swallows the
error or that it happened in a child.

``VLLM_SERIES_TREE`` names the tree, ``VLLM_SERIES_FOREIGN`` the file for what was refused.
"""

from __future__ import annotations

import importlib.abc
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

NAME = "vllm"


def inside(path: str | None, tree: str) -> bool:
    """Whether the file ``path`` lies in the folder ``tree``."""
    real = os.path.realpath(path or "")
    return real.startswith(os.path.realpath(tree) + os.sep)


def write_down(where: str) -> None:
    """Add a line to the file of foreign imports."""
    file = os.environ.get("VLLM_SERIES_FOREIGN")
    if file:
        with open(file, "a", encoding="utf-8") as stream:  # noqa: PTH123
            stream.write(f"process {os.getpid()} imported vllm from {where}\n")


class TreeOnly(importlib.abc.MetaPathFinder):
    """Finds ``vllm`` as the other finders do, and refuses it from anywhere but the tree."""

    def __init__(self, tree: str) -> None:
        self.tree = tree

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of ``vllm``; None for any other module."""
        if name != NAME:
            return None
        for finder in sys.meta_path:
            found = None if finder is self else finder.find_spec(name, path, target)
            if found is not None:
                where = found.origin or str(list(found.submodule_search_locations or ()))
                if not inside(found.origin, self.tree):
                    write_down(where)
                    raise ImportError(f"vllm would come from {where}, not from the tree {self.tree}")
                return found
        return None


def check_loaded() -> None:
    """Raise if a ``vllm`` was loaded past the finder, say from a file name."""
    tree = os.environ.get("VLLM_SERIES_TREE")
    module = sys.modules.get(NAME)
    where = getattr(module, "__file__", None)
    if tree and module is not None and not inside(where, tree):
        write_down(str(where))
        raise ImportError(f"vllm was loaded from {where}, not from the tree {tree}")


def install() -> None:
    """Guard this interpreter."""
    tree = os.environ.get("VLLM_SERIES_TREE")
    if tree:
        sys.meta_path.insert(0, TreeOnly(tree))
