# SPDX-License-Identifier: Apache-2.0
"""The tree's QSA attention kernel, compiled for GPUs that are not there.

Everything compiles once per session in a process without the interpreter (``aot.py``); the
tests look at the results. ``-k int8`` and the like select a kind.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from . import aot, sass

SHIPPED = [
    (arch, kind)
    for arch in aot.ARCHES
    for kind in aot.KINDS
    if kind != "e4m3_native" or arch >= aot.NATIVE_E4M3
]
#: Ampere without native fp8: the kinds whose whole table must do without spills.
SOFTWARE = [(arch, kind) for arch in (80, 86) for kind in ("e4m3_bytes", "int8")]


@pytest.fixture(scope="session")
def compiled(tree: Path, request: pytest.FixtureRequest) -> list[aot.Compiled]:
    """What the selected tests need, and no more: a kernel takes one or two seconds."""
    wanted = {
        item.callspec.params["pair"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and "pair" in getattr(item, "callspec", _NONE).params
    }
    pairs = [pair for pair in SHIPPED if pair in wanted]
    shapes = [
        aot.Request(arch, kind, *aot.SHAPES[shape])
        for arch, kind in pairs
        for shape in ("prefill", "decode_1")
    ]
    return aot.compile_tree(tree, shapes, [pair for pair in pairs if pair in SOFTWARE])


class _NONE:
    params: dict[str, object] = {}  # noqa: RUF012 - stands for an item without parameters


def _of(compiled: Iterable[aot.Compiled], pair: tuple[int, str]) -> list[aot.Compiled]:
    found = [item for item in compiled if (item.arch, item.kind) == pair]
    assert found
    return found


def _ids(pairs: Iterable[tuple[int, str]]) -> list[str]:
    return [f"sm{arch}-{kind}" for arch, kind in pairs]


@pytest.mark.parametrize("pair", SHIPPED, ids=_ids(SHIPPED))
def test_compiles_and_fits_shared_memory(compiled: list[aot.Compiled], pair: tuple[int, str]) -> None:
    for item in _of(compiled, pair):
        assert not item.error, item.error
        assert item.registers <= 255
        assert item.shared <= aot.SHARED_KIB[item.arch] * 1024, item
        assert item.hmma + item.imma > 0  # the right part of the kernel was found


@pytest.mark.parametrize("pair", SOFTWARE, ids=_ids(SOFTWARE))
def test_no_spill_in_any_configuration_of_the_table(
    compiled: list[aot.Compiled], pair: tuple[int, str]
) -> None:
    items = _of(compiled, pair)
    assert not [item.error for item in items if item.error]
    spilling = [item for item in items if item.stack or item.local]
    assert not spilling, "\n".join(map(str, spilling))


@pytest.mark.parametrize("pair", SOFTWARE, ids=_ids(SOFTWARE))
def test_keys_and_values_are_loaded_16_bytes_wide(
    compiled: list[aot.Compiled], pair: tuple[int, str]
) -> None:
    """Every byte of a K/V tile comes in 16-byte loads; indices, pages and scales do not."""
    for item in _of(compiled, pair):
        assert not item.error, item.error
        if item.looped:
            assert item.wide_loads == item.expected_wide_loads, item
        else:  # the query's loads are counted too
            assert item.wide_loads >= item.expected_wide_loads, item
        assert item.sub_word_loads == 0, item


@pytest.mark.parametrize("pair", [(86, "e4m3_bytes"), (90, "bf16")], ids=["sm86-e4m3_bytes", "sm90-bf16"])
def test_loop_counts_add_up(compiled: list[aot.Compiled], pair: tuple[int, str]) -> None:
    for item in _of(compiled, pair):
        parts = item.hmma + item.imma + item.wide_loads + item.narrow_loads + item.shared_accesses
        assert 0 < parts < item.total


def test_main_loop_is_the_one_with_tensor_cores() -> None:
    text = """
.L_x_0:
        /*0000*/                   IADD3 R0, R0, 0x1, RZ ;
        /*0010*/              @P0  BRA `(.L_x_0) ;
.L_x_1:
        /*0020*/              @!P1 LDG.E.128.CONSTANT R4, [R2.64] ;
        /*0030*/                   LDGSTS.E.BYPASS.128 [R1], [R2.64] ;
        /*0040*/                   LDG.E.U8 R5, [R2.64] ;
        /*0050*/                   HMMA.16816.F32 R4, R8, R10, R4 ;
        /*0060*/                   LDSM.16.MT88.4 R4, [R1] ;
        /*0070*/              @P0  BRA `(.L_x_1) ;
        /*0080*/                   EXIT ;
"""
    body, looped = sass.main_loop(text)
    counts = sass.count(body)
    assert looped
    assert (counts.total, counts.hmma, counts.imma) == (6, 1, 0)
    assert (counts.wide_loads, counts.narrow_loads, counts.sub_word_loads) == (2, 1, 1)
    assert counts.shared == 1


def test_kernel_without_a_loop_is_counted_whole() -> None:
    text = "/*0000*/ HMMA.16816.F32 R4, R8, R10, R4 ;\n.L_x_1:\n/*0010*/ BRA `(.L_x_1) ;"
    body, looped = sass.main_loop(text)
    assert not looped
    assert sass.count(body).hmma == 1


def test_markdown_has_a_line_for_every_result() -> None:
    good = aot.Compiled(arch=86, kind="int8", rows=2048, prefill=True, block_n=32, warps=1)
    bad = aot.Compiled(arch=86, kind="bf16", rows=1, prefill=False, error="ValueError: no")
    lines = aot.markdown({"patched": [good, bad], "base": [good]}).splitlines()
    assert len(lines) == 2 + 3
    assert len({line.count("|") for line in lines}) == 1
    assert "fails: ValueError: no" in lines[-1]
    assert good.expected_wide_loads == 32  # 32 tokens * 512 bytes by 32 threads
