# SPDX-License-Identifier: Apache-2.0
"""Run a program that may hang and may leave processes behind.

It gets a session of its own and a mark in its environment. Whatever is left of it in the end, in the
session or with the mark, is ended and named.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Marks every process of a run, unless it clears its environment.
MARK = "VLLM_SERIES_RUN"
#: Seconds between two looks.
_TICK = 0.05
#: Seconds from a polite signal to the last one.
_GRACE = 3.0
#: Seconds that children may take to end after their parent.
_LINGER = 1.0


@dataclass(frozen=True)
class Leftover:
    """A process that outlived its run, and was ended."""

    pid: int
    command: str


@dataclass(frozen=True)
class Ended:
    """How a run ended.

    Attributes:
        returncode: The program's exit status, negative for a signal.
        seconds: How long it ran.
        stopped: Why it was stopped, empty if it ended by itself.
        leftovers: Processes that it left.

    """

    returncode: int
    seconds: float
    stopped: str = ""
    leftovers: tuple[Leftover, ...] = ()


def supervise(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    log: Path,
    watch: Callable[[], str] = lambda: "",
) -> Ended:
    """Run ``command`` to its end, or until ``watch`` objects.

    Args:
        command: Program and arguments.
        cwd: Current folder.
        env: The whole environment.
        log: File for standard output and standard error.
        watch: Called often; returns why the program must be stopped, or an empty text.

    """
    mark = uuid.uuid4().hex
    started = time.monotonic()
    stopped = ""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**env, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while process.poll() is None:
                stopped = watch()
                if stopped:
                    _stop(process)
                    break
                time.sleep(_TICK)
        finally:
            if process.poll() is None:
                _signal(process.pid, signal.SIGKILL)
            returncode = process.wait()
            leftovers = _end_leftovers(process.pid, mark, 0.0 if stopped else _LINGER)
    return Ended(returncode, time.monotonic() - started, stopped, leftovers)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask for the stacks of a stuck Python (its fault handler prints them), then end it."""
    _signal(process.pid, signal.SIGABRT)
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        _signal(process.pid, signal.SIGKILL)
        process.wait()


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _end_leftovers(session: int, mark: str, linger: float) -> tuple[Leftover, ...]:
    deadline = time.monotonic() + linger
    found = members(session, mark)
    while found and time.monotonic() < deadline:
        time.sleep(_TICK)
        found = members(session, mark)
    named = dict(found)
    deadline = time.monotonic() + _GRACE
    number = signal.SIGTERM
    while found and time.monotonic() < deadline + _GRACE:
        for pid in found:
            _signal(pid, number)
        time.sleep(_TICK)
        if time.monotonic() > deadline:
            number = signal.SIGKILL
        found = members(session, mark)
        named.update(found)
    return tuple(Leftover(pid, command) for pid, command in sorted(named.items()))


def members(session: int, mark: str) -> dict[int, str]:
    """The living processes of a session or with a mark, and their command lines."""
    wanted = f"{MARK}={mark}".encode()
    found = {}
    for entry in Path("/proc").iterdir() if Path("/proc/self/stat").exists() else ():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            if fields[0] in (b"Z", b"X"):
                continue
            if int(fields[3]) == session or wanted in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = _command(entry)
        except (OSError, IndexError):
            continue
    return found


def _command(entry: Path) -> str:
    words = (entry / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    text = b" ".join(words) or (entry / "comm").read_bytes().strip()
    return text.decode("utf-8", "replace").replace("\n", " ")[:200]
