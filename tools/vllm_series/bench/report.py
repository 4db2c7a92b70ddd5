# SPDX-License-Identifier: Apache-2.0
"""Tables of one run, and of two runs side by side."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vllm_series.bench.result import Measurement, Result, Value
from vllm_series.output import plural

#: What each value is called, and in which unit; more is better where the last is true.
_NAMES: dict[tuple[str, str], tuple[str, str, bool]] = {
    ("prefill", "rate"): ("prefill", "tokens/s", True),
    ("prefill", "ttft"): ("time to first token", "s", False),
    ("decode", "rate"): ("generation per session", "tokens/s", True),
    ("decode", "rate_min"): ("generation, slowest session", "tokens/s", True),
    ("decode", "total"): ("generation, all sessions", "tokens/s", True),
    ("decode", "ttft"): ("time to first token, cached prefix", "s", False),
    ("decode", "cached"): ("share of the prompt from the cache", "", True),
    ("behind", "ttft_alone"): ("short prompt alone", "s", False),
    ("behind", "ttft"): ("short prompt behind a long one", "s", False),
    ("behind", "ttft_long"): ("the long one", "s", False),
    ("burst", "rate"): ("prefill of all at once", "tokens/s", True),
    ("burst", "ttft"): ("time to first token, median", "s", False),
    ("burst", "ttft_max"): ("time to first token, last", "s", False),
    ("needle", "found"): ("needle found", "", True),
    ("tier", "ttft_cold"): ("first token, cold", "s", False),
    ("tier", "ttft_hot"): ("first token, from the GPU's cache", "s", False),
    ("tier", "ttft_back"): ("first token, after being driven out", "s", False),
    ("tier", "same_hot"): ("same answer from the cache", "", True),
    ("tier", "same_back"): ("same answer after being driven out", "", True),
    ("check", "loops"): ("answers that repeat themselves", "", False),
    ("check", "not_finite"): ("numbers that are not finite", "", False),
}


@dataclass(frozen=True)
class Row:
    """A value over the runs of one measurement.

    Attributes:
        scenario: Its kind.
        params: What it was done with, without the run's number.
        key: Which value.
        values: One per run.

    """

    scenario: str
    params: tuple[tuple[str, Value], ...]
    key: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.values)

    @property
    def name(self) -> str:
        """As people call it."""
        return _NAMES[self.scenario, self.key][0]

    @property
    def unit(self) -> str:
        """Its unit."""
        return _NAMES[self.scenario, self.key][1]

    @property
    def more_is_better(self) -> bool:
        """The direction."""
        return _NAMES[self.scenario, self.key][2]

    @property
    def with_what(self) -> str:
        """The parameters in words."""
        words = {"context": "{} tokens", "users": "{} at once", "depth": "depth {}"}
        return ", ".join(words[key].format(value) for key, value in self.params)


def rows_of(result: Result) -> list[Row]:
    """The values of a run, in order."""
    found: dict[tuple[str, tuple[tuple[str, Value], ...], str], list[float]] = {}
    for made in result.measurements:
        if made.problem:
            continue
        params = tuple((k, v) for k, v in made.params.items() if k != "run")
        for key, value in made.values.items():
            if (made.scenario, key) in _NAMES:
                found.setdefault((made.scenario, params, key), []).append(float(value))
    return [Row(*key, tuple(values)) for key, values in found.items()]


def failures(result: Result) -> list[Measurement]:
    """Measurements whose requests failed."""
    return [made for made in result.measurements if made.problem]


def bad_answers(result: Result) -> list[str]:
    """Answers that a server in order does not give, in words."""
    found = []
    for made in result.measurements:
        values, where = made.values, _where(made)
        if values.get("loops"):
            found.append(f"{where}: {plural(int(values['loops']), 'answer')} without end, repeating itself")
        if values.get("not_finite"):
            found.append(f"{where}: numbers that are not finite")
        if values.get("found") is False:
            found.append(f"{where}: the needle was not found")
        if values.get("same_hot") is False:
            found.append(f"{where}: another answer with the prompt from the cache")
        if values.get("same_back") is False:
            found.append(f"{where}: another answer after the prompt was driven out of the cache")
    return found


def _where(made: Measurement) -> str:
    return " ".join([made.scenario, *(f"{key}={value}" for key, value in made.params.items())])


def markdown(result: Result) -> str:
    """The report of one run."""
    environment, settings = result.environment, result.settings
    lines = [f"# {environment['model']}", ""]
    if result.state != "complete":
        done = len(result.measurements)
        lines += [f"**{result.state} after {done} of {plural(result.planned, 'measurement')}.**", ""]
    lines += [
        "| measurement | with | median | lowest | highest | unit | runs |",
        "|---|---|---:|---:|---:|---|---:|",
    ]
    for row in rows_of(result):
        cells = (row.median, min(row.values), max(row.values))
        lines.append(
            f"| {row.name} | {row.with_what} | "
            + " | ".join(number(cell) for cell in cells)
            + f" | {row.unit} | {len(row.values)} |"
        )
    for title, texts in (
        ("Failed", [f"{_where(made)}: {made.problem}" for made in failures(result)]),
        ("Answers to look at", bad_answers(result)),
        ("Not tried", result.skipped),
    ):
        if texts:
            lines += ["", f"## {title}", "", *(f"- {text}" for text in texts)]
    lines += ["", "## How", ""]
    lines += [f"- {key}: {_plain(value)}" for key, value in {**environment, **settings}.items()]
    return "\n".join(lines) + "\n"


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(str, value)) or "none"
    return "not stated" if value is None else str(value)


def number(value: float) -> str:
    """Four significant digits, without an exponent; whole numbers as they are."""
    if value == int(value) or abs(value) >= 1000:
        return f"{value:.0f}"
    digits = max(0, 3 - int(f"{abs(value):e}".partition("e")[2]))
    return f"{value:.{digits}f}"


@dataclass(frozen=True)
class Pair:
    """The same value in two runs."""

    row: Row
    other: Row

    @property
    def ratio(self) -> float | None:
        """The second over the first."""
        return self.other.median / self.row.median if self.row.median else None

    @property
    def clear(self) -> bool:
        """Whether the two runs' values do not overlap; one value of each says nothing."""
        if min(len(self.row.values), len(self.other.values)) < 2:
            return False
        return max(self.row.values) < min(self.other.values) or min(self.row.values) > max(self.other.values)


def compare(first: Result, second: Result) -> tuple[list[Pair], list[str]]:
    """The values that both runs have, and what makes them hard to compare."""
    rows = {(r.scenario, r.params, r.key): r for r in rows_of(second)}
    pairs = [Pair(r, rows[key]) for r in rows_of(first) if (key := (r.scenario, r.params, r.key)) in rows]
    doubts = [
        f"{key} differs: {_plain(first.settings.get(key))} and {_plain(second.settings.get(key))}"
        for key in ("tokens", "seed", "burst", "evict", "form", "tokenizer")
        if first.settings.get(key) != second.settings.get(key)
    ]
    doubts += [
        f"the {name} run is not whole: {result.state}"
        for name, result in (("first", first), ("second", second))
        if result.state != "complete"
    ]
    return pairs, doubts
