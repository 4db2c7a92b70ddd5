# SPDX-License-Identifier: Apache-2.0
"""Checks of the machine: driver, cards, memory, disk, containers."""

from __future__ import annotations

from vllm_series.output import plural
from vllm_series.preflight.facts import Facts, Finding, Findings
from vllm_series.sizing.host import host_need
from vllm_series.sizing.units import GIB, gib

#: What vLLM reserves of a card if nothing is said (``CacheConfig.gpu_memory_utilization``).
DEFAULT_UTILIZATION = 0.92
#: Smallest driver for the libraries of a CUDA major version.
_DRIVERS = {12: 525, 13: 580}
#: Shared memory that several worker processes need for their queues.
_SHARED = 1 * GIB
#: Compiled code of a first start.
_CACHE = 3 * GIB


def _cards_here(facts: Facts) -> int:
    """Cards that the start uses on this box."""
    arguments = facts.arguments
    return arguments.stages * arguments.tensor_parallel // max(arguments.number("--nnodes", 1), 1)


def check_driver(facts: Facts) -> Findings:
    """The driver is there, and new enough for the CUDA libraries beside vLLM."""
    if facts.driver_problem:
        yield Finding(
            "driver",
            facts.driver is None and "nvidia-ml-py" not in facts.driver_problem,
            facts.driver_problem,
            "without it the cards, their memory and who uses them cannot be looked at",
            "pip install nvidia-ml-py, and see whether nvidia-smi runs",
        )
        return
    cuda = facts.engine.cuda if facts.engine else None
    needed = _DRIVERS.get(cuda or 0)
    if facts.driver and needed and int(facts.driver.partition(".")[0]) < needed:
        yield Finding(
            "driver",
            True,
            f"driver {facts.driver}, and vLLM's libraries are for CUDA {cuda}",
            f"CUDA {cuda} needs driver {needed} or newer; the first CUDA call fails",
            f"update the driver to {needed} or newer, or install a wheel for an older CUDA",
        )


def check_cards(facts: Facts) -> Findings:
    """There are as many cards as the layout needs, and new enough ones."""
    local = _cards_here(facts)
    if facts.driver_problem:
        return
    if len(facts.gpus) < local:
        yield Finding(
            "cards",
            True,
            f"{plural(len(facts.gpus), 'card')} visible, and the start needs {local}",
            "pipeline stages times tensor parallelism is the number of cards",
            "lower --pipeline-parallel-size, or look at CUDA_VISIBLE_DEVICES",
        )
    for gpu in facts.gpus[:local]:
        if gpu.capability < (8, 0):
            yield Finding(
                "cards",
                True,
                f"card {gpu.index} ({gpu.name}) has compute capability {'.'.join(map(str, gpu.capability))}",
                "the sparse attention needs 8.0 (Ampere) or newer",
                "leave it out with CUDA_VISIBLE_DEVICES",
            )


def check_card_memory(facts: Facts) -> Findings:
    """Nobody else takes the memory that vLLM wants."""
    share = facts.arguments.share("--gpu-memory-utilization", DEFAULT_UTILIZATION)
    for gpu in facts.gpus[: _cards_here(facts)]:
        others = ", ".join(f"{p.name} (pid {p.pid}, {gib(p.used)})" for p in gpu.processes)
        if gpu.free < share * gpu.total:
            yield Finding(
                "card memory",
                True,
                f"card {gpu.index} has {gib(gpu.free)} of {gib(gpu.total)} free; in use: {others or '?'}",
                f"vLLM wants {share:g} of the card at start and gives up if it is not free",
                "end those processes, or lower --gpu-memory-utilization",
            )
        elif gpu.processes:
            yield Finding(
                "card memory",
                False,
                f"card {gpu.index} is also used by {others}",
                "memory that they take later makes vLLM run out of it",
                "end them, or leave them room with --gpu-memory-utilization",
            )


def check_host_memory(facts: Facts) -> Findings:
    """The n-gram table fits where it is to be."""
    table = facts.weights.table if facts.weights else 0
    if facts.memory_free is None or facts.memory is None or not table:
        return
    if not facts.arguments.table_on_disk and facts.memory_free < table:
        yield Finding(
            "host memory",
            True,
            f"{gib(facts.memory_free)} of host memory available, and the n-gram table takes {gib(table)}",
            "by default vLLM pins the table in host memory",
            "--engram-config '{\"host_file_gather\": true}' leaves it on disk (patch ple-host-file-gather)",
        )
    workers = facts.arguments.stages * facts.arguments.tensor_parallel
    need = host_need(workers, table, 0)
    if need.short(facts.memory):
        yield Finding(
            "host memory",
            False,
            f"{gib(facts.memory)} of host memory for {plural(workers, 'worker process')}",
            f"they took about {gib(need.without_table)} elsewhere, without the n-gram table",
            "watch the first start; add swap or memory if it is killed",
        )


def check_shared_memory(facts: Facts) -> Findings:
    """``/dev/shm`` holds the workers' queues and the host tier of the KV cache."""
    if facts.shared is None or facts.shared_free is None:
        return
    tier = int(facts.arguments.share("--kv-offloading-size", 0) * GIB)
    several = facts.arguments.stages * facts.arguments.tensor_parallel > 1
    if several and facts.shared < _SHARED:
        yield Finding(
            "shared memory",
            True,
            f"/dev/shm has {gib(facts.shared)}",
            "the workers talk through it, and die of a bus error when it is full",
            "in a container: --ipc=host, or --shm-size 16g",
        )
    if tier > facts.shared_free:
        yield Finding(
            "shared memory",
            True,
            f"/dev/shm has {gib(facts.shared_free)} free, and --kv-offloading-size wants {gib(tier)}",
            "the host tier of the KV cache is a file there",
            "enlarge it (mount -o remount,size=…; in a container --ipc=host), or lower the size",
        )


def check_disk(facts: Facts) -> Findings:
    """There is room for compiled code."""
    if facts.cache_free is not None and facts.cache_free < _CACHE:
        yield Finding(
            "disk",
            False,
            f"{gib(facts.cache_free)} free at {facts.cache_folder}",
            "the first start compiles kernels and graphs into it",
            "free 3 GiB, or name another folder with VLLM_CACHE_ROOT",
        )


def check_containers(facts: Facts) -> Findings:
    """Podman finds the cards."""
    if not facts.podman or not facts.gpus:
        return
    if facts.cdi_driver is None:
        yield Finding(
            "containers",
            False,
            "podman is installed, and no CDI specification names nvidia.com/gpu",
            "podman run --device nvidia.com/gpu=all fails, or the container sees no card",
            "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
        )
    elif facts.driver and facts.cdi_driver and facts.driver not in facts.cdi_driver:
        made = ", ".join(sorted(facts.cdi_driver))
        yield Finding(
            "containers",
            False,
            f"the CDI specification was made for driver {made}, and {facts.driver} runs",
            "it mounts libraries by their version; the container finds no driver",
            "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
        )
