# SPDX-License-Identifier: Apache-2.0
"""Closes the gaps of Triton 3.8's CPU interpreter that vLLM's QSA kernels fall into.

``TRITON_INTERPRET=1`` runs kernels in numpy, with these gaps (each has a test that shows
it on the bare interpreter, ``test_interpreter.py``):

* bfloat16 is stored as ``uint16``, and ``tl.dot`` and all arithmetic work on the raw bits;
* float32 -> bfloat16 truncates, integer -> bfloat16 casts the raw value;
* float32 -> float8e4nv does not carry, does not round to even and does not saturate;
* a comparison keeps the operands' element type, so a scalar comparison that is
  broadcast afterwards is no boolean any more;
* there are no bfloat16 constants (``tl.full`` with a value other than zero);
* inline assembly is not implemented.

A reduction or scan in bfloat16 (``tl.sum`` of bfloat16; ``tl.max`` widens by itself) is
refused: hardware rounds after each step, in an order that nobody specifies.

:func:`install` replaces the methods of the interpreter's builder. Triton gives no
promise about that class, therefore it first compares version and signatures with what
this module was written for and stops with :class:`UnsupportedInterpreter` otherwise.

What the interpreter cannot show: the order of accumulation on tensor cores, the lane
layout of packed inline assembly (elements are packed in row-major order here; a block
that treats all lanes alike gives the same result in any order), alignment and timing.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter as upstream
from triton.runtime.errors import InterpreterError

from . import ptx

#: Versions whose interpreter was read and tested with this module.
SUPPORTED_TRITON = ("3.8.",)

Array = npt.NDArray[Any]


class UnsupportedInterpreter(RuntimeError):
    """Triton's interpreter is not the one that this module corrects."""


_COMPARISONS = tuple(
    [f"create_icmp{op}" for op in ("SLE", "SLT", "SGE", "SGT", "ULE", "ULT", "UGE", "UGT")]
    + ["create_icmpEQ", "create_icmpNE"]
    + [f"create_fcmp{o}{op}" for o in "OU" for op in ("LT", "GT", "LE", "GE", "EQ", "NE")]
)
_BINARY = tuple(
    f"create_{op}"
    for op in (
        *("fadd", "fsub", "fmul", "fdiv", "frem", "precise_divf"),
        *("minimumf", "minnumf", "maximumf", "maxnumf"),
    )
)
_UNARY = tuple(
    f"create_{op}"
    for op in (
        *("fneg", "cos", "sin", "exp", "exp2", "log", "log2", "floor", "ceil"),
        *("sqrt", "precise_sqrt", "rsqrt", "erf"),
    )
)

#: Parameters of each method that is replaced, as Triton 3.8 has them.
_SIGNATURES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((*_COMPARISONS, *_BINARY), ("self", "lhs", "rhs")),
    "create_fma": ("self", "x", "y", "z"),
    "create_clampf": ("self", "arg", "lo", "hi", "propagate_nans"),
    "cast_impl": ("self", "src", "dst_type"),
    "create_fp_to_fp": ("self", "src", "dst_type", "rounding_mode"),
    "create_dot": ("self", "a", "b", "d", "input_precision", "max_num_imprecise_acc"),
    "create_inline_asm": (*("self", "inlineAsm", "constraints", "values", "type", "isPure", "pack"),),
}


_installed = False


def _check_signature(owner: type, name: str, expected: tuple[str, ...] | None) -> None:
    method = getattr(owner, name, None)
    if method is None:
        raise UnsupportedInterpreter(f"triton {triton.__version__} has no {owner.__name__}.{name}")
    actual = tuple(inspect.signature(method).parameters)
    if expected is None:  # unary: Triton names the argument differently here and there
        expected = ("self", *actual[1:2])
    if actual != expected:
        raise UnsupportedInterpreter(
            f"triton {triton.__version__}: {owner.__name__}.{name}{actual}, expected {expected}"
        )


def _check(builder: type) -> None:
    if not triton.__version__.startswith(SUPPORTED_TRITON):
        raise UnsupportedInterpreter(
            f"triton {triton.__version__}: the interpreter shim was written for "
            f"{', '.join(v + 'x' for v in SUPPORTED_TRITON)}; install triton 3.8.0, or check "
            "each gap again and extend SUPPORTED_TRITON"
        )
    if hasattr(builder, "get_bf16") and not _installed:
        raise UnsupportedInterpreter(f"triton {triton.__version__} has bf16 constants by itself")
    for name in (*_SIGNATURES, *_UNARY):
        _check_signature(builder, name, _SIGNATURES.get(name))
    _check_signature(upstream.GridExecutor, "__call__", ("self", "args_dev", "kwargs"))
    _check_signature(upstream.InterpretedFunction, "__call__", ("self", "args", "kwargs"))
    for interface in (upstream.ReduceOps, upstream.ScanOps):
        _check_signature(interface, "apply_impl", ("self", "input"))


