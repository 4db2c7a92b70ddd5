# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the driver's Python library, for machines without a GPU."""

from __future__ import annotations

from types import ModuleType


class Driver(ModuleType):
    """What of pynvml is used: two cards, a process on the first."""

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.broken = False
        self.shut = 0

    def nvmlInit(self) -> None:
        if self.broken:
            raise self.NVMLError("Driver/library version mismatch")

    def nvmlShutdown(self) -> None:
        self.shut += 1

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        return number

    def nvmlDeviceGetMemoryInfo(self, _: int) -> object:
        memory = ModuleType("memory")
        memory.total, memory.free = 24 << 30, 23 << 30
        return memory

    def nvmlDeviceGetName(self, number: int) -> str:
        return f"NVIDIA GeForce RTX 3090 ({number})"

    def nvmlDeviceGetCudaComputeCapability(self, _: int) -> tuple[int, int]:
        return 8, 6

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.95.05"

    def nvmlDeviceGetComputeRunningProcesses(self, number: int) -> list[object]:
        process = ModuleType("process")
        process.pid, process.usedGpuMemory = 1, 256 << 20
        return [process] if number == 0 else []

    def nvmlDeviceGetGraphicsRunningProcesses(self, _: int) -> list[object]:
        raise self.NVMLError("Not Supported")
