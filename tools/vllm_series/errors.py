# SPDX-License-Identifier: Apache-2.0
"""Errors that a user can meet, and the exit codes they stand for.

The core raises these and never prints; :mod:`vllm_series.cli.dispatch` turns them into one line and an
exit code, or into the ``error`` member of the JSON document.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_NO = 1
EXIT_USAGE = 2
EXIT_CONFLICT = 3
EXIT_PRECONDITION = 4
EXIT_ENVIRONMENT = 5
EXIT_SKIPPED = 6
EXIT_BUG = 70
EXIT_INTERRUPTED = 130


class SeriesError(Exception):
    """A fault with a known cause.

    Args:
        message: One line that names the thing.
        hint: What to do next, one line; empty if there is nothing to do.
        details: Values for the JSON document (plain JSON types).

    """

    exit_code = EXIT_BUG
    kind = "bug"

    def __init__(self, message: str, *, hint: str = "", **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details


class AnswerNoError(SeriesError):
    """The command ran correctly and the answer is no."""

    exit_code = EXIT_NO
    kind = "answer-no"


class UsageError(SeriesError):
    """The command line or a file that the user wrote cannot be understood."""

    exit_code = EXIT_USAGE
    kind = "usage"


class ConflictError(SeriesError):
    """A patch does not apply."""

    exit_code = EXIT_CONFLICT
    kind = "conflict"


class PreconditionError(SeriesError):
    """The state of a checkout or of the patch directory forbids the operation."""

    exit_code = EXIT_PRECONDITION
    kind = "precondition"


class EnvironmentFaultError(SeriesError):
    """Something outside is missing: network, disk space, git, objects of a shallow clone."""

    exit_code = EXIT_ENVIRONMENT
    kind = "environment"


class InterruptedRunError(SeriesError):
    """A signal has ended a run whose work so far is kept; without it, what was done is taken back."""

    exit_code = EXIT_INTERRUPTED
    kind = "interrupted"
