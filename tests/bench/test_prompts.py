# SPDX-License-Identifier: Apache-2.0
"""Prompts have exactly the tokens that were asked for, and are the same for the same seed."""

from __future__ import annotations

import pytest
from vllm_series.bench.prompts import Writer
from vllm_series.errors import UsageError


@pytest.mark.parametrize("count", [1, 63, 64, 1000, 5000])
def test_exact_length_and_text(tokenizer, count):
    writer = Writer(tokenizer, 0)
    prompt = writer.filler("x", count)
    assert len(prompt.ids) == count
    assert tuple(writer.encode(prompt.text)) == prompt.ids


def test_seed_and_name_decide(tokenizer):
    one, again, other = Writer(tokenizer, 0), Writer(tokenizer / "tokenizer.json", 0), Writer(tokenizer, 1)
    assert one.filler("a", 500) == again.filler("a", 500)
    assert one.filler("a", 500) != other.filler("a", 500)
    # Another prompt differs from its first tokens on: no server finds its beginning in a cache.
    assert one.filler("a", 500).ids[:16] != one.filler("b", 500).ids[:16]


@pytest.mark.parametrize("depth", [0.0, 0.5, 1.0])
def test_the_needle_lies_at_its_depth(tokenizer, depth):
    prompt, secret = Writer(tokenizer, 0).needle("n", 2000, depth)
    assert len(prompt.ids) == 2000
    assert prompt.text.count(secret) == 1
    assert abs(prompt.text.index(secret) / 2000 - depth) < 0.12
    assert prompt.text.endswith("Answer:")


def test_no_room_and_no_tokenizer(tokenizer, tmp_path):
    writer = Writer(tokenizer, 0)
    assert not writer.has_room_for_needle(100)
    assert writer.has_room_for_needle(256)
    with pytest.raises(UsageError, match="more than 100"):
        Writer(tokenizer, 0).needle("n", 100, 0.5)
    with pytest.raises(UsageError, match="tokenizer"):
        Writer(tmp_path, 0)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match="cannot be read as a tokenizer"):
        Writer(tmp_path, 0)
