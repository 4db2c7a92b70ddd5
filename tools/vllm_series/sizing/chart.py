# SPDX-License-Identifier: Apache-2.0
"""What fills each card, as stacked bars: for a terminal, as SVG, and through matplotlib as PNG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from vllm_series.errors import EnvironmentFaultError, UsageError
from vllm_series.sizing.layout import Layout
from vllm_series.sizing.units import GIB

#: Parts in the order of a bar: name, letter where there is no colour, colour.
PARTS = (
    ("layers", "w", "#4c78a8"),
    ("embedding", "e", "#72b7b2"),
    ("vision", "v", "#b279a2"),
    ("head", "h", "#9ecae9"),
    ("MTP head", "m", "#d67195"),
    ("reserve", "r", "#f58518"),
    ("KV cache", "K", "#54a24b"),
    ("free", ".", "#bab0ac"),
    ("not used", " ", "#eeeeee"),
)


@dataclass(frozen=True)
class Bar:
    """A card: a name, and bytes by part; what does not fit makes it longer than ``total``."""

    name: str
    parts: dict[str, int]
    total: int


def bars(layout: Layout) -> list[Bar]:
    """One bar per card, in the order of the stages."""
    return [
        Bar(f"card {card} (stage {number})", _parts(layout, number, card), layout.request.cards[card].usable)
        for number, stage in enumerate(layout.stages)
        for card in stage.cards
    ]


def _parts(layout: Layout, number: int, card: int) -> dict[str, int]:
    stage = layout.stages[number]
    cache = layout.blocks * stage.block
    used = stage.weight_bytes + stage.reserve + cache
    return {
        **stage.weights,
        "reserve": stage.reserve,
        "KV cache": cache,
        "free": max(stage.budget - used, 0),
        "not used": layout.request.cards[card].usable - max(stage.budget, used),
    }


def cells(bar: Bar, longest: int, width: int) -> Iterator[tuple[str, int]]:
    """The parts of a bar with their lengths in characters, of ``width`` for ``longest`` bytes."""
    drawn = 0
    reached = 0
    for name, _, _ in PARTS:
        reached += max(bar.parts.get(name, 0), 0)
        end = round(reached * width / longest)
        if end > drawn:
            yield name, end - drawn
        drawn = max(drawn, end)


def longest(found: Sequence[Bar]) -> int:
    """The length that all bars are drawn to: the largest card, or what does not fit on it."""
    return max(max(bar.total, sum(size for size in bar.parts.values() if size > 0)) for bar in found)


def svg(found: Sequence[Bar], title: str) -> str:
    """The bars as SVG; the line across a bar is the end of its card."""
    left, width, height, gap, top = 150, 640, 22, 10, 40
    scale = width / longest(found)
    lines = []
    for row, bar in enumerate(found):
        y = top + row * (height + gap)
        x = float(left)
        lines.append(f'<text x="{left - 8}" y="{y + 15}" text-anchor="end">{escape(bar.name)}</text>')
        for name, _, colour in PARTS:
            size = max(bar.parts.get(name, 0), 0)
            if size:
                lines.append(
                    f'<rect x="{x:.1f}" y="{y}" width="{size * scale:.1f}" height="{height}" fill="{colour}">'
                    f"<title>{name}: {size / GIB:.2f} GiB</title></rect>"
                )
            x += size * scale
        end = left + bar.total * scale
        lines.append(f'<path d="M{end:.1f} {y - 3}v{height + 6}" stroke="black"/>')
    legend = top + len(found) * (height + gap) + 12
    used = [part for part in PARTS if any(bar.parts.get(part[0], 0) > 0 for bar in found)]
    for column, (name, _, colour) in enumerate(used):
        x = left + column * 82
        lines.append(f'<rect x="{x}" y="{legend}" width="12" height="12" fill="{colour}" stroke="#888"/>')
        lines.append(f'<text x="{x + 16}" y="{legend + 10}">{name}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 80}" height="{legend + 24}" '
        'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="white"/>\n'
        f'<text x="{left}" y="22" font-size="14">{escape(title)}</text>\n' + "\n".join(lines) + "\n</svg>\n"
    )


def write_plot(path: Path, found: Sequence[Bar], title: str) -> None:
    """Write the bars to a file, by its suffix.

    Raises:
        UsageError: The suffix is neither ``.svg`` nor ``.png``.
        EnvironmentFaultError: matplotlib is missing, for PNG.

    """
    kind = path.suffix.lower()
    if kind not in (".svg", ".png"):
        raise UsageError(f"--plot {path} must end in .svg or .png")
    if not path.parent.is_dir():
        raise UsageError(f"--plot {path}: there is no folder {path.parent}", hint="make it first")
    unfinished = path.with_name(f".{path.name}.new{kind}")
    try:
        if kind == ".svg":
            unfinished.write_text(svg(found, title), encoding="utf-8")
        else:
            _png(unfinished, found, title)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _png(path: Path, found: Sequence[Bar], title: str) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise EnvironmentFaultError(
            "PNG needs matplotlib, which is missing",
            hint="pip install 'vllm-ampere-multigpu[plot]', or name a file that ends in .svg",
        ) from None
    figure = Figure(figsize=(9, 1.2 + 0.35 * len(found)), layout="constrained")
    axes = figure.add_subplot()
    names = [bar.name for bar in found]
    reached = [0.0] * len(found)
    for name, _, colour in PARTS:
        sizes = [max(bar.parts.get(name, 0), 0) / GIB for bar in found]
        if any(sizes):
            axes.barh(names, sizes, left=reached, color=colour, label=name)
        reached = [a + b for a, b in zip(reached, sizes, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("GiB")
    axes.set_title(title)
    axes.legend(ncols=5, loc="upper center", bbox_to_anchor=(0.5, -0.18), frameon=False)
    figure.savefig(path, dpi=150)
