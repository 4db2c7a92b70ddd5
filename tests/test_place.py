# SPDX-License-Identifier: Apache-2.0
"""Placing hunks is what ``git apply`` does: the same bytes, or the same refusal."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from series_support import clean_env
from vllm_series.diff import Hunk, Line, parse_diff
from vllm_series.place import place, split_lines

#: Few different lines, so that a hunk often matches in several places.
LINES = st.lists(st.sampled_from([b"a", b"b", b"", b"  x", b"d\r", b"\xff\x00"[:1]]), max_size=14)
CONTENT = st.builds(
    lambda lines, newline: b"\n".join(lines) + (b"\n" if lines and newline else b""), LINES, st.booleans()
)
EDITS = st.lists(
    st.tuples(st.integers(0, 14), st.sampled_from([None, b"a", b"b", b"new", b"d\r"])), max_size=4
)


def edited(content: bytes, edits: list[tuple[int, bytes | None]]) -> bytes:
    """Insert lines, or remove one (None)."""
    lines = split_lines(content)
    for at, line in edits:
        at = min(at, len(lines))
        if line is None:
            del lines[at : at + 1]
        else:
            lines.insert(at, line + b"\n")
    return b"".join(lines)


def diff_of(folder: Path, old: bytes, new: bytes, context: int = 3) -> bytes:
    (folder / "old").write_bytes(old)
    (folder / "new").write_bytes(new)
    out = subprocess.run(
        ["git", "diff", "--no-index", "--text", "--full-index", f"-U{context}", "--no-color", "old", "new"],
        cwd=folder, capture_output=True, env=clean_env(), check=False,
    ).stdout  # fmt: skip
    _head, _, body = out.partition(b"\n@@ ")
    return b"diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ " + body if body else b""


def git_apply(folder: Path, target: bytes, diff: bytes, *options: str) -> bytes | None:
    (folder / "f").write_bytes(target)
    done = subprocess.run(
        ["git", "apply", "--whitespace=nowarn", *options, "-"],
        cwd=folder, input=diff, capture_output=True, env=clean_env(), check=False,
    )  # fmt: skip
    return (folder / "f").read_bytes() if done.returncode == 0 else None


def ours(target: bytes, diff: bytes, reverse: bool = False) -> bytes | None:
    change = parse_diff(diff.decode("utf-8", "surrogateescape"))[0]
    content, landings = place(target, (change.reversed() if reverse else change).hunks)
    return None if None in landings else content


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # No repository is above a temporary folder: there `git apply` would skip the file in silence.
    return tmp_path_factory.mktemp("place")


@settings(max_examples=150)
@given(old=CONTENT, first=EDITS, drift=EDITS, reverse=st.booleans(), context=st.sampled_from([3, 3, 1]))
@example(old=b"", first=[(0, b"a")], drift=[], reverse=False, context=3)
@example(old=b"a\n", first=[(0, None)], drift=[], reverse=True, context=3)
@example(old=b"a\nb", first=[(1, b"new")], drift=[], reverse=False, context=3)
@example(old=b"a\nb\na\nb\n", first=[(0, b"new")], drift=[(0, b"b")], reverse=False, context=3)
def test_same_as_git_apply(folder, old, first, drift, reverse, context):
    new = edited(old, first)
    diff = diff_of(folder, old, new, context)
    if not diff:
        return
    target = edited(new if reverse else old, drift)
    expected = git_apply(folder, target, diff, *(["-R"] if reverse else []))
    found = ours(target, diff, reverse)
    ends = target.count(b"\n") + (new.count(b"\n") - old.count(b"\n")) * (-1 if reverse else 1)
    if expected is not None and expected.count(b"\n") != ends:
        # git takes a last line without a line feed for the beginning of any line, and joins two lines.
        assert found is None or found.count(b"\n") == ends
        return
    assert found == expected


def test_a_last_line_without_line_feed_is_not_joined_with_the_next(folder):
    diff = diff_of(folder, b"b", b"a\nb")
    assert git_apply(folder, b"b\nx\n", diff) == b"a\nbx\n"
    assert ours(b"b\nx\n", diff) is None


@settings(max_examples=60)
@given(old=CONTENT, edits=EDITS)
def test_a_change_and_its_reverse_cancel(folder, old, edits):
    new = edited(old, edits)
    diff = diff_of(folder, old, new)
    if diff:
        assert ours(old, diff) == new
        assert ours(new, diff, reverse=True) == old


@given(CONTENT)
def test_lines_join_to_what_was_split(content):
    assert b"".join(split_lines(content)) == content


def hunk(at: int, *rows: str) -> Hunk:
    return Hunk(at, at, tuple(Line(r[0], r[1:].encode() + b"\n") for r in rows), "")


def test_the_nearest_place_wins_and_forwards_first():
    block = b"x\ny\nz\n"
    target = block + b"-\n" * 3 + block + b"-\n" * 3 + block
    _, landings = place(target, [hunk(7, " x", "-y", "+Y", " z")])
    assert (landings[0].line, landings[0].offset) == (7, 0)
    # From line 10 on, one place is three lines behind and one is three lines ahead.
    _, landings = place(target, [hunk(10, " x", "-y", "+Y", " z")])
    assert landings[0].line == 13


def test_hunks_that_fit_stand_when_another_does_not():
    content, landings = place(b"a\nb\nc\nd\ne\n", [hunk(2, " b", "+B", " c"), hunk(4, " q", "+Q", " e")])
    assert content == b"a\nb\nB\nc\nd\ne\n"
    assert landings[0] is not None
    assert landings[1] is None
