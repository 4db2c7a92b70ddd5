# SPDX-License-Identifier: Apache-2.0
"""What a plan needs of the machine around the cards: memory and disk."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from vllm_series.sizing.units import GIB

#: Resident memory per worker process beside the n-gram table. Fitted to a published start, not derived:
#: 143 GB for six workers and a table of 102.4 GB.
WORKER_BYTES = int(6.3 * GIB)


class TablePlace(Enum):
    """Where the n-gram table is."""

    MEMORY = "pinned host memory"
    DISK = "the checkpoint's files"


@dataclass(frozen=True)
class HostNeed:
    """Memory and disk of the box that holds the first stage.

    Attributes:
        with_table: Memory with the table pinned.
        without_table: Memory with the table on disk; what is free beyond it caches the table.
        disk: Bytes of the checkpoint.
        table: Bytes of the table.

    """

    with_table: int
    without_table: int
    disk: int
    table: int

    def place(self, memory: int | None) -> TablePlace:
        """Where the table should be with so much memory (None: unknown)."""
        roomy = memory is not None and memory >= self.with_table
        return TablePlace.MEMORY if roomy else TablePlace.DISK

    def short(self, memory: int | None) -> int:
        """Bytes that even a table on disk leaves missing; 0 if none, or if the memory is unknown."""
        return 0 if memory is None else max(self.without_table - memory, 0)


def host_need(workers: int, table: int, disk: int) -> HostNeed:
    """What so many worker processes on one box need."""
    own = workers * WORKER_BYTES
    return HostNeed(own + table, own, disk, table)


def detect_memory(source: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes of host memory, or None if the system does not say."""
    try:
        lines = source.read_text().splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    words = fields.get("MemTotal", "").split()
    return int(words[0]) * 1024 if words and words[0].isdigit() else None
