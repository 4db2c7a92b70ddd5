# SPDX-License-Identifier: Apache-2.0
"""The prompts by name: token ids drawn with fixed seeds, the same wherever they are drawn."""

from __future__ import annotations

import random

#: Ids 0 and 1 begin and end a text.
FIRST_TOKEN, VOCABULARY = 2, 512

#: Name of a set, seed and lengths of its prompts.
_SETS: dict[str, tuple[int, list[int]]] = {
    # Longer than one chunk, and than the 2,048 tokens from which on the indexer selects.
    "standard": (7, [9, 70, 333, 1300, 2900]),
    # More than fit into a batch, so they come and go in the middle of others' decoding.
    "short": (11, [3 + (7 * i) % 38 for i in range(48)]),
    # What comes back from the host's memory, and what drives it out of the GPU's.
    "returning": (13, [1500]),
    "users": (19, [512] * 8),
    "filling": (17, [1400 + 10 * i for i in range(16)]),
}


def prompts(name: str) -> list[list[int]]:
    """The prompts of a set.

    Raises:
        KeyError: There is no such set.

    """
    seed, lengths = _SETS[name]
    generator = random.Random(seed)
    return [[generator.randrange(FIRST_TOKEN, VOCABULARY) for _ in range(n)] for n in lengths]


def mixed(generator: random.Random) -> list[list[int]]:
    """Some prompts of mixed lengths, as a server gets them."""
    lengths = [
        generator.choice([5, 9, 70, 144, 333, 600, 1500, 2900]) for _ in range(generator.randint(1, 8))
    ]
    return [[generator.randrange(FIRST_TOKEN, VOCABULARY) for _ in range(n)] for n in lengths]
