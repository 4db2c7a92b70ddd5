# SPDX-License-Identifier: Apache-2.0
"""What the interpreter gets wrong without the shim; ``python -m`` prints JSON.

Maps each gap to whether it is there. A gap that is gone in a newer Triton should lose its
part of ``interpreter.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import torch

from . import interpreter_kernels as kernels


def _dot_is_wrong() -> bool:
    a, b = torch.randn(2, 16, 16).bfloat16()
    out = torch.empty(16, 16)
    kernels.small_dot[(1,)](a, b, out)
    return not torch.allclose(out, a.float() @ b.float(), rtol=1e-3, atol=1e-3)


def _cast_is_wrong(src: torch.Tensor, dtype: torch.dtype) -> bool:
    out = torch.empty(src.shape, dtype=dtype)
    kernels.cast[(1,)](src, out, src.numel())
    return not torch.equal(out.float(), src.to(dtype).float())


def _multiply_is_wrong() -> bool:
    a, b = torch.randn(2, 64).bfloat16()
    out = torch.empty_like(a)
    kernels.multiply[(1,)](a, b, out, 64)
    return not torch.equal(out, a * b)


def _constant_is_wrong() -> bool:
    out = torch.zeros(16, dtype=torch.bfloat16)
    kernels.constant[(1,)](out, 16)
    return not torch.equal(out.float(), torch.full((16,), 1.5))


def _comparison_is_wrong() -> bool:
    out = torch.full((16,), -1.0)
    kernels.scalar_comparison[(1,)](torch.tensor([0.75]), out, 16)
    return not torch.equal(out, torch.ones(16))


def _assembly_is_missing() -> bool:
    src = torch.arange(16, dtype=torch.int32)
    out = torch.zeros_like(src)
    kernels.move_assembly[(1,)](src, out, 16)
    return not torch.equal(out, src)


GAPS: dict[str, Callable[[], bool]] = {
    "bf16 dot": _dot_is_wrong,
    "bf16 arithmetic": _multiply_is_wrong,
    "bf16 constant": _constant_is_wrong,
    "fp32 to bf16": lambda: _cast_is_wrong(torch.randn(1024), torch.bfloat16),
    "int to bf16": lambda: _cast_is_wrong(torch.arange(64, dtype=torch.int32), torch.bfloat16),
    "fp32 to e4m3": lambda: _cast_is_wrong(torch.randn(1024), torch.float8_e4m3fn),
    "scalar comparison": _comparison_is_wrong,
    "inline assembly": _assembly_is_missing,
}


def main() -> None:
    torch.manual_seed(0)
    found = {}
    for name, check in GAPS.items():
        try:
            found[name] = check()
        except Exception:  # a crash is the other way to be wrong
            found[name] = True
    print(json.dumps(found))


if __name__ == "__main__":
    main()
