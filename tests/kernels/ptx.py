# SPDX-License-Identifier: Apache-2.0
"""A strict emulator of the PTX that inline assembly in vLLM's kernels uses.

It executes straight-line blocks on ``uint32`` arrays, one array per 32-bit
register, one array element per thread. It knows a fixed list of instructions and
refuses everything else: an unknown instruction, modifier, register, directive or
operand count raises :class:`PtxError`. Nothing is guessed, so a kernel that starts
to use a new instruction fails here until somebody adds it with its semantics.

Semantics are those of the "PTX ISA" manual (NVIDIA), chapter "Instruction Set".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

U32 = npt.NDArray[np.uint32]
F64 = npt.NDArray[np.float64]

MASK32 = 0xFFFFFFFF
CANONICAL_NAN16 = 0x7FFF  # what every f16x2/bf16x2 instruction returns for NaN


class PtxError(Exception):
    """The block uses something that the emulator does not implement."""


def _shift_left(a: U32, b: U32) -> U32:
    # shl clamps the amount to 32 (numpy's own shift by >= 32 is undefined).
    wide = a.astype(np.uint64) << np.minimum(b, 32).astype(np.uint64)
    return (wide & np.uint64(MASK32)).astype(np.uint32)


def _shift_right(a: U32, b: U32) -> U32:
    return (a.astype(np.uint64) >> np.minimum(b, 32).astype(np.uint64)).astype(np.uint32)


def _shift_right_signed(a: U32, b: U32) -> U32:
    signed = a.view(np.int32).astype(np.int64)
    return (signed >> np.minimum(b, 32).astype(np.int64)).astype(np.uint32)


def _funnel_right_wrap(low: U32, high: U32, amount: U32) -> U32:
    both = (high.astype(np.uint64) << np.uint64(32)) | low
    return (both >> (amount & np.uint32(31)).astype(np.uint64)).astype(np.uint32)


def _funnel_left_wrap(low: U32, high: U32, amount: U32) -> U32:
    both = (high.astype(np.uint64) << np.uint64(32)) | low
    shifted = both << (amount & np.uint32(31)).astype(np.uint64)
    return (shifted >> np.uint64(32)).astype(np.uint32)


def _lop3(a: U32, b: U32, c: U32, table: U32) -> U32:
    lut = _immediate(table, "lop3 table", 0xFF)
    result = np.zeros_like(a)
    for minterm in range(8):
        if lut >> minterm & 1:
            term = a if minterm & 4 else ~a
            term = term & (b if minterm & 2 else ~b)
            result |= term & (c if minterm & 1 else ~c)
    return result


def _permute(a: U32, b: U32, selector: U32) -> U32:
    both = (b.astype(np.uint64) << np.uint64(32)) | a
    result = np.zeros_like(a)
    for byte in range(4):
        nibble = (selector >> np.uint32(4 * byte)) & np.uint32(0xF)
        shift = np.uint64(8) * (nibble & np.uint32(7)).astype(np.uint64)
        value = ((both >> shift) & np.uint64(0xFF)).astype(np.uint32)
        sign = np.where(value & 0x80, np.uint32(0xFF), np.uint32(0))
        value = np.where(nibble & 8, sign, value)
        result |= value << np.uint32(8 * byte)
    return result


def _immediate(values: U32, what: str, limit: int) -> int:
    first = int(values.flat[0]) if values.size else 0
    if bool((values != first).any()) or first > limit:
        raise PtxError(f"{what} must be one constant of at most {limit:#x}")
    return first


def _add(a: U32, b: U32) -> U32:
    return a + b


def _sub(a: U32, b: U32) -> U32:
    return a - b


def _from_f16(half: U32) -> F64:
    return half.astype(np.uint16).view(np.float16).astype(np.float64)


def _to_f16(value: F64) -> U32:
    # One rounding, to nearest even: numpy converts double to half directly.
    bits = value.astype(np.float16).view(np.uint16).astype(np.uint32)
    return np.where(np.isnan(value), np.uint32(CANONICAL_NAN16), bits)


def _from_bf16(half: U32) -> F64:
    return (half << np.uint32(16)).view(np.float32).astype(np.float64)


def _to_bf16(value: F64) -> U32:
    # Through float32 rounded to odd, so that the second rounding is exact too.
    single = value.astype(np.float32)
    inexact = np.isfinite(single) & (single.astype(np.float64) != value)
    even = (single.view(np.uint32) & np.uint32(1)) == 0
    toward = np.where(value > single, np.float32(np.inf), np.float32(-np.inf))
    single = np.where(inexact & even, np.nextafter(single, toward), single)
    bits = single.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> 16
    return np.where(np.isnan(value), np.uint32(CANONICAL_NAN16), rounded)


def _fma_to_odd(a: F64, b: F64, c: F64) -> F64:
    """``a * b + c``, rounded to odd; the product of two 16-bit floats is exact."""
    product = a * b
    total = product + c
    other = total - product
    with np.errstate(invalid="ignore"):
        error = (product - (total - other)) + (c - other)  # two-sum: total + error is exact
    even = (total.view(np.uint64) & np.uint64(1)) == 0
    move = np.isfinite(total) & even & (error != 0)
    toward = np.where(error > 0, np.inf, -np.inf)
    return np.where(move, np.nextafter(total, toward), total)


def _packed(
    decode: Callable[[U32], F64], encode: Callable[[F64], U32], op: Callable[..., F64]
) -> Callable[..., U32]:
    def run(*operands: U32) -> U32:
        with np.errstate(over="ignore", invalid="ignore"):
            low = encode(op(*(decode(x & np.uint32(0xFFFF)) for x in operands)))
            high = encode(op(*(decode(x >> np.uint32(16)) for x in operands)))
        return low | (high << np.uint32(16))

    return run


#: instruction -> (number of sources, semantics). Nothing outside this table runs.
INSTRUCTIONS: dict[str, tuple[int, Callable[..., U32]]] = {
    "mov.b32": (1, lambda a: a.copy()),
    "mov.u32": (1, lambda a: a.copy()),
    "not.b32": (1, lambda a: ~a),
    "and.b32": (2, lambda a, b: a & b),
    "or.b32": (2, lambda a, b: a | b),
    "xor.b32": (2, lambda a, b: a ^ b),
    "add.u32": (2, _add),
    "add.s32": (2, _add),
    "sub.u32": (2, _sub),
    "sub.s32": (2, _sub),
    "shl.b32": (2, _shift_left),
    "shr.b32": (2, _shift_right),
    "shr.u32": (2, _shift_right),
    "shr.s32": (2, _shift_right_signed),
    "shf.r.wrap.b32": (3, _funnel_right_wrap),
    "shf.l.wrap.b32": (3, _funnel_left_wrap),
    "lop3.b32": (4, _lop3),
    "prmt.b32": (3, _permute),
    "add.f16x2": (2, _packed(_from_f16, _to_f16, lambda a, b: a + b)),
    "sub.f16x2": (2, _packed(_from_f16, _to_f16, lambda a, b: a - b)),
    "mul.f16x2": (2, _packed(_from_f16, _to_f16, lambda a, b: a * b)),
    "fma.rn.f16x2": (3, _packed(_from_f16, _to_f16, _fma_to_odd)),
    "fma.rn.bf16x2": (3, _packed(_from_bf16, _to_bf16, _fma_to_odd)),
}

_TOKEN = re.compile(r"[{}]|[^;{}]+;|[^;{}\s]+")
_NAME = re.compile(r"[A-Za-z_%][\w$]*\Z")
_ARGUMENT = re.compile(r"\$\d+\Z")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_LITERAL = re.compile(r"-?(0[xX][0-9a-fA-F]+|\d+)[uU]?\Z")


class _Scopes:
    """Registers by name, innermost braces first; ``None`` is declared, not yet written."""

    def __init__(self, arguments: dict[str, U32 | None]) -> None:
        self._stack: list[dict[str, U32 | None]] = [arguments]

    def enter(self) -> None:
        self._stack.append({})

    def leave(self) -> None:
        if len(self._stack) == 1:
            raise PtxError("unbalanced '}'")
        self._stack.pop()

    @property
    def depth(self) -> int:
        return len(self._stack) - 1

    def declare(self, name: str) -> None:
        if not _NAME.match(name):
            raise PtxError(f"cannot declare {name!r}: only plain register names are known")
        if name in self._stack[-1]:
            raise PtxError(f"register {name} is declared twice")
        self._stack[-1][name] = None

    def _find(self, name: str) -> dict[str, U32 | None]:
        for scope in reversed(self._stack):
            if name in scope:
                return scope
        raise PtxError(f"unknown register or operand {name!r}")

    def read(self, name: str) -> U32:
        value = self._find(name)[name]
        if value is None:
            raise PtxError(f"register {name} is read before it is written")
        return value

    def write(self, name: str, value: U32, read_only: frozenset[str]) -> None:
        if name in read_only:
            raise PtxError(f"input register {name} is written")
        self._find(name)[name] = value


def run(asm: str, inputs: Sequence[U32], num_outputs: int) -> list[U32]:
    """Execute one block; LLVM numbering: outputs are ``$0..``, inputs follow.

    ``inputs`` are equally shaped ``uint32`` arrays, one element per thread; the result
    is one such array per output register.
    """
    if not inputs:
        raise PtxError("a block without inputs is not supported")
    shape = inputs[0].shape
    arguments: dict[str, U32 | None] = {f"${i}": None for i in range(num_outputs)}
    for number, values in enumerate(inputs, start=num_outputs):
        if values.dtype != np.uint32 or values.shape != shape:
            raise PtxError("inputs must be uint32 arrays of one shape")
        arguments[f"${number}"] = values
    read_only = frozenset(f"${num_outputs + i}" for i in range(len(inputs)))
    scopes = _Scopes(arguments)

    def operand(text: str) -> U32:
        if _LITERAL.match(text):
            value = int(text.rstrip("uU"), 0)
            if not -(1 << 31) <= value <= MASK32:
                raise PtxError(f"{text} does not fit 32 bits")
            return np.full(shape, value & MASK32, dtype=np.uint32)
        return scopes.read(text)

    for token in _TOKEN.findall(_COMMENT.sub(" ", asm)):
        if token == "{":
            scopes.enter()
        elif token == "}":
            scopes.leave()
        elif not token.endswith(";"):
            raise PtxError(f"statement without ';': {token!r}")
        elif statement := token[:-1].strip():
            _execute(statement, scopes, operand, read_only)
    if scopes.depth:
        raise PtxError("unbalanced '{'")
    return [scopes.read(f"${i}") for i in range(num_outputs)]


def _execute(
    statement: str, scopes: _Scopes, operand: Callable[[str], U32], read_only: frozenset[str]
) -> None:
    opcode, _, rest = statement.partition(" ")
    if opcode == ".reg":
        kind, _, names = rest.strip().partition(" ")
        if kind not in (".b32", ".u32", ".s32"):
            raise PtxError(f"register type {kind} is not supported")
        for name in names.split(","):
            scopes.declare(name.strip())
        return
    if opcode not in INSTRUCTIONS:
        raise PtxError(f"unknown instruction {opcode!r} in {statement!r}")
    count, semantics = INSTRUCTIONS[opcode]
    target, *sources = (part.strip() for part in rest.split(","))
    if len(sources) != count:
        raise PtxError(f"{opcode} takes {count} sources, not {len(sources)}: {statement!r}")
    if not (_NAME.match(target) or _ARGUMENT.match(target)):
        raise PtxError(f"{target!r} is no register")
    scopes.write(target, semantics(*(operand(source) for source in sources)), read_only)
