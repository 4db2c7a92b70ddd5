# SPDX-License-Identifier: Apache-2.0
"""What was measured, as kept in ``result.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vllm_series.errors import UsageError

SCHEMA = 1
FILE = "result.json"

Value = float | int | bool | str


@dataclass(frozen=True)
class Sample:
    """One request and its answer.

    Attributes:
        prompt_tokens: Tokens sent.
        completion_tokens: Tokens that came back.
        start: When it was sent, in seconds on the clock of the run.
        ttft: Seconds from sending to the first token, None if none came.
        seconds: Seconds from sending to the end.
        rate: Tokens after the first piece per second, None if they came in too few pieces to time.
        cached: Prompt tokens that the server took from its cache, None if it does not say.
        text: The answer.
        problem: What went wrong, empty if nothing did.
        retries: How often the server asked to come again (429, 503) before it took the request.
        ids: The answer's token ids, as far as the server states them; not kept.

    """

    prompt_tokens: int
    completion_tokens: int = 0
    start: float = 0.0
    ttft: float | None = None
    seconds: float = 0.0
    rate: float | None = None
    cached: int | None = None
    text: str = ""
    problem: str = ""
    retries: int = 0
    ids: tuple[int, ...] = ()

    def row(self) -> dict[str, object]:
        """As JSON."""
        row = asdict(self)
        del row["ids"]
        return row


@dataclass(frozen=True)
class Measurement:
    """One step of a run.

    Attributes:
        scenario: What kind.
        params: What it was done with: context, users, run and so on.
        values: What came out.
        samples: The requests.
        problem: Why the values are not usable, empty if they are.

    """

    scenario: str
    params: Mapping[str, Value]
    values: Mapping[str, Value] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    problem: str = ""

    def row(self) -> dict[str, object]:
        """As JSON."""
        return {
            "scenario": self.scenario,
            "params": dict(self.params),
            "values": dict(self.values),
            "problem": self.problem,
            "samples": [sample.row() for sample in self.samples],
        }


@dataclass
class Result:
    """A run.

    Attributes:
        settings: How it was done.
        environment: On what.
        planned: How many measurements it was to have.
        state: running, complete, interrupted (by a person) or stopped (the server went away).
        measurements: What there is.
        skipped: What was not tried, and why.

    """

    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    planned: int = 0
    state: str = "running"
    measurements: list[Measurement] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def document(self) -> dict[str, object]:
        """As JSON."""
        return {
            "schema": SCHEMA,
            "state": self.state,
            "settings": dict(self.settings),
            "environment": dict(self.environment),
            "planned": self.planned,
            "skipped": self.skipped,
            "measurements": [m.row() for m in self.measurements],
        }


def read_result(path: Path) -> Result:
    """Read a run: its folder or its ``result.json``.

    Raises:
        UsageError: It is none.

    """
    file = path / FILE if path.is_dir() else path
    try:
        row = json.loads(file.read_bytes())
        if row["schema"] != SCHEMA:
            raise UsageError(f"{file} has the form {row['schema']}, and this version reads {SCHEMA}")
        measurements = [
            Measurement(
                m["scenario"],
                m["params"],
                m["values"],
                tuple(Sample(**sample) for sample in m["samples"]),
                m["problem"],
            )
            for m in row["measurements"]
        ]
        return Result(
            row["settings"], row["environment"], row["planned"], row["state"], measurements, row["skipped"]
        )
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}", hint="name a folder that `bench` has written") from None
    except (ValueError, KeyError, TypeError):
        raise UsageError(
            f"{file} is no result of vllm-series bench", hint="name a folder that `bench` has written"
        ) from None
