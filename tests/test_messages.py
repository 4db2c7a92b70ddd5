# SPDX-License-Identifier: Apache-2.0
"""Names without numbers, and messages that a mailbox can carry."""

from __future__ import annotations

import pytest
from vllm_series.messages import name_of, stated_name, tidy, with_trailers


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("0001-Bugfix-Fix-the-thing", "bugfix-fix-the-thing"),
        ("v3-0012-fix", "fix"),
        ("[Bugfix][PP] Fix the `thing` (#1234)", "fix-the-thing"),
        ("10_quilt_name", "quilt_name"),
        ("naïve façade", "naive-facade"),
        ("修复", "patch"),
        ("....", "patch"),
        ("2024", "2024"),
        ("[Core] " + "very " * 20 + "long", "very-very-very-very-very-very-very-very-very"),
        ("x" * 80, "x" * 48),
        ("../../etc/passwd", "etc-passwd"),
    ],
)
def test_names(text, name):
    assert name_of(text) == name


def test_messages_that_a_mailbox_cannot_carry():
    body, notes = tidy("Text.\n\n---------\n\nMore.\ndiff --git a b\nFrom me\n--- x\nOk-by: A <a@b>")
    assert body == "Text.\n\nMore.\n diff --git a b\n From me\n --- x\nOk-by: A <a@b>"
    assert len(notes) == 4


def test_trailers():
    assert with_trailers("", [("A", "1")]) == "A: 1"
    assert with_trailers("Body.", [("A", "1")]) == "Body.\n\nA: 1"
    assert with_trailers("Body.\n\nB: 2\nA: 0", [("A", "1")]) == "Body.\n\nB: 2\nA: 1"
    assert with_trailers("Body.\n\nA: 0\nB: 2\na: 3", [("A", "1"), ("C", "4")]) == "Body.\n\nA: 1\nB: 2\nC: 4"
    assert with_trailers("Body: is\ntext", [("A", "1")]) == "Body: is\ntext\n\nA: 1"


def test_stated_names():
    assert stated_name("Body.\n\nPatch-Name: a-b\nOrigin: own") == "a-b"
    assert stated_name("Patch-Name: ../x") == stated_name("Body.") == ""
