# SPDX-License-Identifier: Apache-2.0
"""The board as one self-contained page: no script, nothing loaded from elsewhere, light and dark."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from vllm_series.board import GITHUB, Row
from vllm_series.freshness import State

_STYLE = Path(__file__).with_name("board.css")


def page(rows: Sequence[Row], base: str, looked: str) -> str:
    """The whole page.

    Args:
        rows: The patches.
        base: The release that the gates were run on.
        looked: The day on which upstream was looked at, empty for never.

    """
    return "\n".join(_page(rows, base, looked)) + "\n"


def tone(row: Row) -> str:
    """How a patch stands, as one of the page's colours."""
    if row.status.intent == "never" or row.status.state == "merged":
        return "calm"
    if row.status.intent == "hold" or (row.status.pr and row.status.state == "open"):
        return "wait"
    return "good" if row.ready else "bad"


def _page(rows: Sequence[Row], base: str, looked: str) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield "<title>Patches on their way to vLLM</title>"
    yield f"<style>\n{_STYLE.read_text('utf-8')}</style>\n</head>\n<body>"
    yield "<header>\n<h1>Patches on their way to vLLM</h1>"
    yield f"<p>Where each patch stands on {escape(base)}, and what to do next. Every gate is something that"
    yield "vLLM's reviewers ask for; a patch that none objects to can be exported and sent by a person.</p>"
    yield from _counts(rows)
    bar = "".join(f'<span class="{tone(row)}" title="{escape(row.name)}"></span>' for row in rows)
    yield f'<div class="bar" aria-hidden="true">{bar}</div>'
    families = next((list(row.gates) for row in rows if row.gates), [])
    if families:
        yield f'<p class="legend">Gates, from left to right: {", ".join(families)}.</p>'
    yield "</header>\n<main>"
    for row in rows:
        yield from _article(row)
    yield "</main>\n<footer>"
    when = f"Upstream was looked at on {escape(looked)}." if looked else "States as in status.toml."
    yield f'{when} <a href="{GITHUB}">vllm-project/vllm</a>.'
    yield "Written by <code>vllm-series board --html</code>."
    yield "</footer>\n</body>\n</html>"


def _counts(rows: Sequence[Row]) -> Iterator[str]:
    fresh = sum(any(s.state is State.FRESH for s in row.standings.values()) for row in rows)
    counts = {
        "patches": len(rows),
        "ready to be sent": sum(row.ready and tone(row) == "good" for row in rows),
        "sent and open": sum(bool(row.status.pr) and row.status.state == "open" for row in rows),
        "with fresh evidence": fresh,
        "findings": sum(len(row.findings) for row in rows),
    }
    cells = "".join(f"<div><dt>{what}</dt><dd>{count}</dd></div>" for what, count in counts.items())
    yield f'<dl class="counts">{cells}</dl>'


def _article(row: Row) -> Iterator[str]:
    yield f'<article id="{escape(row.name)}" class="{tone(row)}">\n<details>\n<summary>'
    what = row.status.summary or row.title
    yield f'<span><span class="name">{escape(row.name)}</span>'
    yield f'<span class="what">{_text(what)}</span></span>'
    yield f'<span class="where">{_tag("calm", row.upstream)}</span>'
    yield f'<ul class="gates" aria-label="gates">{"".join(_gates(row))}</ul>'
    yield f'<span class="next"><b>Next</b>{_text(row.next_step)}</span>\n</summary>\n<div class="more">'
    yield f"<h3>Title</h3>\n<p>{escape(row.title)}</p>" if row.title else ""
    yield "<h3>Evidence</h3>"
    yield f"<p>{''.join(_evidence(row))}</p>"
    if row.links:
        threads = "".join(
            f'<a class="tag calm" href="{link.url}">{escape(link.text)}</a>' for link in row.links
        )
        yield f"<h3>Threads</h3>\n<p>{threads}</p>"
    for title, text in (("How it differs", row.status.differs), ("Note", row.status.note)):
        if text:
            yield f"<h3>{title}</h3>\n<p>{_text(text)}</p>"
    if row.findings:
        yield "<h3>What stands in the way</h3>\n<ul>"
        for finding in row.findings:
            yield f"<li>{_tag('bad', finding.code)} {escape(finding.text)}"
            yield f'<span class="fix">{escape(finding.fix)}</span></li>'
        yield "</ul>"
    yield "</div>\n</details>\n</article>"


def _text(text: str) -> str:
    """Text with its code marked up."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))


def _tag(kind: str, text: str) -> str:
    return f'<span class="tag {kind}">{escape(text)}</span>'


def _gates(row: Row) -> Iterator[str]:
    for family, findings in row.gates.items():
        kind, mark = ("bad", str(len(findings))) if findings else ("good", "✓")
        said = ", ".join(dict.fromkeys(finding.code for finding in findings)) or "ok"
        label = escape(f"{family}: {said}")
        yield f'<li class="{kind}" title="{label}" aria-label="{label}">{mark}</li>'


def _evidence(row: Row) -> Iterator[str]:
    for ref, found in row.standings.items():
        bad = any(outcome != "passed" for outcome in found.outcomes.values())
        kinds = {State.FRESH: "bad" if bad else "good", State.STALE: "wait"}
        yield _tag(kinds.get(found.state, "calm"), f"{ref}: {found.text}")
