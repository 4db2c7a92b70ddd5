# SPDX-License-Identifier: Apache-2.0
"""Threads that wait for processes: several at a time, and all ended together."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from threading import Event
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")


def usable_cpus() -> int:
    """How many CPUs this process may use."""
    return len(os.sched_getaffinity(0))


class Workers:
    """At most ``jobs`` pieces of work at a time, in the order in which they came.

    Left by an exception, which Ctrl-C is too, it begins no further piece and waits until those at work
    have noticed: a piece calls :meth:`check` often.
    """

    def __init__(self, jobs: int) -> None:
        self._pool = ThreadPoolExecutor(jobs)
        self._stop = Event()

    def submit(self, piece: Callable[[], T]) -> Future[T]:
        """Do a piece of work when a thread is free."""
        return self._pool.submit(piece)

    def check(self) -> None:
        """Raise if the work is to end.

        Raises:
            CancelledError: It is.

        """
        if self._stop.is_set():
            raise CancelledError

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if error is not None:
            self._stop.set()
        self._pool.shutdown(cancel_futures=error is not None)