def bf16_to_f32(bits: Array) -> npt.NDArray[np.float32]:
    """Widen bfloat16 bits (``uint16``) exactly."""
    return (np.ascontiguousarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf16(values: Array) -> npt.NDArray[np.uint16]:
    """Round float32 to bfloat16 bits: to nearest, ties to even; NaN stays quiet NaN."""
    single = np.ascontiguousarray(values, dtype=np.float32)
    bits = single.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(single), quiet, rounded).astype(np.uint16)


_FP8 = {tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2}


def _fp8_to_f32(bits: Array, dtype: tl.dtype) -> npt.NDArray[np.float32]:
    codes = torch.arange(256, dtype=torch.uint8).view(_FP8[dtype]).to(torch.float32).numpy()
    return np.asarray(codes[bits], dtype=np.float32)


def _f32_to_fp8(values: Array, dtype: tl.dtype) -> npt.NDArray[np.uint8]:
    # cvt.rn.satfinite: torch rounds to even, but only recent versions saturate.
    largest = torch.finfo(_FP8[dtype]).max
    single = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
    codes = single.clamp(-largest, largest).to(_FP8[dtype]).view(torch.uint8)
    return np.asarray(codes.numpy(), dtype=np.uint8).reshape(np.shape(values))


def _decode(handle: upstream.TensorHandle) -> Array:
    """The handle's values in a numpy type that computes with them."""
    dtype = handle.dtype.scalar
    if dtype == tl.bfloat16:
        return bf16_to_f32(handle.data)
    if dtype in _FP8:
        return _fp8_to_f32(handle.data, dtype)
    if dtype.is_floating() and dtype not in (tl.float16, tl.float32, tl.float64):
        raise UnsupportedInterpreter(f"no conversion from {dtype} in the interpreter shim")
    return np.asarray(handle.data)


def _encode(values: Array, dtype: tl.dtype) -> upstream.TensorHandle:
    dtype = dtype.scalar
    if dtype == tl.bfloat16:
        data: Array = f32_to_bf16(values)
    elif dtype in _FP8:
        data = _f32_to_fp8(values, dtype)
    elif dtype.is_floating() and dtype not in (tl.float16, tl.float32, tl.float64):
        raise UnsupportedInterpreter(f"no conversion to {dtype} in the interpreter shim")
    else:
        with np.errstate(over="ignore"):  # float32 -> float16 overflows to inf, as in hardware
            data = values.astype(upstream._get_np_dtype(dtype))
    return upstream.TensorHandle(data, dtype)


def _is_small_float(handle: upstream.TensorHandle) -> bool:
    return bool(handle.dtype.scalar == tl.bfloat16 or handle.dtype.scalar.is_fp8())


def _elementwise(original: Callable[..., Any]) -> Callable[..., Any]:
    """Compute bfloat16 in float32 and round once, as Triton does below sm_90."""

    def method(self: Any, *operands: Any) -> Any:
        small = [h for h in operands if isinstance(h, upstream.TensorHandle) and _is_small_float(h)]
        if not small:
            return original(self, *operands)
        if any(handle.dtype.scalar != tl.bfloat16 for handle in small):
            raise UnsupportedInterpreter("arithmetic on fp8 values")
        wide = [
            upstream.TensorHandle(_decode(h), tl.float32) if _is_one_of(h, small) else h for h in operands
        ]
        return _encode(original(self, *wide).data, tl.bfloat16)

    return method


def _is_one_of(item: Any, items: Sequence[Any]) -> bool:
    return any(item is other for other in items)


def _comparison(original: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, lhs: upstream.TensorHandle, rhs: upstream.TensorHandle) -> Any:
        if _is_small_float(lhs):
            lhs = upstream.TensorHandle(_decode(lhs), tl.float32)
            rhs = upstream.TensorHandle(_decode(rhs), tl.float32)
        return upstream.TensorHandle(original(self, lhs, rhs).data, tl.int1)

    return method


def _cast(self: Any, src: upstream.TensorHandle, dst_type: tl.dtype) -> upstream.TensorHandle:
    return _encode(_decode(src), dst_type)


def _float_cast(
    self: Any, src: upstream.TensorHandle, dst_type: tl.dtype, rounding_mode: Any
) -> upstream.TensorHandle:
    if rounding_mode not in (None, upstream._ir.ROUNDING_MODE.RTNE):
        raise UnsupportedInterpreter(f"rounding mode {rounding_mode}")
    return _encode(_decode(src), dst_type)


def _dot(
    self: Any,
    a: upstream.TensorHandle,
    b: upstream.TensorHandle,
    d: upstream.TensorHandle,
    input_precision: Any,
    max_num_imprecise_acc: Any,
) -> upstream.TensorHandle:
    """Exact products; float32 accumulation in numpy's order, or exact int32."""
    if d.dtype.scalar == tl.int32:
        # float64 holds every partial sum exactly (|a * b| <= 2**14 per term).
        total = np.matmul(a.data.astype(np.float64), b.data.astype(np.float64)) + d.data
        if total.size and np.abs(total).max() >= 2.0**31:
            raise OverflowError("tl.dot overflows its int32 accumulator")
        return upstream.TensorHandle(total.astype(np.int32), tl.int32)
    if d.dtype.scalar != tl.float32:
        raise UnsupportedInterpreter(f"tl.dot with a {d.dtype.scalar} accumulator")
    left, right = (_decode(h).astype(np.float32) for h in (a, b))
    return upstream.TensorHandle(np.matmul(left, right) + d.data, tl.float32)


