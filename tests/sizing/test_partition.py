# SPDX-License-Identifier: Apache-2.0
"""The rules of vLLM's partition check, and the best split against trying all of them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm_series.sizing.partition import (
    best_partition,
    even_partition,
    find_problem,
    most_stages,
    parse_partition,
)

LINEAR = tuple(layer % 4 != 3 for layer in range(48))
PLE = (1,)


@pytest.mark.parametrize(
    "partition",
    [
        (24, 24),
        (25, 23),
        (16, 16, 16),
        (4, 20, 24),
        (9, 10, 10, 10, 9),
        (8,) * 6,
        (7, 8, 8, 8, 8, 9),
        (4,) * 12,
    ],
)
def test_accepted(partition):
    assert find_problem(LINEAR, PLE, len(partition), partition) is None


@pytest.mark.parametrize(
    ("partition", "ple", "problem"),
    [
        ((1, 47), (1,), "decoder layer 1 holds the n-gram"),
        ((24, 24), (29,), "decoder layer 29 holds the n-gram"),
        ((2, 46), (1,), "stage 0 (layers 0 to 1) has no sparse"),
        ((2, 16, 16, 14), (1,), "stage 0 (layers 0 to 1) has no sparse"),
        ((21, 19, 3, 5), (1,), "stage 2 (layers 40 to 42) has no sparse"),
        ((7, 1, 40), (1,), "stage 1 (layers 7 to 7) has no linear"),
        ((2, 0, 14, 16, 8, 8), (1,), "stage 1 gets 0 layers"),
        ((-2, 10, 8, 16, 8, 8), (1,), "stage 0 gets -2 layers"),
        ((50, -2), (1,), "stage 1 gets -2 layers"),
        ((8, 8, 8, 8, 8, 9), (1,), "adds up to 49 layers, and the model has 48"),
    ],
)
def test_refused(partition, ple, problem):
    """The cases of the patch's own test, with the same layers and stages named."""
    assert problem in find_problem(LINEAR, ple, len(partition), partition)


def test_wrong_count():
    assert "5 entries for 6" in find_problem(LINEAR, PLE, 6, (8, 8, 8, 8, 16))


def test_one_stage_has_no_rules():
    assert find_problem((True, True), (), 1, (2,)) is None


@pytest.mark.parametrize(
    ("stages", "split"), [(5, (9, 10, 10, 10, 9)), (7, (7, 7, 7, 7, 7, 7, 6)), (6, (8,) * 6), (1, (48,))]
)
def test_even(stages, split):
    """vLLM's own split, as ``get_pp_indices`` gives it."""
    assert even_partition(48, stages) == split


@pytest.mark.parametrize(("ple", "most"), [((1,), 12), ((29,), 6)])
def test_most_stages(ple, most):
    assert most_stages(LINEAR, ple) == most
    assert best_partition(LINEAR, ple, most, lambda *_: 1) is not None
    assert best_partition(LINEAR, ple, most + 1, lambda *_: 1) is None


@pytest.mark.parametrize("text", ["8,8,x", "", "8;8", "8,,8"])
def test_unreadable(text):
    assert parse_partition(text) is None


@given(
    linear=st.lists(st.booleans(), min_size=2, max_size=10).filter(lambda kinds: len(set(kinds)) == 2),
    stages=st.integers(2, 4),
    sizes=st.lists(st.integers(0, 40), min_size=10, max_size=10),
    room=st.integers(20, 200),
)
def test_best_is_the_best_of_all(linear, stages, sizes, room):
    """No valid split has a fullest stage with noticeably more room."""

    def capacity(stage, start, end):
        return room - sum(sizes[start:end]) - (10 if stage == stages - 1 else 0)

    def least(partition):
        ends = [*itertools.accumulate(partition)]
        return min(
            capacity(n, end - size, end) for n, (end, size) in enumerate(zip(ends, partition, strict=True))
        )

    valid = [
        partition
        for partition in itertools.product(range(1, len(linear)), repeat=stages)
        if find_problem(linear, (), stages, partition) is None
    ]
    found = best_partition(linear, (), stages, capacity)
    assert (found is None) == (not valid)
    if found:
        best = max(map(least, valid))
        assert found in valid
        assert least(found) >= best - max(best, 0) * 0.01 - 1
        near = [p for p in valid if least(p) >= least(found)]
        assert sum(size * size for size in found) <= min(sum(s * s for s in p) for p in near)
