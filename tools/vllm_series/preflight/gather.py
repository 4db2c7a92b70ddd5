# SPDX-License-Identifier: Apache-2.0
"""Look at the machine: the one place where the checks' facts come from."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from vllm_series.errors import SeriesError
from vllm_series.preflight.arguments import ServeArguments
from vllm_series.preflight.engines import find_engine
from vllm_series.preflight.facts import Facts, Finding, Gpu, Process
from vllm_series.project import Project
from vllm_series.sizing.checkpoint import read_checkpoint
from vllm_series.sizing.model import read_model
from vllm_series.sizing.weights import sort_weights

_CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"), Path("/run/cdi"))
_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
_MISSING = "what is not here cannot be checked"
_CDI_LIBRARY = re.compile(r"libcuda\.so\.(\d+\.\d+(?:\.\d+)?)")


def gather(
    arguments: ServeArguments, project: Project | None, vllm: Path | None, environment: Mapping[str, str]
) -> Facts:
    """Take the snapshot for a start in this folder."""
    facts: dict[str, object] = {
        "arguments": arguments,
        "environment": environment,
        "folder": Path.cwd(),
        "engine": find_engine(project, vllm),
        "podman": shutil.which("podman") is not None,
        "cdi_driver": read_cdi(_CDI_FOLDERS),
    }
    facts |= _cards(environment)
    facts |= _memory(Path("/proc/meminfo"))
    facts |= _space(Path("/dev/shm"), Path(environment.get("VLLM_CACHE_ROOT", "~/.cache/vllm")).expanduser())
    facts |= _checkpoint(arguments.model)
    shadow = Path.cwd() / "vllm"
    if (shadow / "__init__.py").is_file():
        facts["shadow"] = shadow
    return Facts(**facts)  # type: ignore[arg-type]


def read_cdi(folders: Iterable[Path]) -> frozenset[str] | None:
    """Drivers that the container device interface knows NVIDIA cards for; None if it knows none."""
    texts = []
    for folder in folders:
        for path in (*folder.glob("*.yaml"), *folder.glob("*.json")):
            try:
                texts.append(path.read_text(errors="replace"))
            except OSError:
                continue
    found = [text for text in texts if "nvidia.com/gpu" in text]
    return frozenset(m for text in found for m in _CDI_LIBRARY.findall(text)) if found else None


def _checkpoint(model: str | None) -> dict[str, object]:
    if model is None:
        return {}
    folder = Path(model).expanduser()
    if not folder.is_dir():
        return {"model_problem": _no_folder(model)}
    try:
        described = read_model(folder)
    except SeriesError as error:
        return {"model_problem": _unread(error, missing=not (folder / "config.json").exists())}
    try:
        checkpoint = read_checkpoint(folder)
    except SeriesError as error:
        return {"model_problem": _unread(error, missing=not any(folder.glob("*.safetensors")))}
    return {
        "model": described,
        "checkpoint": checkpoint,
        "weights": sort_weights(checkpoint.tensors, described.layers),
    }


def _no_folder(model: str) -> Finding:
    if _HUB.fullmatch(model):
        what = f"{model} is no folder here, so the checkpoint was not looked at"
        return Finding(
            "model", False, what, _MISSING, "name the folder that the checkpoint was downloaded to"
        )
    return Finding(
        "model",
        True,
        f"{model} is neither a folder here nor a model of a hub (NAME/NAME)",
        "vLLM would find no model, and nothing of it was checked",
        "name the checkpoint's folder; before it can stand NAME=VALUE and vllm serve, and no other command",
    )


def _unread(error: SeriesError, *, missing: bool) -> Finding:
    why = "vLLM needs to read it too, and nothing of the checkpoint was checked"
    return Finding("model", True, error.message, _MISSING if missing else why, error.hint)


def _memory(source: Path) -> dict[str, object]:
    try:
        lines = source.read_text().splitlines()
    except OSError:
        return {}
    sizes = {
        name: words.split()[0] for name, _, words in (line.partition(":") for line in lines) if words.split()
    }
    try:
        return {
            "memory": int(sizes["MemTotal"]) * 1024,
            "memory_free": int(sizes["MemAvailable"]) * 1024,
        }
    except (KeyError, ValueError):
        return {}


def _space(shared: Path, cache: Path) -> dict[str, object]:
    found: dict[str, object] = {"cache_folder": cache}
    if shared.is_dir():
        usage = shutil.disk_usage(shared)
        found |= {"shared": usage.total, "shared_free": usage.free}
    while not cache.exists():
        cache = cache.parent
    return {**found, "cache_free": shutil.disk_usage(cache).free}


def _cards(environment: Mapping[str, str]) -> dict[str, object]:
    try:
        import pynvml
    except ImportError:
        return {"driver_problem": "the Python package nvidia-ml-py is missing"}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"driver_problem": f"the driver does not answer: {error}"}
    try:
        gpus = [_gpu(number) for number in range(pynvml.nvmlDeviceGetCount())]
        return {"driver": str(pynvml.nvmlSystemGetDriverVersion()), "gpus": visible(gpus, environment)}
    except pynvml.NVMLError as error:
        return {"driver_problem": f"the driver does not describe its cards: {error}"}
    finally:
        pynvml.nvmlShutdown()


def visible(gpus: list[Gpu], environment: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The cards that ``CUDA_VISIBLE_DEVICES`` leaves, in its order; only numbers are resolved."""
    text = environment.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return tuple(gpus)
    by_index = {str(gpu.index): gpu for gpu in gpus}
    names = [name.strip() for name in text.split(",")]
    if any(name and name not in by_index and not name.lstrip("-").isdigit() for name in names):
        return tuple(gpus)
    chosen = []
    for name in names:
        if name not in by_index:
            break  # CUDA hides every card behind the first invalid number.
        chosen.append(by_index[name])
    return tuple(chosen)


def _gpu(number: int) -> Gpu:
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(number)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    processes: dict[int, int] = {}
    for ask in (pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetGraphicsRunningProcesses):
        try:
            processes.update((found.pid, found.usedGpuMemory or 0) for found in ask(handle))
        except pynvml.NVMLError:
            continue
    return Gpu(
        index=number,
        name=str(pynvml.nvmlDeviceGetName(handle)),
        total=int(memory.total),
        free=int(memory.free),
        capability=tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
        processes=tuple(Process(pid, _process_name(pid), used) for pid, used in sorted(processes.items())),
    )


def _process_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "another container's process"
