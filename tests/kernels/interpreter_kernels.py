# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Small Triton kernels that try one operation each of the interpreter.

Their arguments carry no types: Triton reads annotations, and casts to them.
"""

import triton
import triton.language as tl


@triton.jit
def small_dot(a, b, out):
    i = tl.arange(0, 16)
    offsets = i[:, None] * 16 + i[None, :]
    tl.store(out + offsets, tl.dot(tl.load(a + offsets), tl.load(b + offsets)))


@triton.jit
def cast(src, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(src + i).to(out.dtype.element_ty))


@triton.jit
def multiply(a, b, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(a + i) * tl.load(b + i))


@triton.jit
def constant(out, N: tl.constexpr):
    tl.store(out + tl.arange(0, N), tl.full((N,), 1.5, out.dtype.element_ty))


@triton.jit
def scalar_comparison(src, out, N: tl.constexpr):
    i = tl.arange(0, N)
    flag = tl.load(src) > 0.5
    tl.store(out + i, tl.where(flag & (i >= 0), 1.0, 0.0), mask=flag & (i < N))


@triton.jit
def move_assembly(src, out, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(src + i)
    y = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(out + i, y)


@triton.jit
def dot(a, b, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    left = tl.load(a + m[:, None] * K + k[None, :])
    right = tl.load(b + k[:, None] * N + n[None, :])
    result = tl.dot(left, right, out_dtype=out.dtype.element_ty)
    tl.store(out + m[:, None] * N + n[None, :], result)


@triton.jit
def arithmetic(a, b, out, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(a + i), tl.load(b + i)
    tl.store(out + i, x + y)
    tl.store(out + N + i, x - y)
    tl.store(out + 2 * N + i, x * y)
    tl.store(out + 3 * N + i, -x)
    tl.store(out + 4 * N + i, tl.maximum(x, y))
    tl.store(out + 5 * N + i, tl.where(x < y, x, y))
    tl.store(out + 6 * N + i, tl.abs(x))
    tl.store(out + 7 * N + i, tl.full((N,), 0.5, out.dtype.element_ty) * tl.max(x, axis=0))


@triton.jit
def total(a, out, N: tl.constexpr):
    tl.store(out, tl.sum(tl.load(a + tl.arange(0, N)), axis=0))


@triton.jit
def pair(src, low, high, N: tl.constexpr):
    i = tl.arange(0, N)
    words = tl.load(src + i)
    # Two 16-bit elements per register; two results of different width.
    a, b = tl.inline_asm_elementwise(
        """{
        and.b32 $0, $3, 0x00FF00FF;
        and.b32 $1, $3, 0xFFFF;
        shr.b32 $2, $3, 16;
        }""",
        "=r,=r,=r,r",
        [words],
        dtype=(tl.uint16, tl.int32),
        is_pure=True,
        pack=2,
    )
    tl.store(low + i, a)
    tl.store(high + i, b)


@triton.jit
def any_assembly(src, out, N: tl.constexpr, TEXT: tl.constexpr, FORM: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(src + i)
    y = tl.inline_asm_elementwise(TEXT, FORM, [x], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(out + i, y)
