# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that reports to vllm-series while the tests run.

Lines of JSON go to the file ``VLLM_SERIES_REPORT``, so that a killed run has reported what it did. Each test
phase may take ``VLLM_SERIES_LIMIT`` seconds; a phase that does not even answer the alarm is ended from
outside. Children that are alive after a test are written down, so that a process which outlives the run can
be told from which test it came.
"""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import signal
from collections.abc import Generator
from typing import Any, TextIO

import pytest
import vllm_series_guard  # type: ignore[import-not-found]

#: Longest text of a failure, in characters; the end counts.
LONGEST = 8000
_PR_SET_PDEATHSIG = 1

_main = os.getpid()
_limit = float(os.environ["VLLM_SERIES_LIMIT"])
_stream: TextIO = open(os.environ["VLLM_SERIES_REPORT"], "a", encoding="utf-8")  # noqa: PTH123, SIM115


def _write(event: str, **values: object) -> None:
    if os.getpid() == _main:  # not a forked child of a test
        _stream.write(json.dumps({"event": event, **values}) + "\n")
        _stream.flush()


def pytest_configure() -> None:
    """Die with vllm-series."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _write("start")


def _shorten(text: str) -> str:
    """``text`` with paths relative to the tree; pytest writes them relative to the current folder."""
    tree = os.environ["VLLM_SERIES_TREE"]
    return text.replace(os.path.relpath(tree) + os.sep, "").replace(tree + os.sep, "")


def _reason(longrepr: Any) -> tuple[str, str]:
    """One line on a failure, and the file that raised it."""
    crash = getattr(longrepr, "reprcrash", None)
    if crash is not None:
        return crash.message.split("\n")[0], f"{crash.path}:{crash.lineno}"
    lines = str(longrepr).splitlines()
    errors = [line[1:].strip() for line in lines if line.startswith("E ")]
    if errors:
        places = [line for line in lines if line.split(":")[0].endswith(".py") and line.count(":") > 1]
        return errors[-1], _shorten(places[-1]) if places else ""
    return (lines or ["no reason given"])[-1].strip(), ""


def _skip_reason(longrepr: object) -> str:
    return str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Report files that cannot be collected, or that skip themselves."""
    if report.failed:
        reason, place = _reason(report.longrepr)
        text = _shorten(str(report.longrepr))[-LONGEST:]
        _write("collect-error", node=report.nodeid, reason=reason, place=place, text=text)
    elif report.skipped:
        _write("collect-skip", node=report.nodeid, reason=_skip_reason(report.longrepr))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Report the tests to come."""
    _write("collected", nodes=[item.nodeid for item in session.items])


def pytest_runtest_logstart(nodeid: str) -> None:
    """Report that a test begins."""
    _write("test", node=nodeid)


def _limited(item: pytest.Item, when: str) -> Generator[None, object, object]:
    def ring(_number: int, _frame: object) -> None:
        if os.getpid() == _main:
            pytest.fail(f"time limit: the {when} of {item.nodeid} took longer than {_limit:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, _limit)
    try:
        result = yield
        vllm_series_guard.check_loaded()
        return result
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Run the fixtures within the time limit."""
    return (yield from _limited(item, "setup"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run the test within the time limit."""
    return (yield from _limited(item, "test"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Run the clean-up within the time limit."""
    return (yield from _limited(item, "teardown"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Report what became of a phase."""
    row: dict[str, object] = {
        "node": report.nodeid,
        "when": report.when,
        "outcome": report.outcome,
        "seconds": report.duration,
    }
    if hasattr(report, "wasxfail"):
        row["expected"] = report.wasxfail or "xfail"
    if report.failed:
        row["reason"], row["place"] = _reason(report.longrepr)
        row["text"] = _shorten(report.longreprtext)[-LONGEST:]
    elif report.skipped:
        row["reason"] = _skip_reason(report.longrepr)
    _write("phase", **row)


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Write down the living children."""
    pids: list[int] = []
    for children in pathlib.Path("/proc/self/task").glob("*/children"):
        pids += map(int, children.read_text().split())
    if pids:
        _write("children", node=nodeid, pids=pids)


def pytest_sessionfinish(exitstatus: int) -> None:
    """Report the end."""
    _write("finish", status=int(exitstatus))
