# SPDX-License-Identifier: Apache-2.0
"""Judge results by bands of log-probabilities: pure functions.

Two correct runs of a random model do not make the same tokens: they round differently, and where two tokens
are nearly as likely, that decides. What must agree is how likely the same tokens are. The unit is the
*rounding* that the reference measured, the mean difference between bf16 and float32 in one implementation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Times the rounding that two computations may differ by. Rounding K and V to int8 costs about 1 in Hugging
#: Face's implementation, to FP8 about 3.5; the loss of a quarter of the context 60 or more.
BAND, FP8_BAND = 4.0, 12.0
#: The reference is only of use if a lost part of the context is this many times the band.
TIGHT = 4.0
#: Tokens within which a run that repeats itself is called a loop, and repetitions.
_PERIOD, _REPEATS = 4, 4

Rows = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Difference:
    """How far two sets of log-probabilities are apart: means by prompt."""

    means: tuple[float, ...]

    @property
    def worst(self) -> float:
        """The largest mean."""
        return max(self.means, default=math.nan)


def difference(these: Rows, those: Rows) -> Difference:
    """The mean absolute difference of each prompt.

    Raises:
        ValueError: They are not about the same tokens.

    """
    means = []
    for a, b in zip(these, those, strict=True):
        if len(a) != len(b) or not a:
            raise ValueError(f"{len(a)} tokens are compared with {len(b)}")
        means.append(sum(abs(x - y) for x, y in zip(a, b, strict=True)) / len(a))
    return Difference(tuple(means))


def common_prefix(these: Sequence[int], those: Sequence[int]) -> int:
    """How many tokens two runs made alike before they parted."""
    pairs = zip(these, those, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(these), len(those)))


def decoded(these: Mapping[str, Any], those: Mapping[str, Any]) -> float:
    """The mean difference of two generations over the tokens up to where each pair of them parts.

    The log-probability of the token at which they part counts too: both are the likeliest of their run, so
    they are near each other if the runs agree. It is one mean, since a pair may part at its first token.
    """
    apart: list[float] = []
    pairs = zip(these["tokens_out"], those["tokens_out"], strict=True)
    for number, (a, b) in enumerate(pairs):
        end = common_prefix(a, b) + 1
        values = zip(these["logprobs"][number][:end], those["logprobs"][number][:end], strict=True)
        apart += [abs(x - y) for x, y in values]
    return sum(apart) / len(apart)


def equal_share(these: Mapping[str, Any], those: Mapping[str, Any]) -> str:
    """How many prompts got the very same tokens, as ``4/5``."""
    pairs = list(zip(these["tokens_out"], those["tokens_out"], strict=True))
    return f"{sum(a == b for a, b in pairs)}/{len(pairs)}"


def finite(rows: Rows) -> bool:
    """Whether every number is one."""
    return all(math.isfinite(value) for row in rows for value in row)


def loops(tokens: Sequence[int]) -> bool:
    """Whether a run ends in a few tokens that repeat."""
    for period in range(1, _PERIOD + 1):
        tail = tokens[-period * _REPEATS :]
        if len(tail) == period * _REPEATS and all(tail[i] == tail[i % period] for i in range(len(tail))):
            return True
    return False
