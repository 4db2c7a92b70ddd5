# SPDX-License-Identifier: Apache-2.0
"""The board as values, as the README's table, and as a page in a real browser."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from vllm_series.board import BEGIN, END, Row, gates_text, links_of, markdown
from vllm_series.boardpage import page, tone
from vllm_series.commands.board import project_rows
from vllm_series.evidence import Binding, Evidence
from vllm_series.freshness import Standing, State
from vllm_series.gates import FAMILIES
from vllm_series.gates.subject import Finding
from vllm_series.project import Project
from vllm_series.statusfile import Status
from vllm_series.upstreamfacts import Facts, Thread

ROOT = Path(__file__).resolve().parents[1]
OK = dict.fromkeys(FAMILIES, ())
SIZE = Finding("size", "too <long> & wide", "split it")
AUTHOR = Finding("author", "nobody", "--reset-author")
BAD = {**OK, "message": (AUTHOR,), "size": (SIZE,)}
FRESH = Standing(
    State.FRESH, "", Evidence(Binding("a", "aa", "v0.33.0", "bb"), {"cpu": {"outcome": "passed"}})
)
STALE = Standing(State.STALE, "the patch has changed")


def row(status: Status | None = None, **values: object) -> Row:
    return replace(Row("fix", "[Bugfix] Fix", status or Status(), {"v0.33.0": FRESH}, OK), **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("made", "upstream", "following", "colour"),
    [
        (row(), "to be sent", "vllm-series export fix", "good"),
        (row(gates=BAD), "to be sent", "size: split it", "bad"),
        (
            row(gates={**OK, "message": (AUTHOR,)}),
            "to be sent",
            "vllm-series export fix --reset-author",
            "bad",
        ),
        (row(Status(intent="never")), "not for upstream", "nothing; it leaves", "calm"),
        (row(Status(intent="hold", note="Measure.")), "held back", "held back: Measure.", "wait"),
        (row(Status(pr=5, state="open")), "sent, open", "answer the reviews of #5", "wait"),
        (row(Status(pr=5, state="closed")), "sent, closed", "read why #5 was closed", "good"),
        (row(Status(pr=5, state="merged")), "sent, merged", "take it off", "calm"),
        (row(Status(prs=(5,), state="open")), "others have one open", "vllm-series export fix", "good"),
        (row(Status(prs=(5,), state="merged")), "solved by others", "take it off", "calm"),
    ],
)
def test_where_a_patch_stands_and_what_comes_next(made, upstream, following, colour):
    assert made.upstream == upstream
    assert made.next_step.startswith(following)
    assert tone(made) == colour


def test_gates_in_short():
    assert gates_text(row()) == "ok"
    assert gates_text(row(gates=BAD)) == "author, size"
    assert gates_text(row(gates={})) == "-"


def test_threads_with_what_was_found_of_them():
    facts = Facts(
        "2026-11-30", {5: Thread("open", "Ours"), 6: Thread("merged", "Theirs")}, {7: Thread("closed")}
    )
    found = links_of(Status(pr=5, prs=(6, 5), issues=(7, 8)), facts)
    assert [link.text for link in found] == [
        "our PR #5 open",
        "PR #6 merged",
        "issue #7 closed",
        "issue #8",
    ]
    assert [link.url.rpartition("vllm/")[2] for link in found] == ["pull/5", "pull/6", "issues/7", "issues/8"]


def test_markdown_cells_cannot_break_the_table():
    text = markdown([row(Status(summary="a | b", prs=(5,)), links=links_of(Status(prs=(5,)), Facts()))])
    assert text.splitlines()[3] == (
        "| `fix` | a \\| b | - | to be sent; see [#5](https://github.com/vllm-project/vllm/pull/5) |"
    )


def test_the_readme_has_the_table():
    """If this fails: put the output of ``vllm-series board --markdown`` between the README's marks."""
    readme = (ROOT / "README.md").read_text()
    assert readme.count(BEGIN) == readme.count(END) == 1
    start, end = readme.index(BEGIN), readme.index(END) + len(END) + 1
    assert readme[start:end] == markdown(project_rows(Project(ROOT)))


