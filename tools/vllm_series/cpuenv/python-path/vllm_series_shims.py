# SPDX-License-Identifier: Apache-2.0
"""What is missing where torch has no CUDA.

The package index serves a torchvision whose compiled part needs a CUDA build of torch. It cannot be loaded
with a CPU build, and ``import torchvision`` then dies with ``operator torchvision::nms does not exist``
although nothing here calls that operator. transformers imports torchvision for its image processors, so
vLLM does too. The two operators are declared, without a body, when torchvision is first imported; a
torchvision whose compiled part loads is left alone.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import pathlib
import sys
from collections.abc import Sequence
from types import ModuleType

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
#: The declarations live as long as this does.
_libraries: list[object] = []


def _compiled_part_loads(package: pathlib.Path) -> bool:
    torch = importlib.import_module("torch")
    for library in package.glob("_C*.so"):
        try:
            torch.ops.load_library(str(library))
        except (OSError, ImportError):
            return False
    return True


def declare_operators(package: pathlib.Path) -> None:
    """Declare torchvision's operators unless its own library in the folder ``package`` does."""
    torch = importlib.import_module("torch")
    if not _compiled_part_loads(package):
        library = torch.library.Library("torchvision", "DEF")
        for schema in SCHEMAS:
            library.define(schema)
        _libraries.append(library)


class BeforeTorchvision(importlib.abc.MetaPathFinder):
    """Declares the operators when torchvision is looked for, once."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        """None: the other finders find it."""
        if name == "torchvision":
            sys.meta_path.remove(self)
            found = importlib.machinery.PathFinder.find_spec(name, path)
            if found is not None and found.origin:
                declare_operators(pathlib.Path(found.origin).parent)


def install() -> None:
    """Watch for torchvision in this interpreter."""
    sys.meta_path.insert(0, BeforeTorchvision())
