# SPDX-License-Identifier: Apache-2.0
"""``dropped.toml``: entries are added, and what people wrote stays."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm_series.dropped import Dropped, DroppedFile, parse_dropped
from vllm_series.errors import UsageError

ONE = Dropped(
    "one", 'upstream has it, says "Ada"\nin #1', date(2026, 1, 31), "v0.33.0", "[Core] One", "a" * 64
)


def test_entries_come_back():
    text = DroppedFile().added([ONE])
    assert parse_dropped(text).entries == (ONE,)
    two = Dropped("two", "not needed", date(2026, 2, 1), "v0.33.0", verdict="upstream-exact")
    again = parse_dropped(text).added([two, ONE])
    found = parse_dropped(again)
    assert found.entries == (ONE, two, ONE)
    assert found.of("one") == (ONE, ONE)
    assert again.startswith(text)
    assert "sha256" not in again.split("[[dropped]]")[2]


def test_comments_stay():
    text = "# What left.\n\n" + DroppedFile().added([ONE]).rstrip("\n") + "  # a note\n# the end\n\n\n"
    again = parse_dropped(text).added([ONE])
    assert again.startswith(text.rstrip("\n"))
    assert len(parse_dropped(again).entries) == 2


def test_nothing_added():
    assert DroppedFile().added([]) == ""
    assert parse_dropped("# only a comment\n").added([]) == "# only a comment\n"


words = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=40)


@given(st.lists(st.builds(Dropped, words, words, st.dates(), words, words), max_size=4))
def test_any_text_comes_back(entries):
    file = DroppedFile()
    for entry in entries:
        file = parse_dropped(file.added([entry]))
    assert list(file.entries) == entries


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = ", "dropped.toml"),
        ("x = 1", "unknown key 'x'"),
        ("dropped = 1", "no list of tables"),
        ("[[dropped]]\nname = 'a'\n", "entry 1 lacks reason"),
        ("[[dropped]]\nname='a'\nreason='b'\ndate='2026-01-01'\nbase='c'\n", "no date"),
        ("[[dropped]]\nname='a'\nreason='b'\ndate=2026-01-01T00:00:00\nbase='c'\n", "no date"),
        ("[[dropped]]\nname='a'\nreason=1\ndate=2026-01-01\nbase='c'\n", "reason is no text"),
        ("[[dropped]]\nname='a'\nreason='b'\ndate=2026-01-01\nbase='c'\nwhy='d'\n", "unknown key 'why'"),
        ("[[dropped]]\nname='a'\nreason='b'\ndate=2026-01-01\nbase='c'\nsha256='d'\n", "64 hex"),
    ],
)
def test_bad_files(text, words):
    with pytest.raises(UsageError) as error:
        parse_dropped(text)
    assert words in error.value.message
