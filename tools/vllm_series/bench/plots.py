# SPDX-License-Identifier: Apache-2.0
"""Plots of a run: rate by users, and by context."""

from __future__ import annotations

from pathlib import Path

from vllm_series.bench.report import Row, rows_of
from vllm_series.bench.result import Result
from vllm_series.errors import EnvironmentFaultError


def plot(result: Result, folder: Path) -> list[str]:
    """Write the plots as SVG and PNG; returns the names of the files.

    Raises:
        EnvironmentFaultError: The ``bench`` extra is not installed.

    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise EnvironmentFaultError(
            "the plots need the matplotlib package",
            hint="install it with: pip install 'vllm-ampere-multigpu[bench]'",
        ) from None
    rows = rows_of(result)
    generation = [row for row in rows if (row.scenario, row.key) == ("decode", "rate")]
    prefill = [row for row in rows if (row.scenario, row.key) == ("prefill", "rate")]
    charts = (
        ("rate-by-users", "sessions at once", "generated tokens per second and session", generation, "users"),
        (
            "rate-by-context",
            "context in tokens",
            "generated tokens per second and session",
            generation,
            "context",
        ),
        ("prefill-by-context", "prompt in tokens", "prompt tokens per second", prefill, "context"),
    )
    written = []
    for name, across, up, chosen, key in charts:
        if not chosen:
            continue
        figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
        for label, line in _lines(chosen, key):
            line.sort(key=lambda row: _param(row, key))
            middle = [row.median for row in line]
            below = [row.median - min(row.values) for row in line]
            above = [max(row.values) - row.median for row in line]
            axes.errorbar(
                [_param(row, key) for row in line],
                middle,
                yerr=[below, above],
                marker="o",
                capsize=3,
                label=label,
            )
        if key == "context":
            axes.set_xscale("log", base=2)
        axes.set_xticks(
            ticks := sorted({_param(row, key) for row in chosen}), [f"{tick:g}" for tick in ticks]
        )
        axes.minorticks_off()
        axes.set_xlabel(across)
        axes.set_ylabel(up)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.set_title(str(result.environment["model"]))
        if any(label for label, _ in _lines(chosen, key)):
            axes.legend()
        for suffix in ("svg", "png"):
            figure.savefig(folder / f"{name}.{suffix}", dpi=150)
            written.append(f"{name}.{suffix}")
        pyplot.close(figure)
    return written


def _param(row: Row, key: str) -> float:
    return float(dict(row.params)[key])


def _lines(rows: list[Row], key: str) -> list[tuple[str, list[Row]]]:
    """The rows as lines: one per value of the other parameter."""
    found: dict[str, list[Row]] = {}
    words = {"context": "{} tokens", "users": "{} at once"}
    for row in rows:
        label = ", ".join(words[name].format(value) for name, value in row.params if name != key)
        found.setdefault(label, []).append(row)
    return list(found.items())
