# SPDX-License-Identifier: Apache-2.0
"""Whether an answer is one that a broken server gives: the same tokens again and again, or no numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

#: The longest piece whose repetition is looked for, and how much of the end must consist of it.
LONGEST_PERIOD = 32
SHORTEST_TAIL = 48
FEWEST_REPEATS = 6


def loop_period(items: Sequence[object]) -> int | None:
    """The length of the piece that the end of an answer repeats, None if it repeats none.

    Args:
        items: Token ids, or characters where the server states no ids.

    """
    for period in range(1, LONGEST_PERIOD + 1):
        tail = max(SHORTEST_TAIL, period * FEWEST_REPEATS)
        if len(items) >= tail:
            end = items[-tail:]
            if all(end[n] == end[n - period] for n in range(period, tail)):
                return period
    return None


def not_finite(values: Sequence[object]) -> int:
    """How many of a server's log probabilities are no finite numbers; JSON writers turn NaN into null."""
    return sum(not (isinstance(value, (int, float)) and math.isfinite(value)) for value in values)
