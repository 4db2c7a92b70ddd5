# SPDX-License-Identifier: Apache-2.0
"""What the checks look at: a snapshot of the machine, the checkpoint and the vLLM about to run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from vllm_series.preflight.arguments import ServeArguments
from vllm_series.sizing.checkpoint import Checkpoint
from vllm_series.sizing.model import Model
from vllm_series.sizing.weights import Weights


@dataclass(frozen=True)
class Process:
    """A process that uses a card."""

    pid: int
    name: str
    used: int


@dataclass(frozen=True)
class Gpu:
    """A card as the driver describes it; bytes are the driver's."""

    index: int
    name: str
    total: int
    free: int
    capability: tuple[int, int]
    processes: tuple[Process, ...] = ()


@dataclass(frozen=True)
class Engine:
    """The vLLM about to run.

    Attributes:
        folder: The folder that holds the package ``vllm``.
        patches: The patches of the series that are in it.
        cuda: Major version of the CUDA libraries beside it, None if unknown.
        flags: The long flags that its ``serve`` knows, empty if unknown.

    """

    folder: Path
    patches: frozenset[str]
    cuda: int | None = None
    flags: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Facts:
    """The snapshot. Where something could not be found out, the reason stands beside it.

    Attributes:
        arguments: The start.
        environment: Variables that the start would see.
        driver: Version of the driver, None if there is none.
        driver_problem: Why the cards are unknown; empty if they are known.
        gpus: The cards that the start would see, in its order.
        memory, memory_free: Host memory.
        shared, shared_free: ``/dev/shm``.
        cache_folder, cache_free: Where vLLM keeps compiled code, and what is free there.
        model, checkpoint, weights: The checkpoint, as far as it is a local folder that can be read.
        model_problem: Why it is unknown; None if it is known.
        folder: The current folder.
        shadow: A package ``vllm`` in the current folder, None if there is none.
        engine: The vLLM about to run, None if there is none.
        podman: Whether podman is installed.
        cdi_driver: Drivers that the container device interface was set up for, None if it is not set up.

    """

    arguments: ServeArguments
    environment: Mapping[str, str]
    driver: str | None = None
    driver_problem: str = ""
    gpus: tuple[Gpu, ...] = ()
    memory: int | None = None
    memory_free: int | None = None
    shared: int | None = None
    shared_free: int | None = None
    cache_folder: Path = Path("/")
    cache_free: int | None = None
    model: Model | None = None
    checkpoint: Checkpoint | None = None
    weights: Weights | None = None
    model_problem: Finding | None = None
    folder: Path = Path("/")
    shadow: Path | None = None
    engine: Engine | None = None
    podman: bool = False
    cdi_driver: frozenset[str] | None = None


@dataclass(frozen=True)
class Finding:
    """Something that will go wrong, or may.

    Attributes:
        check: Name of the check.
        stops: Whether the start fails, or answers wrongly; else it is a warning.
        what: What was found.
        why: Why it matters.
        do: What to do.

    """

    check: str
    stops: bool
    what: str
    why: str
    do: str


Findings = Iterator[Finding]
