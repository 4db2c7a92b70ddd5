# SPDX-License-Identifier: Apache-2.0
"""Loops and numbers that are none."""

from __future__ import annotations

import random

import pytest
from vllm_series.bench.quality import loop_period, not_finite

CHANCE = random.Random(0)
WORDS = [CHANCE.randrange(1000) for _ in range(200)]


@pytest.mark.parametrize("period", [1, 2, 3, 17, 32])
def test_a_loop_at_the_end_is_found(period):
    piece = list(range(period))
    assert loop_period(WORDS + piece * 100) == period


def test_what_is_no_loop():
    assert loop_period(WORDS) is None
    assert loop_period([1023] * 20) is None  # Too short to tell.
    assert loop_period([1] * 300 + WORDS) is None  # It has come out of it.
    assert loop_period([]) is None
    assert loop_period(list(range(33)) * 40) is None


def test_text_where_there_are_no_ids():
    assert loop_period("A word, then " + "duct" * 40) == 4
    assert loop_period("!" * 100) == 1


def test_numbers():
    assert not_finite([-0.5, 0, -100.0]) == 0
    assert not_finite([None, float("nan"), float("-inf"), "NaN", -1.0]) == 4
