# SPDX-License-Identifier: Apache-2.0
"""Bytes and tokens as people read them."""

from __future__ import annotations

GIB = 1 << 30


def gib(amount: float) -> str:
    """``21.55 GiB``."""
    return f"{amount / GIB:.2f} GiB"


def thousands(count: int) -> str:
    """``262,144``."""
    return f"{count:,}"
