# SPDX-License-Identifier: Apache-2.0
"""The cards of a box: as the user writes them, or as the driver reports them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vllm_series.errors import EnvironmentFaultError, UsageError
from vllm_series.sizing.units import GIB

#: A card's nominal memory as the driver counts it, and what CUDA gives out of it: 23.56 of the 24 GiB of an
#: RTX 3090. `--gpu-memory-utilization` is a share of the latter.
_USABLE = 23.56 / 24

#: More GiB than any card has; who writes 3090 means a name.
LARGEST = 512

_GROUP = re.compile(r"(?:(\d{1,3})\s*x\s*)?(\d{1,4}(?:\.\d+)?)", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True)
class Card:
    """A GPU: a name for people, and the bytes that CUDA can give out."""

    name: str
    usable: int


def card(name: str, total: int) -> Card:
    """A card of so many bytes as the driver counts them."""
    return Card(name, int(total * _USABLE))


def parse_cards(text: str) -> tuple[Card, ...]:
    """Read ``6x24`` or ``4x24,2x32``: cards and their nominal GiB.

    Raises:
        UsageError: It is neither.

    """
    cards: list[Card] = []
    for group in text.split(","):
        match = _GROUP.fullmatch(group.strip())
        if match is None or not 1 <= int(match[1] or 1) <= 64 or float(match[2]) <= 0:
            raise UsageError(
                f"--gpus {text}: {group.strip() or 'nothing'} is not a number of cards and their memory",
                hint="write 6x24 for six cards of 24 GiB, 4x24,2x32 for unequal ones",
            )
        size = float(match[2])
        if size > LARGEST:
            raise UsageError(
                f"--gpus {text}: {size:g} is no card's memory in GiB",
                hint="name the memory, not the model: 6x24 for six RTX 3090",
            )
        cards += [card(f"{size:g} GiB card", int(size * GIB))] * int(match[1] or 1)
    return tuple(cards)


def detect_cards() -> tuple[Card, ...]:
    """Ask the driver.

    Raises:
        EnvironmentFaultError: The library, the driver or the cards are not there.

    """
    hint = "name the cards instead, such as --gpus 6x24"
    try:
        import pynvml
    except ImportError:
        raise EnvironmentFaultError(
            "the cards cannot be detected: the Python package nvidia-ml-py is missing",
            hint=f"pip install 'vllm-ampere-multigpu[gpu]', or {hint}",
        ) from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise EnvironmentFaultError(f"the cards cannot be detected: {error}", hint=hint) from None
    try:
        cards = []
        for number in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(number)
            total = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
            cards.append(card(str(pynvml.nvmlDeviceGetName(handle)), total))
    except pynvml.NVMLError as error:
        raise EnvironmentFaultError(f"the driver does not describe its cards: {error}", hint=hint) from None
    finally:
        pynvml.nvmlShutdown()
    if not cards:
        raise EnvironmentFaultError("the driver has no cards", hint=hint)
    return tuple(cards)
