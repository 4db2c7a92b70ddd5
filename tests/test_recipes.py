# SPDX-License-Identifier: Apache-2.0
"""What the verbs make of the patches of one base, which need not have all of the series."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from vllm_series.bases import Base
from vllm_series.patchfile import Patch, parse_patch
from vllm_series.recipes import credited, folded, inserted, needing, ordered

BASE = Base("v0.33.0", "0.33.0", "", "")


def patch(name: str, body: str = "", author: str = "Ada <ada@x>") -> Patch:
    text = (
        f"From {'0' * 40} Mon Sep 17 00:00:00 2001\nFrom: {author}\n"
        f"Date: Tue, 14 Nov 2023 23:13:20 +0100\nSubject: [PATCH] {name}\n\n{body}Patch-Name: {name}\n\n"
        f"diff --git a/{name} b/{name}\n--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n-a\n+b\n"
    )
    return parse_patch(text.encode(), Path(f"{name}.patch"), name)


def names(items) -> list[str]:
    return [item.patch.name for item in items]


def test_the_place_counts_in_the_series_and_not_on_the_base():
    """The patch that the new one stands before has no file for this base."""
    series = ("one", "new", "elsewhere", "two")
    assert names(inserted([patch("new")], series)(BASE, [patch("one"), patch("two")])) == [
        "one",
        "new",
        "two",
    ]
    assert names(ordered(("two", "elsewhere", "one"))(BASE, [patch("one"), patch("two")])) == ["two", "one"]


def test_what_is_folded_is_credited_and_needed_no_more():
    one = patch("one")
    two = patch("two", "Depends-on: one\nDepends-on: zero\n", "Bob <bob@x>")
    three = patch("three", "Depends-on: two\n")
    items = folded(["two"], "one")(BASE, [patch("zero"), one, two, three])
    assert names(items) == ["zero", "one", "three"]
    assert items[1].parts == (one.changes, two.changes)
    assert items[1].patch.trailers == (
        ("Patch-Name", "one"), ("Co-authored-by", "Bob <bob@x>"), ("Depends-on", "zero"),
    )  # fmt: skip
    assert items[2].patch.depends_on == ("one",)


def test_nobody_is_credited_twice():
    bob = [patch("two", author="Bob <bob@x>"), patch("three", author="Bob <bob@x>"), patch("four")]
    once = credited(patch("one"), bob)
    assert once.trailer("Co-authored-by") == ("Bob <bob@x>",)
    assert credited(once, bob) is once


@pytest.mark.parametrize("needs", [[], ["a"], ["b", "b", "c"]])
def test_needs(needs):
    found = needing(patch("one", "Depends-on: a\n"), needs)
    assert found.depends_on == tuple(dict.fromkeys(needs))
    assert replace(found, body="") == replace(patch("one"), body="", raw=found.raw)
