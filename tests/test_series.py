# SPDX-License-Identifier: Apache-2.0
"""The series file: quilt's syntax, kept byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm_series.errors import UsageError
from vllm_series.series import parse_series

NAME = st.from_regex(r"[a-z0-9][a-z0-9._+-]{0,8}", fullmatch=True)
NOISE = st.sampled_from(["", "# a comment", "  # indented", "   "])


@given(
    st.lists(st.one_of(NAME, NOISE), unique_by=lambda x: x if x.strip() and "#" not in x else object()),
    st.booleans(),
)
def test_text_round_trips(rows, newline):
    names = [r for r in rows if r.strip() and "#" not in r]
    lines = [f"{r}.patch" if r in names else r for r in rows]
    text = "\n".join(lines) + ("\n" if newline and lines else "")
    series = parse_series(text)
    assert series.names == tuple(names)
    assert series.render() == text


@given(st.lists(NAME, unique=True, min_size=1), NAME, st.data())
def test_inserting_and_taking_out_cancel(names, new, data):
    if new in names:
        return
    series = parse_series("# head\n" + "".join(f"{n}.patch  # why\n" for n in names))
    before = data.draw(st.sampled_from([None, *names]))
    grown = series.inserted(new, before)
    at = len(names) if before is None else names.index(before)
    assert grown.names == (*names[:at], new, *names[at:])
    assert grown.without(new).render() == series.render()
    assert parse_series(grown.render()) == grown


def test_comments_behind_a_name():
    series = parse_series("a.patch # because\n\n#b.patch\nc#d.patch\n".replace("c#d", "c+d"))
    assert series.names == ("a", "c+d")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a.patch\nb\n", 2),
        ("a.patch -p1\n", 1),
        ("sub/a.patch\n", 1),
        ("../a.patch\n", 1),
        ("A.patch\n", 1),
        ("a.patch\n#\na.patch\n", 3),
        (".patch\n", 1),
        ("a b.patch\n", 1),
    ],
)
def test_bad_lines_are_named(text, line):
    with pytest.raises(UsageError, match=rf"series:{line}: "):
        parse_series(text)


def test_crlf():
    with pytest.raises(UsageError, match="CRLF"):
        parse_series("a.patch\r\n")


def test_empty():
    assert parse_series("").names == ()
    assert parse_series("").render() == ""
