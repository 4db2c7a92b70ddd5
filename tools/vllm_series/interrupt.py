# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C, SIGTERM and a closed terminal end a run as long as it can be taken back, and no longer."""

from __future__ import annotations

import signal

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_passed = False


def install() -> None:
    """Let the signals raise KeyboardInterrupt; one that is ignored, as under ``nohup``, stays ignored."""
    global _passed
    _passed = False
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _interrupt)


def point_of_no_return() -> None:
    """From here on the work is done: only saying so is left, and a signal must not deny it."""
    global _passed
    _passed = True


def _interrupt(_number: int, _frame: object) -> None:
    if not _passed:
        raise KeyboardInterrupt