def _bf16_constant(self: Any, value: float) -> upstream.TensorHandle:
    return upstream.TensorHandle(f32_to_bf16(np.array([value])), tl.bfloat16)


def _no_small_floats(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    @functools.wraps(original)
    def method(self: Any, input: Any) -> Any:
        for tensor in input:
            if _is_small_float(tensor.handle):
                raise UnsupportedInterpreter(
                    f"a reduction in {tensor.dtype}: cast to float32 first, the rounding of "
                    "each step is unspecified"
                )
        return original(self, input)

    return method


class _AsmResult:
    def __init__(self, handles: Sequence[upstream.TensorHandle]) -> None:
        self._handles = handles

    def get_result(self, index: int) -> upstream.TensorHandle:
        return self._handles[index]


def _registers_per_value(itemsize: int, pack: int) -> int:
    if itemsize > 4 or pack * itemsize % 4:
        raise UnsupportedInterpreter(
            f"inline assembly with pack={pack} on {8 * itemsize}-bit elements: only whole "
            "32-bit registers are emulated"
        )
    return pack * itemsize // 4


def _inline_asm(
    self: Any,
    asm: str,
    constraints: str,
    values: Sequence[upstream.TensorHandle],
    types: Sequence[Any],
    is_pure: bool,
    pack: int,
) -> _AsmResult:
    shape = values[0].data.shape
    count = values[0].data.size
    groups = -(-count // pack)  # the last one is padded, as Triton does
    registers: list[ptx.U32] = []
    for handle in values:
        if handle.data.shape != shape:
            raise UnsupportedInterpreter("inline assembly on operands of different shapes")
        width = _registers_per_value(handle.data.itemsize, pack)
        padded = np.zeros(groups * pack, dtype=handle.data.dtype)
        padded[:count] = handle.data.reshape(-1)
        words = padded.view(np.uint32).reshape(groups, width)
        registers += [np.ascontiguousarray(words[:, i]) for i in range(width)]
    element_types = [ty.scalar for ty in types]
    widths = [_registers_per_value(ty.primitive_bitwidth // 8, pack) for ty in element_types]
    letters = constraints.replace(" ", "").split(",")
    if letters != ["=r"] * sum(widths) + ["r"] * len(registers):
        raise UnsupportedInterpreter(
            f"constraints {constraints!r}: {sum(widths)} times '=r' and {len(registers)} times "
            "'r' expected for these operands"
        )
    outputs = ptx.run(asm, registers, sum(widths))
    handles = []
    for ty, width in zip(element_types, widths, strict=True):
        mine, outputs = outputs[:width], outputs[width:]
        words = np.ascontiguousarray(np.stack(mine, axis=1))
        flat = words.reshape(-1).view(upstream._get_np_dtype(ty))[:count]
        handles.append(upstream.TensorHandle(flat.reshape(shape), ty))
    return _AsmResult(handles)


#: Modules whose helper functions have had Triton's language patched in the current launch.
_patched_modules: set[int] = set()


def _launch(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: Any, *args_dev: Any, **kwargs: Any) -> Any:
        _patched_modules.clear()
        return original(self, *args_dev, **kwargs)

    return method


def _call_helper(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a ``@triton.jit`` helper; Triton patches its language module again each time.

    Once per launch and module has the same effect and halves the time of a kernel.
    """
    module = id(self.fn.__globals__)
    if module not in _patched_modules:
        upstream._patch_lang(self.fn)
        _patched_modules.add(module)
    function = self.rewrite()
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise InterpreterError(repr(error)) from error


def install() -> None:
    """Correct the interpreter of this process; a second call does nothing."""
    global _installed
    if _installed:
        return
    builder = upstream.InterpreterBuilder
    _check(builder)
    replacements: dict[str, Callable[..., Any]] = {
        "cast_impl": _cast,
        "create_fp_to_fp": _float_cast,
        "create_dot": _dot,
        "create_inline_asm": _inline_asm,
    }
    for name in (*_BINARY, *_UNARY, "create_fma", "create_clampf"):
        replacements[name] = _elementwise(getattr(builder, name))
    for name in _COMPARISONS:
        replacements[name] = _comparison(getattr(builder, name))
    for interface in (upstream.ReduceOps, upstream.ScanOps):
        interface.apply_impl = _no_small_floats(interface.apply_impl)
    upstream.GridExecutor.__call__ = _launch(upstream.GridExecutor.__call__)
    upstream.InterpretedFunction.__call__ = functools.update_wrapper(
        _call_helper, upstream.InterpretedFunction.__call__
    )
    for name, method in replacements.items():
        setattr(builder, name, functools.update_wrapper(method, getattr(builder, name)))
    builder.get_bf16 = _bf16_constant
    _installed = True
