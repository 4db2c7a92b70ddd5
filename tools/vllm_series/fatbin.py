# SPDX-License-Identifier: Apache-2.0
"""Reduce the GPU code in a compiled library to what one GPU architecture runs.

vLLM's libraries carry each kernel for many architectures, in "fat binaries": containers of entries, each of
them machine code (ELF) or PTX for one architecture. The payload of an entry that the architecture has no
use for is overwritten with zeros. No byte moves, so the library loads as before, and the zeros compress to
nothing. A kernel that has lost its code fails only when it is launched.

The layout of the containers is not documented; this module knows the version that CUDA 12 and 13 write, and
leaves anything else as it is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_MAGIC = struct.pack("<I", 0xBA55ED50)
#: Magic, version, size of this header, size of the entries.
_CONTAINER = struct.Struct("<IHHQ")
#: Kind, version, size of this header, size of the payload.
_ENTRY = struct.Struct("<HHIQ")
_ARCHITECTURE = struct.Struct("<I")
_ARCHITECTURE_AT = 28
_PTX, _ELF = 1, 2


@dataclass(frozen=True)
class Entry:
    """An entry of a container.

    Attributes:
        start: Where its payload begins in the library.
        size: Bytes of its payload.
        machine_code: Whether it is machine code; PTX otherwise.
        architecture: Such as 90.

    """

    start: int
    size: int
    machine_code: bool
    architecture: int


def containers(library: bytes | bytearray) -> Iterator[list[Entry]]:
    """The containers of a library, each as its entries."""
    at = library.find(_MAGIC)
    while at >= 0:
        _, version, header, size = _CONTAINER.unpack_from(library, at)
        known = version == 1 and header == _CONTAINER.size and at + header + size <= len(library)
        if known:
            yield list(_entries(library, at + header, at + header + size))
        at = library.find(_MAGIC, at + (header + size if known else len(_MAGIC)))


def _entries(library: bytes | bytearray, at: int, end: int) -> Iterator[Entry]:
    while at + _ARCHITECTURE_AT + _ARCHITECTURE.size <= end:
        kind, _, header, size = _ENTRY.unpack_from(library, at)
        if header == 0:
            return
        (architecture,) = _ARCHITECTURE.unpack_from(library, at + _ARCHITECTURE_AT)
        yield Entry(at + header, size, kind == _ELF, architecture)
        at += header + size


def needed(entries: list[Entry], architecture: int) -> list[Entry]:
    """The entries of a container that the driver would choose from.

    That is machine code for the very architecture; without it, PTX that can be compiled for it; without
    that, machine code for an earlier one of the same generation.
    """
    exact = [e for e in entries if e.machine_code and e.architecture == architecture]
    ptx = [e for e in entries if not e.machine_code and e.architecture <= architecture]
    earlier = [
        e
        for e in entries
        if e.machine_code and e.architecture // 10 == architecture // 10 and e.architecture <= architecture
    ]
    return exact or ptx or earlier


def strip(library: bytes, architecture: int) -> bytes:
    """A library with the code for ``architecture`` alone; 0 for none at all."""
    stripped = bytearray(library)
    for entries in containers(library):
        kept = needed(entries, architecture)
        for entry in entries:
            if entry not in kept:
                stripped[entry.start : entry.start + entry.size] = bytes(entry.size)
    return bytes(stripped)
