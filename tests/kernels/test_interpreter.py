# SPDX-License-Identifier: Apache-2.0
"""The corrected interpreter against torch, operation by operation."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import triton
from triton.runtime import interpreter as upstream

from . import bare_interpreter, interpreter, ptx
from . import interpreter_kernels as kernels

QSA_OPS = "vllm/models/qwen4_exp/nvidia/ops"
ALL_BF16 = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
FINITE_BF16 = ALL_BF16[torch.isfinite(ALL_BF16)].float()
E4M3_MAX = 448.0


def _random_fp32(count: int) -> torch.Tensor:
    bits = torch.randint(-(2**31), 2**31, (count,), generator=torch.Generator().manual_seed(3))
    values = bits.to(torch.int32).view(torch.float32)
    return values[torch.isfinite(values)]


def _bf16_ties() -> torch.Tensor:
    """Every positive normal bf16 plus half a step, and one fp32 step to either side."""
    bits = torch.arange(0x0080, 0x7F7F, dtype=torch.int32) << 16 | 0x8000
    return torch.cat([bits - 1, bits, bits + 1]).view(torch.float32)


def _cast(src: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    size = triton.next_power_of_2(src.numel())
    padded = torch.zeros(size, dtype=src.dtype)
    padded[: src.numel()] = src
    out = torch.empty(size, dtype=dtype)
    kernels.cast[(1,)](padded, out, size)
    return out[: src.numel()]


def test_gaps_are_there_without_the_shim() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-m", "kernels.bare_interpreter"],
        cwd=Path(__file__).parents[1],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == dict.fromkeys(bare_interpreter.GAPS, True)


@pytest.mark.parametrize("name", bare_interpreter.GAPS)
def test_gap_is_closed(name: str) -> None:
    torch.manual_seed(0)
    assert not bare_interpreter.GAPS[name]()


@pytest.mark.parametrize(
    "src",
    [
        pytest.param(_random_fp32(1 << 20), id="random-bits"),
        pytest.param(_bf16_ties(), id="ties"),
        pytest.param(-_bf16_ties(), id="negative-ties"),
        pytest.param(torch.tensor([float("inf"), -float("inf"), 3.4e38, -0.0]), id="edges"),
        pytest.param(torch.arange(-4096, 4096, dtype=torch.int32), id="int32"),
        pytest.param(torch.arange(-128, 128, dtype=torch.int32).to(torch.int8), id="int8"),
    ],
)
def test_cast_to_bf16_rounds_to_nearest_even(src: torch.Tensor) -> None:
    result = _cast(src, torch.bfloat16)
    assert torch.equal(result.view(torch.int16), src.to(torch.bfloat16).view(torch.int16))


def test_cast_to_bf16_keeps_nan() -> None:
    nans = torch.tensor([0x7F800001, 0x7FFFFFFF, -1], dtype=torch.int64).to(torch.int32)
    assert bool(_cast(nans.view(torch.float32), torch.bfloat16).isnan().all())


def test_cast_from_bf16_is_exact() -> None:
    result, expected = _cast(ALL_BF16, torch.float32), ALL_BF16.float()
    assert torch.equal(result.nan_to_num(7.0), expected.nan_to_num(7.0))


def _e4m3_midpoints() -> torch.Tensor:
    codes = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    middle = ((codes[1:] + codes[:-1]) / 2).float()
    up, down = torch.tensor(1e9), torch.tensor(-1e9)
    return torch.cat([middle, torch.nextafter(middle, up), torch.nextafter(middle, down)])


@pytest.mark.parametrize(
    "src",
    [
        pytest.param(FINITE_BF16, id="all-finite-bf16"),
        pytest.param(FINITE_BF16.bfloat16(), id="all-finite-bf16-typed"),
        pytest.param(_random_fp32(1 << 20), id="random-bits"),
        pytest.param(torch.randn(1 << 18) * 16, id="gaussian"),
        pytest.param(_e4m3_midpoints(), id="midpoints"),
    ],
)
def test_cast_to_e4m3_rounds_to_even_and_saturates(src: torch.Tensor) -> None:
    expected = src.float().clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    result = _cast(src, torch.float8_e4m3fn)
    assert torch.equal(result.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("wide", [torch.float16, torch.bfloat16, torch.float32])
def test_cast_from_fp8_is_exact(dtype: torch.dtype, wide: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(dtype)
    result, expected = _cast(codes, wide).float(), codes.float()
    assert torch.equal(result.nan_to_num(7.0), expected.nan_to_num(7.0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_float_dot(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    a, b = torch.randn(16, 256).to(dtype), torch.randn(256, 64).to(dtype)
    out = torch.empty(16, 64)
    kernels.dot[(1,)](a, b, out, 16, 64, 256)
    torch.testing.assert_close(out.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-4)


def test_int8_dot_is_exact() -> None:
    torch.manual_seed(1)
    a = torch.randint(-128, 128, (16, 256), dtype=torch.int8)
    b = torch.randint(-128, 128, (256, 64), dtype=torch.int8)
    a[0], b[:, 0] = -128, -128  # the largest sum
    out = torch.empty(16, 64, dtype=torch.int32)
    kernels.dot[(1,)](a, b, out, 16, 64, 256)
    assert torch.equal(out.long(), a.long() @ b.long())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_arithmetic(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    size = 1 << 12
    a, b = (torch.randn(2, size) * 8).to(dtype)
    out = torch.empty(8, size, dtype=dtype)
    kernels.arithmetic[(1,)](a, b, out, size)
    larger, smaller = torch.maximum(a, b), torch.minimum(a, b)
    peak = (0.5 * a.max()).expand(size)
    expected = torch.stack([a + b, a - b, a * b, -a, larger, smaller, a.abs(), peak])
    assert torch.equal(out, expected)


def test_sum_in_bf16_is_an_error() -> None:
    a = torch.ones(16, dtype=torch.bfloat16)
    with pytest.raises(Exception, match="a reduction in bf16"):
        kernels.total[(1,)](a, a.clone(), 16)


@pytest.mark.parametrize("size", [1, 2, 64])  # one element: the register is padded
def test_inline_assembly_packs_pairs_and_returns_tuples(size: int) -> None:
    src = torch.randint(0, 1 << 16, (size,)).to(torch.uint16)
    low = torch.empty(size, dtype=torch.uint16)
    high = torch.empty(size, dtype=torch.int32)
    kernels.pair[(1,)](src, low, high, size)
    assert torch.equal(low.int(), src.int() & 0xFF)
    assert torch.equal(high, src.int())


@pytest.mark.parametrize(
    ("text", "form", "message"),
    [
        ("bfind.u32 $0, $1;", "=r,r", "unknown instruction"),
        ("mov.b32 $0, $1;", "=h,r", "constraints"),
        ("mov.b32 $0, $1;", "=r,r,r", "constraints"),
    ],
)
def test_unknown_assembly_is_an_error(text: str, form: str, message: str) -> None:
    src = torch.zeros(16, dtype=torch.int32)
    with pytest.raises(Exception, match=message):
        kernels.any_assembly[(1,)](src, src.clone(), 16, text, form)


def test_half_filled_registers_are_an_error() -> None:
    src = torch.zeros(16, dtype=torch.int8)
    with pytest.raises(Exception, match="whole 32-bit registers"):
        kernels.any_assembly[(1,)](src, torch.zeros(16, dtype=torch.int32), 16, "", "=r,r")


def _assembly_of(tree: Path) -> list[tuple[str, str, str, int]]:
    """Every inline assembly call below the QSA kernels: function, text, constraints, pack."""
    found = []
    for path in sorted((tree / QSA_OPS).glob("qsa*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("inline_asm_elementwise"):
                    values = [*call.args, *(keyword.value for keyword in call.keywords)]
                    constants = [v.value for v in values if isinstance(v, ast.Constant)]
                    text, form = (v for v in constants if isinstance(v, str))
                    pack = next(v for v in constants if type(v) is int)
                    found.append((function.name, text, form, pack))
    return found


def _e4m3() -> torch.Tensor:
    """x * 2**-8; the two NaN codes read as +-480 below sm_89, as upstream says."""
    values = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    values[0x7F], values[0xFF] = 480.0, -480.0
    return values / 256


INT8 = torch.arange(256, dtype=torch.uint8).view(torch.int8).float()
#: What a text may decode its bytes to: the bits of 256 values in a 16-bit format.
DECODINGS = {
    "e4m3 to fp16": _e4m3().half().view(torch.int16),
    "int8 to fp16": INT8.half().view(torch.int16),
    "int8 to bf16": INT8.bfloat16().view(torch.int16),
}
#: By pack: the byte of the input word that each 16-bit half of the outputs decodes.
LANES = {4: ((0, 1, 2, 3),), 2: ((0, 2), (1, 3))}


def test_every_assembly_text_decodes_every_code_in_every_lane(tree: Path) -> None:
    calls = _assembly_of(tree)
    assert calls, f"{tree} has no inline assembly in its QSA kernels (vLLM 0.32.0 has none)"
    rng = np.random.default_rng(4)
    lanes = rng.integers(0, 256, (4, 256, 4), dtype=np.uint8)  # the neighbours are random
    for lane in range(4):
        lanes[lane, :, lane] = np.arange(256)
    codes = lanes.reshape(-1, 4)
    words = np.ascontiguousarray(codes).view(np.uint32)[:, 0]
    for name, text, form, pack in calls:
        outputs = ptx.run(text, [words], form.count("=r"))
        halves = np.ascontiguousarray(np.stack(outputs, axis=1)).view(np.int16)
        matches = [
            (decoding, order)
            for decoding, table in DECODINGS.items()
            for order in LANES[pack]
            if np.array_equal(halves, table.numpy()[codes[:, order]])
        ]
        assert len(matches) == 1, f"{name}, pack={pack}: decodes {matches or 'nothing known'}"


def test_install_refuses_another_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "__version__", "3.9.0")
    with pytest.raises(interpreter.UnsupportedInterpreter, match=r"triton 3\.9\.0.*3\.8\.x"):
        interpreter._check(upstream.InterpreterBuilder)


def test_install_refuses_changed_internals() -> None:
    def create_fma(self: object, x: object, y: object) -> None:
        raise NotImplementedError

    changed = type("Changed", (upstream.InterpreterBuilder,), {"create_fma": create_fma})
    with pytest.raises(interpreter.UnsupportedInterpreter, match="create_fma"):
        interpreter._check(changed)
