# SPDX-License-Identifier: Apache-2.0
"""``status.toml``: read strictly, written with everything else left alone."""

from __future__ import annotations

import pytest
from vllm_series.errors import UsageError
from vllm_series.statusfile import Retire, Status, parse_status

TEXT = """# Facts.

[a]  # the first
intent = "hold"
issues = [1, 2]   # numbers

[b]
retire = { path = "x.py", pattern = "^def solved" }
"""


def test_values_and_defaults():
    found = parse_status(TEXT)
    assert found.of("a") == Status(intent="hold", issues=(1, 2))
    assert found.of("b").retire == Retire("x.py", "^def solved")
    assert found.of("unknown") == Status()


def test_edits_leave_the_rest():
    found = parse_status(TEXT)
    assert found.edited("a", state="open") == TEXT.replace("numbers\n", 'numbers\nstate = "open"\n')
    assert parse_status(found.edited("c", intent="never")).of("c").intent == "never"
    assert parse_status(found.removed("b")).of("b").retire is None
    assert found.removed("nothing") == TEXT


def test_conditions():
    retire = Retire("x.py", "^def solved")
    assert retire.holds(b"a\ndef solved():\n")
    assert not retire.holds(b"# def solved\n")
    assert not retire.holds(None)
    assert Retire("x", "caf").holds(b"caf\xe9")


@pytest.mark.parametrize(
    "text",
    [
        "a = 1",
        "[a]\nintent = 3",
        "[a]\nintent = []",
        "[a]\nissues = 5",
        "[a]\nissues = ['x']",
        "[a]\nprs = [true]",
        "[a]\nretire = 'x'",
        "[a]\nretire = { path = 'x' }",
        "[a]\nretire = { path = 1, pattern = 2 }",
        "[a]\nretire = { path = 'x', pattern = '(' }",
        "[a]\nnote = 4",
        "[a]\nother = 1",
        "[a",
        "[a]\nstate = 'maybe'",
    ],
)
def test_bad_files_are_named(text):
    with pytest.raises(UsageError, match=r"status\.toml"):
        parse_status(text)
