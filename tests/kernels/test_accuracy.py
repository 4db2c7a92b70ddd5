# SPDX-License-Identifier: Apache-2.0
"""What ``accuracy.py`` measures is what it says; ``-k int8`` needs a tree with such a cache."""

from __future__ import annotations

import pytest

from . import accuracy

ROWS = 1
#: Of the kernel on top of the storage, against the storage's own float64 answer: see test_qsa_interpreted.py.
KERNEL = 4.5e-3


@pytest.mark.parametrize("name", accuracy.INPUTS)
@pytest.mark.parametrize("kind", accuracy.CACHES)
def test_the_kernel_adds_little_to_what_storing_costs(kind: str, name: str) -> None:
    found = accuracy.measure(kind, accuracy.INPUTS[name](ROWS))
    assert (found.storage == 0) == (kind == "bf16")
    assert abs(found.kernel - found.storage) < KERNEL


@pytest.mark.parametrize("name", ["gaussian", "peaked"])
def test_int8_is_the_more_accurate_where_no_channel_stands_out(name: str) -> None:
    rows = accuracy.INPUTS[name](ROWS)
    int8, e4m3 = (accuracy.measure(kind, rows).storage for kind in ("int8", "e4m3_bytes"))
    assert int8 < e4m3


def test_the_inputs_are_what_their_names_say() -> None:
    plain, outliers, peaked = (make(ROWS) for make in accuracy.INPUTS.values())
    largest = outliers.keys.abs().amax((0, 1, 2))
    assert sorted(largest.argsort(descending=True)[:4].tolist()) == [0, 64, 128, 192]
    answers = [accuracy.attention_oracle(x.problem, accuracy.cached("bf16", x)) for x in (plain, peaked)]
    assert answers[1].norm() > 3 * answers[0].norm(), "averaging over many tokens makes the answer small"
