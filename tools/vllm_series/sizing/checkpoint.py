# SPDX-License-Identifier: Apache-2.0
"""What the headers of a checkpoint's safetensors files say; no tensor is read."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from vllm_series.errors import UsageError

INDEX = "model.safetensors.index.json"
#: The format's own limit of a header.
_MAX_HEADER = 100_000_000


class Tensor(NamedTuple):
    """A tensor: the format's name of its type, its shape, its bytes, and the file that holds it.

    A published checkpoint has 300,000 of them, so this is a tuple.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    file: str


@dataclass(frozen=True)
class Checkpoint:
    """The safetensors files of a folder.

    Attributes:
        folder: The folder.
        files: Bytes on disk of each file that is there.
        tensors: Every tensor that a header describes.
        missing: Files that the index names and the folder lacks.
        cut: Files that are shorter than their header says: a download that broke off.
        unindexed: Tensors that the index names and the file beside them lacks.

    """

    folder: Path
    files: dict[str, int]
    tensors: tuple[Tensor, ...]
    missing: tuple[str, ...]
    cut: tuple[str, ...]
    unindexed: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(self.files.values())


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read the headers of every safetensors file.

    Raises:
        UsageError: There are no such files, or one of them is none.

    """
    index = _read_index(folder / INDEX)
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    missing = tuple(sorted(set(index.values()) - set(names)))
    if not names:
        raise UsageError(
            f"{folder} has none of the {len(missing)} safetensors files that its index names"
            if missing
            else f"{folder} has no safetensors files",
            hint="name the folder that the checkpoint was downloaded to",
        )
    for name in names:
        if not (folder / name).is_file():
            raise UsageError(
                f"{folder / name} is a link to nothing, or no file",
                hint="download it again, or copy the checkpoint with the files that its links name (cp -rL)",
            )
    tensors: list[Tensor] = []
    cut: list[str] = []
    for name in names:
        own, complete = _read_header(folder / name)
        tensors += own
        if not complete:
            cut.append(name)
    held = {tensor.name: tensor.file for tensor in tensors}
    return Checkpoint(
        folder=folder,
        files={name: (folder / name).stat().st_size for name in names},
        tensors=tuple(tensors),
        missing=missing,
        cut=tuple(cut),
        unindexed=tuple(
            sorted(name for name, file in index.items() if file not in missing and name not in held)
        ),
    )


def _read_index(path: Path) -> dict[str, str]:
    """File by tensor name; empty if there is no index, as in a checkpoint of one file."""
    try:
        values = json.loads(path.read_bytes())
        return {str(name): str(file) for name, file in values["weight_map"].items()}
    except FileNotFoundError:
        return {}
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{path} is no index of safetensors files", hint="download the file again") from None


def _read_header(path: Path) -> tuple[list[Tensor], bool]:
    """The tensors of a file, and whether the file is as long as they need."""
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else _MAX_HEADER + 1
        raw = file.read(length) if length <= min(_MAX_HEADER, size - 8) else b""
    try:
        header = json.loads(raw)
        tensors = list(_tensors(header, path.name))
        end = max((int(entry["data_offsets"][1]) for entry in _entries(header)), default=0)
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
        raise UsageError(
            f"{path} is no safetensors file, or its beginning is damaged",
            hint="download it again; a file of a few hundred bytes is a git-lfs pointer: git lfs pull",
        ) from None
    return tensors, size >= 8 + length + end


def _entries(header: dict[str, dict[str, list[int]]]) -> Iterator[dict[str, list[int]]]:
    return (entry for name, entry in header.items() if name != "__metadata__")


def _tensors(header: dict[str, dict[str, list[int]]], file: str) -> Iterator[Tensor]:
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, end = entry["data_offsets"]
        shape = tuple(map(int, entry["shape"]))
        if not 0 <= start <= end or (end == start and 0 not in shape):
            raise ValueError(name)
        yield Tensor(name, str(entry["dtype"]), shape, end - start, file)