# -- the page ----------------------------------------------------------------------------------------------


def rows() -> list[Row]:
    facts = Facts("2026-11-30", {5: Thread("open", "x")})
    made = [
        row(),
        row(Status(intent="hold", note="<b>not bold</b>"), name="held", standings={"v0.33.0": STALE}),
        row(Status(intent="never"), name="never", gates={}, standings={}),
        row(Status(pr=5, state="open", summary="with `code <x>`"), name="sent"),
    ]
    made += [row(gates=BAD, name=f"patch-with-a-rather-long-name-{n}") for n in range(4)]
    return [replace(one, links=links_of(one.status, facts)) for one in made]


class Strict(HTMLParser):
    """Counts tags; complains about what is not closed in order."""

    VOID = ("meta",)

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        assert len({key for key, _ in attrs}) == len(attrs), (tag, attrs)
        assert not {"src", "style", "onclick"}.intersection(dict(attrs)), (tag, attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_page_is_well_formed_and_loads_nothing():
    text = page(rows(), "v0.33.0", "2026-11-30")
    parser = Strict()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    assert parser.tags.count("article") == len(rows())
    assert {"script", "img", "link", "iframe", "b"}.isdisjoint({*parser.tags} - {"b"})
    assert not re.search(r"@import|url\(", text)
    assert "<b>not bold</b>" in parser.text
    assert "too <long> & wide" in parser.text
    assert "code <x>" in parser.text


CHROMIUM = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
#: Appended to a copy of the page: says in the title what only a browser knows.
PROBE = (
    "<script>const wide = document.documentElement.scrollWidth - innerWidth;"
    "for (const d of document.querySelectorAll('details')) d.open = true;"
    "const gate = getComputedStyle(document.querySelector('.gates .bad')).backgroundColor;"
    "const opened = document.documentElement.scrollWidth - innerWidth;"
    "const seen = [...document.querySelectorAll('.fix')].every(e => e.getBoundingClientRect().height > 0);"
    "document.title = [wide <= 0, opened <= 0, seen, gate].join('|')</script>"
)


def browse(folder: Path, *options: str) -> str:
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}", *options, (folder / "board.html").as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, check=True, timeout=120, cwd=folder)
    return done.stdout.decode()


@pytest.mark.skipif(CHROMIUM is None, reason="no browser on this machine")
@pytest.mark.parametrize("width", [1280, 500])
def test_a_browser_shows_it(tmp_path, width):
    text = page(rows(), "v0.33.0", "2026-11-30")
    (tmp_path / "board.html").write_text(text.replace("</body>", PROBE + "</body>"))
    dom = browse(tmp_path, f"--window-size={width},1000", "--dump-dom")
    found = re.search(r"<title>(.*?)</title>", dom)
    assert found is not None
    assert found[1] == "true|true|true|rgb(179, 56, 44)"


@pytest.mark.skipif(CHROMIUM is None, reason="no browser on this machine")
def test_light_and_dark_are_two_pictures(tmp_path):
    (tmp_path / "board.html").write_text(page(rows(), "v0.33.0", ""))
    corners = []
    for name, options in (("light", ()), ("dark", ("--blink-settings=preferredColorScheme=0",))):
        target = tmp_path / f"{name}.png"
        browse(tmp_path, "--window-size=800,600", f"--screenshot={target}", *options)
        corners.append(first_pixel(target.read_bytes()))
    assert corners[0] == (0xF6, 0xF5, 0xF1)
    assert corners[1] == (0x14, 0x16, 0x1A)


def first_pixel(png: bytes) -> tuple[int, ...]:
    """The upper left pixel of a PNG of 8 bits per channel; the first row's filter leaves it as it is."""
    data, position = b"", 8
    while position < len(png):
        (size,) = struct.unpack(">I", png[position : position + 4])
        if png[position + 4 : position + 8] == b"IDAT":
            data += png[position + 8 : position + 8 + size]
        position += size + 12
    return tuple(zlib.decompress(data)[1:4])
