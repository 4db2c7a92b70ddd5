# SPDX-License-Identifier: Apache-2.0
"""Prompts of an exact number of tokens, made from a seed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_series.errors import EnvironmentFaultError, UsageError

_TEXT = (
    "amber anchor apple arrow autumn basin beacon birch bottle bridge candle canyon carpet castle cedar "
    "circle clover cobalt copper coral cotton cradle crystal desert dragon eagle ember engine falcon "
    "feather field forest fossil garden garlic ginger glacier granite harbor harvest hazel helmet honey "
    "island ivory jacket jasmine jungle kettle ladder lagoon lantern lemon linen lizard magnet maple "
    "marble meadow mirror mosaic needle oasis ocean olive orchid paper pebble pepper pillow planet pocket "
    "prairie quartz rabbit raven ribbon river rocket saddle saffron sailor salmon shadow silver spider "
    "spring temple thunder timber tulip tunnel valley velvet violet walnut water willow window winter "
    "yellow zephyr "
)
_WORDS = tuple(_TEXT.split())


@dataclass(frozen=True)
class Prompt:
    """A prompt as token ids, and as the text that they stand for."""

    ids: tuple[int, ...]
    text: str


class Writer:
    """Writes prompts with the tokenizer of the model."""

    def __init__(self, tokenizer: Path, seed: int) -> None:
        """Load a ``tokenizer.json``, or the one in a folder.

        Raises:
            UsageError: There is none.
            EnvironmentFaultError: The ``bench`` extra is not installed.

        """
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise EnvironmentFaultError(
                "bench needs the tokenizers package",
                hint="install it with: pip install 'vllm-ampere-multigpu[bench]'",
            ) from None
        file = tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer
        try:
            self._tokenizer: Any = Tokenizer.from_file(str(file))
        except Exception as error:  # The library raises plain Exception.
            raise UsageError(
                f"{file} cannot be read as a tokenizer: {error}",
                hint="name the folder of the checkpoint with --tokenizer",
            ) from None
        self._seed = seed
        #: SHA-256 of the file: two runs with another one have other prompts.
        self.digest = hashlib.sha256(file.read_bytes()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without special ones."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def filler(self, name: str, count: int) -> Prompt:
        """Words without sense, ``count`` tokens: the same for a name and seed, and another text for others.

        The first words differ already, so that no two prompts share a prefix that a server could reuse.
        """
        ids = self._random_ids(name, count)
        return Prompt(tuple(ids), self.decode(ids))

    def needle(self, name: str, count: int, depth: float) -> tuple[Prompt, str]:
        """A prompt of ``count`` tokens with a fact at ``depth`` (0 to 1), and what a right answer holds.

        Raises:
            UsageError: The prompt is too short for the fact and the question.

        """
        chance = random.Random(f"{self._seed}/{name}/secret")
        secret = str(chance.randrange(100_000, 1_000_000))
        key = chance.choice(_WORDS)
        fact, question = self._needle_parts(key, secret)
        room = count - len(fact) - len(question)
        if room < 2:
            raise UsageError(f"a needle test needs more than {count} tokens of context")
        hay = self._random_ids(name, room)
        cut = round(room * depth)
        ids = (*hay[:cut], *fact, *hay[cut:], *question)
        return Prompt(ids, self.decode(ids)), secret

    def has_room_for_needle(self, count: int) -> bool:
        """Whether a prompt of ``count`` tokens can hold a fact and a question, whatever the words."""
        longest = max(_WORDS, key=len)
        return count >= 2 + sum(map(len, self._needle_parts(longest, "888888")))

    def _needle_parts(self, key: str, secret: str) -> tuple[list[int], list[int]]:
        fact = f"\n\nRemember this: the secret number of the {key} is {secret}.\n\n"
        question = (
            f"\n\nQuestion: what is the secret number of the {key}? Answer with the number alone.\nAnswer:"
        )
        return self.encode(fact), self.encode(question)

    def _random_ids(self, name: str, count: int) -> list[int]:
        chance = random.Random(f"{self._seed}/{name}")
        ids: list[int] = []
        while len(ids) < count:
            words = " ".join(chance.choice(_WORDS) for _ in range(max(8, count - len(ids))))
            ids += self.encode(f"{words}.\n")
        return ids[:count]
