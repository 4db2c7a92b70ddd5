# SPDX-License-Identifier: Apache-2.0
"""Runs a vLLM tree's own CUDA kernel tests on a CPU, in the corrected interpreter.

::

    VLLM_TREE=<tree> PYTHONPATH=tests:<tree> … python -m kernels.upstream_tests [--capability 8.6] [ARG...]

with the environment of ``conftest.py``; the arguments are node ids inside the tree. The
tests run unchanged: this process claims to be CUDA, and a torch function mode sends what
they put on ``"cuda"`` to the CPU. What no CPU has is replaced by torch code:
``flashinfer.norm.gemma_rmsnorm``, flash-attn's rotary embedding (by vLLM's own native
form), the ``reshape_and_cache_flash`` and the top-k operators.
"""

from __future__ import annotations

import argparse
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from . import interpreter
from .checkout import metadata_entry
from .kv_cache import quantise_e4m3


def _on_cpu(value: Any) -> Any:
    if isinstance(value, str) and value.split(":")[0] == "cuda":
        return "cpu"
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return value


class CudaIsCpu(TorchFunctionMode):
    """Every device argument that says cuda means cpu; every tensor says it is on cuda."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__self__", None) is torch.Tensor.is_cuda:  # the property is read
            return True
        arguments = {name: _on_cpu(value) for name, value in (kwargs or {}).items()}
        return func(*map(_on_cpu, args), **arguments)


def gemma_rmsnorm(rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x / rms(x) * (1 + weight)`` in float32, for flashinfer's function of that name."""
    single = rows.float()
    inverse = torch.rsqrt(single.pow(2).mean(-1, keepdim=True) + eps)
    return (single * inverse * (1 + weight.float())).to(rows.dtype)


def reshape_and_cache_flash(
    key: torch.Tensor,  # [T, H, D]
    value: torch.Tensor,
    key_cache: torch.Tensor,  # [B, N, H, D]
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,  # [T], -1: not stored
    kv_cache_dtype: str,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
) -> None:
    """For vLLM's C++ operator: bf16 copies, or e4m3 bytes of ``x / scale``."""
    page_size = key_cache.shape[1]
    for rows, cache, scale in ((key, key_cache, k_scale), (value, value_cache, v_scale)):
        for row, slot in zip(rows, slot_mapping.tolist(), strict=True):
            if slot >= 0:
                stored = row if kv_cache_dtype == "auto" else quantise_e4m3(row, scale.item())
                cache[slot // page_size, slot % page_size] = stored


def top_k(
    logits: torch.Tensor,  # [R, N]
    lengths: torch.Tensor,  # [R]
    output: torch.Tensor,  # int32 [R, k]
    workspace: torch.Tensor | None,
    k: int,
    max_length: int,
) -> None:
    """For vLLM's C++ top-k operators: the k largest of each row's first ``length`` logits."""
    output.fill_(-1)
    for row, length in enumerate(lengths.tolist()):
        width = min(length, k)
        if width:
            picked = torch.topk(logits[row, :length], width).indices
            output[row, :width] = picked.to(torch.int32)


def pretend_cuda(major: int, minor: int) -> list[torch.library.Library]:
    """Prepare this process, for its whole life; the result must stay alive as long."""
    interpreter.install()
    # model before qsa: they import each other. Before the platform pretends to be CUDA,
    # which would make vLLM's modules look for CUDA extensions.
    import vllm.models.qwen4_exp.nvidia.model
    import vllm.models.qwen4_exp.nvidia.qsa  # noqa: F401
    from vllm import _custom_ops
    from vllm.model_executor.layers.rotary_embedding.common import ApplyRotaryEmb
    from vllm.platforms import current_platform
    from vllm.platforms.interface import DeviceCapability

    platform: Any = type(current_platform)
    platform.is_cuda = lambda self: True
    platform.get_device_capability = classmethod(lambda cls, device_id=0: DeviceCapability(major, minor))
    norm: Any = types.ModuleType("flashinfer.norm")
    norm.gemma_rmsnorm = gemma_rmsnorm
    package: Any = types.ModuleType("flashinfer")
    package.norm = norm
    sys.modules |= {"flashinfer": package, "flashinfer.norm": norm}
    rotary: Any = ApplyRotaryEmb
    rotary.forward_cuda = ApplyRotaryEmb.forward_native
    custom_ops: Any = _custom_ops
    custom_ops.reshape_and_cache_flash = reshape_and_cache_flash
    operators = torch.library.Library("_C", "FRAGMENT")
    for name in ("cooperative_topk", "persistent_topk"):
        if not hasattr(torch.ops._C, name):
            operators.define(
                f"{name}(Tensor logits, Tensor lengths, Tensor(a!) output, Tensor? workspace, "
                "int k, int max_length) -> ()"
            )
            operators.impl(name, top_k, "CPU")
    return [operators]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--capability", default="8.6", metavar="X.Y", help="of the pretended GPU")
    options, rest = parser.parse_known_args(arguments)
    tree = Path(os.environ["VLLM_TREE"]).resolve()
    sys.path += metadata_entry(tree)
    major, minor = map(int, options.capability.split("."))
    operators = pretend_cuda(major, minor)
    nodes = [str(tree / a) if a.startswith("tests/") else a for a in rest]
    options_of_tree = ["-p", "no:cacheprovider", f"--rootdir={tree}", f"-c{tree}/pyproject.toml"]
    with CudaIsCpu():
        code = int(pytest.main([*options_of_tree, *nodes]))
    operators.clear()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
