# SPDX-License-Identifier: Apache-2.0
"""``dropped.toml`` keeps what people wrote in it."""

from __future__ import annotations

import pytest
from vllm_series.dropped import Dropped, parse_dropped, with_dropped
from vllm_series.errors import UsageError

ROW = Dropped("a", "v0.33.0", "2026-11-30", "retired", 'it says "no"\n\\ [x] naïve')


def test_entries_are_added_at_the_end():
    text = with_dropped("", [ROW])
    assert parse_dropped(text) == (ROW,)
    edited = text + "# by hand\n"
    other = Dropped("b", "v0.34.0", "2027-01-01", "conflict", "")
    assert with_dropped(edited, [other]).startswith(edited)
    assert parse_dropped(with_dropped(edited, [other])) == (ROW, other)
    assert with_dropped(edited, []) == edited


@pytest.mark.parametrize(
    "text",
    ["[", "[[dropped]]\nname = 'a'\n", with_dropped("", [ROW]).replace('"v0.33.0"', "3"), "dropped = 1"],
)
def test_other_files(text):
    with pytest.raises(UsageError):
        parse_dropped(text)
