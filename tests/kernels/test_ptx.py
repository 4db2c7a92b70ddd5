# SPDX-License-Identifier: Apache-2.0
"""The PTX emulator against independent scalar definitions, and its refusals."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from . import ptx

MASK = 0xFFFFFFFF
EDGES = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xBF80BF80]


def _words(count: int, seed: int) -> ptx.U32:
    rng = np.random.default_rng(seed)
    random = rng.integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32)
    return np.concatenate([np.array(EDGES, dtype=np.uint32), random])


def _signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


def _reference_permute(a: int, b: int, selector: int) -> int:
    source = (b << 32 | a).to_bytes(8, "little")
    result = 0
    for byte in range(4):
        control = selector >> 4 * byte & 0xF
        value = source[control & 7]
        if control & 8:
            value = 0xFF if value & 0x80 else 0
        result |= value << 8 * byte
    return result


def _bits_lop3(table: int) -> Callable[[int, int, int], int]:
    def reference(a: int, b: int, c: int) -> int:
        result = 0
        for bit in range(32):
            index = (a >> bit & 1) << 2 | (b >> bit & 1) << 1 | c >> bit & 1
            result |= (table >> index & 1) << bit
        return result

    return reference


@pytest.mark.parametrize(
    ("statement", "reference"),
    [
        ("mov.b32 $0, $1", lambda a, b, c: a),
        ("mov.b32 $0, -1", lambda a, b, c: MASK),
        ("not.b32 $0, $1", lambda a, b, c: a ^ MASK),
        ("and.b32 $0, $1, $2", lambda a, b, c: a & b),
        ("or.b32 $0, $1, 0x80008000", lambda a, b, c: a | 0x80008000),
        ("xor.b32 $0, $1, $2", lambda a, b, c: a ^ b),
        ("add.u32 $0, $1, $2", lambda a, b, c: (a + b) & MASK),
        ("add.s32 $0, $1, $2", lambda a, b, c: (a + b) & MASK),
        ("sub.u32 $0, $1, $2", lambda a, b, c: (a - b) & MASK),
        ("sub.s32 $0, $1, $2", lambda a, b, c: (a - b) & MASK),
        ("shl.b32 $0, $1, 7", lambda a, b, c: a << 7 & MASK),
        ("shl.b32 $0, $1, $2", lambda a, b, c: a << min(b, 32) & MASK),
        ("shr.b32 $0, $1, $2", lambda a, b, c: a >> min(b, 32)),
        ("shr.u32 $0, $1, 8", lambda a, b, c: a >> 8),
        ("shr.s32 $0, $1, $2", lambda a, b, c: _signed(a) >> min(b, 32) & MASK),
        ("shf.r.wrap.b32 $0, $1, $2, $3", lambda a, b, c: (b << 32 | a) >> (c & 31) & MASK),
        ("shf.l.wrap.b32 $0, $1, $2, $3", lambda a, b, c: (b << 32 | a) << (c & 31) >> 32 & MASK),
        ("prmt.b32 $0, $1, $2, $3", _reference_permute),
        ("prmt.b32 $0, $1, $2, 0x5043", lambda a, b, c: _reference_permute(a, b, 0x5043)),
        *((f"lop3.b32 $0, $1, $2, $3, {table:#x}", _bits_lop3(table)) for table in range(256)),
    ],
)
def test_integer_instruction(statement: str, reference: Callable[..., int]) -> None:
    count = 40 if statement.startswith("lop3") else 2000
    a, b, c = (_words(count, seed) for seed in range(3))
    b[:11], c[:11] = np.roll(b[:11], 3), np.roll(c[:11], 5)
    b[50 : 50 + 40] = np.arange(len(b[50 : 50 + 40]))  # shift amounts around 32
    (result,) = ptx.run(f"{{ {statement}; }}", [a, b, c], 1)
    expected = [reference(*map(int, row)) & MASK for row in zip(a, b, c, strict=True)]
    assert result.tolist() == expected


class _Half:
    """One 16-bit float format; values as exact fractions."""

    def __init__(self, mantissa: int, bias: int) -> None:
        self.mantissa, self.bias = mantissa, bias
        self.infinity = ((1 << 15 - mantissa) - 1) << mantissa
        finite = sorted({self.value(code): code for code in range(self.infinity)}.items())
        self._values = [value for value, _ in finite]
        self._codes = [code for _, code in finite]

    def is_finite(self, code: int) -> bool:
        return code & 0x7FFF < self.infinity

    def value(self, code: int) -> Fraction:
        exponent = code >> self.mantissa & (1 << 15 - self.mantissa) - 1
        fraction = code & (1 << self.mantissa) - 1
        if exponent:
            fraction |= 1 << self.mantissa
        scale = Fraction(2) ** (max(exponent, 1) - self.bias - self.mantissa)
        return (-1 if code & 0x8000 else 1) * fraction * scale

    def magnitude(self, exact: Fraction) -> int:
        """Code of ``exact >= 0`` rounded to nearest, ties to even."""
        low, high = 0, len(self._values)
        while low < high:
            middle = (low + high) // 2
            if self._values[middle] <= exact:
                low = middle + 1
            else:
                high = middle
        below = low - 1
        upper = self._values[low] if low < len(self._values) else 2 * self._values[-1] - self._values[-2]
        left, right = exact - self._values[below], upper - exact
        code = self._codes[below]
        if left > right or (left == right and code & 1):
            return min(code + 1, self.infinity)
        return code


F16 = _Half(10, 15)
BF16 = _Half(7, 127)


@pytest.mark.parametrize(
    ("instruction", "half", "operation"),
    [
        ("add.f16x2", F16, lambda a, b, c: a + b),
        ("sub.f16x2", F16, lambda a, b, c: a - b),
        ("mul.f16x2", F16, lambda a, b, c: a * b),
        ("fma.rn.f16x2", F16, lambda a, b, c: a * b + c),
        ("fma.rn.bf16x2", BF16, lambda a, b, c: a * b + c),
    ],
)
def test_packed_float_instruction_rounds_once(
    instruction: str, half: _Half, operation: Callable[..., Fraction]
) -> None:
    a, b, c = (_words(1500, seed) for seed in (10, 11, 12))
    if instruction.startswith("fma"):
        # Close to ties: c is small next to a product in the middle of two codes.
        near = np.uint32(0x00010001) * np.arange(1, 512, dtype=np.uint32)
        a = np.concatenate([a, np.uint32(0x3C013C01) + near])
        b = np.concatenate([b, np.uint32(0x3C033C03) + near])
        c = np.concatenate([c, near])
    sources = ", ".join(f"${1 + i}" for i in range(ptx.INSTRUCTIONS[instruction][0]))
    (result,) = ptx.run(f"{instruction} $0, {sources};", [a, b, c], 1)
    checked = 0
    for row in zip(result.tolist(), a.tolist(), b.tolist(), c.tolist(), strict=True):
        for shift in (0, 16):
            got, *codes = (word >> shift & 0xFFFF for word in row)
            if not all(half.is_finite(code) for code in codes):
                continue
            exact = operation(*(half.value(code) for code in codes))
            assert got & 0x7FFF == half.magnitude(abs(exact)), (instruction, codes)
            if exact:
                assert got >> 15 == (exact < 0), (instruction, codes)
            checked += 1
    assert checked > 2000


def test_nan_is_canonical() -> None:
    nan = np.array([0x7E017E01], dtype=np.uint32)
    one = np.array([0x3C003C00], dtype=np.uint32)
    assert ptx.run("sub.f16x2 $0, $1, $2;", [nan, one], 1)[0].tolist() == [0x7FFF7FFF]


def test_scopes_comments_and_literals() -> None:
    block = """
    // a comment; with a semicolon
    { .reg .b32 a, b;
      mov.b32 a, 0x10;
      { .reg .b32 a; /* hides the outer a */ mov.b32 a, 1; add.u32 b, a, $1; }
      add.u32 $0, a, b; }
    """
    assert ptx.run(block, [np.array([5], dtype=np.uint32)], 1)[0].tolist() == [22]


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("bfe.u32 $0, $1, 0, 8;", "unknown instruction 'bfe.u32'"),
        ("shf.r.clamp.b32 $0, $1, $1, 1;", "unknown instruction"),
        ("sub.bf16x2 $0, $1, $1;", "unknown instruction"),  # sm_90 only
        ("mov.b32 $0, x;", "unknown register or operand 'x'"),
        (".reg .b32 x; mov.b32 $0, x;", "read before it is written"),
        (".reg .b32 x, x; mov.b32 $0, $1;", "declared twice"),
        (".reg .f32 x; mov.b32 $0, $1;", "register type .f32"),
        (".reg .b32 x<4>; mov.b32 $0, $1;", "cannot declare"),
        ("mov.b32 y, $1; mov.b32 $0, $1;", "unknown register or operand 'y'"),
        ("mov.b32 $1, 0; mov.b32 $0, $1;", "input register"),
        ("and.b32 $0, $1;", "takes 2 sources"),
        ("mov.b32 $0, 0x1FFFFFFFF;", "does not fit"),
        ("lop3.b32 $0, $1, $1, $1, 0x100;", "at most 0xff"),
        ("{ mov.b32 $0, $1;", "unbalanced '{'"),
        ("mov.b32 $0, $1; }", "unbalanced '}'"),
        ("mov.b32 $0, $1", "without ';'"),
        ("@p mov.b32 $0, $1;", "unknown instruction '@p'"),
        ("", "read before it is written"),
    ],
)
def test_refuses(block: str, message: str) -> None:
    with pytest.raises(ptx.PtxError, match=message.replace("(", r"\(")):
        ptx.run(block, [np.arange(4, dtype=np.uint32)], 1)
