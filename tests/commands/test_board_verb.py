# SPDX-License-Identifier: Apache-2.0
"""``vllm-series board`` on a project."""

from __future__ import annotations

import pytest
from vllm_series.board import BEGIN, END
from vllm_series.gates import FAMILIES


def test_people_get_a_table(cli):
    result = cli("board")
    assert result.code == 0, result
    assert result.out.splitlines()[0].split() == [
        "patch", "upstream", "threads", "intent", "gates", "evidence",
    ]  # fmt: skip
    table, _, steps = result.out.partition("\nnext:\n")
    names = [line.split()[0] for line in table.splitlines()[1:]]
    assert [line.strip().partition(": ")[0] for line in steps.splitlines()] == names


def test_programs_get_every_finding(cli):
    document = cli("board", "--json").document
    row = document["patches"][0]
    assert row["name"] == "engine-fix"
    assert list(row["gates"]) == list(FAMILIES)
    assert {"code", "text", "fix"} == set(row["gates"]["proof"][0])
    assert row["evidence"]["v0.33.0"]["state"] == "none"


def test_the_page_is_one_file(cli, tmp_path):
    target = tmp_path / "board.html"
    result = cli("board", "--html", target)
    assert result.code == 0, result
    text = target.read_text()
    assert text.startswith("<!doctype html>")
    assert text.count("<article") == 4


def test_markdown_needs_no_release(cli, tmp_path):
    result = cli("board", "--markdown", VLLM_SERIES_CACHE=str(tmp_path / "empty"))
    assert result.code == 0, result
    assert result.out.startswith(BEGIN)
    assert result.out.endswith(f"{END}\n")
    assert cli("board", "--markdown", "--json").document["markdown"] == result.out


@pytest.mark.parametrize("target", ["nowhere/board.html"])
def test_a_page_that_cannot_be_written(cli, target):
    result = cli("board", "--html", target)
    assert result.code == 5
    assert "cannot write" in result.err


def test_one_form_at_a_time(cli):
    assert cli("board", "--markdown", "--html", "x").code == 2
