# SPDX-License-Identifier: Apache-2.0
"""Flags that the vLLM about to run does not know."""

from __future__ import annotations

from pathlib import Path

import pytest
from vllm_series.preflight.arguments import parse_arguments
from vllm_series.preflight.facts import Engine, Facts
from vllm_series.preflight.flags import check_flags, read_flags


@pytest.fixture
def vllm(tmp_path):
    """Sources in the form of vLLM's: literals of the parser, and fields that become flags."""
    engine = tmp_path / "vllm/engine/arg_utils.py"
    server = tmp_path / "vllm/entrypoints/common/cli_args.py"
    for path in (engine, server):
        path.parent.mkdir(parents=True)
    engine.write_text(
        'group.add_argument(\n    "--pipeline-parallel-size",\n    "-pp")\n'
        'group.add_argument("--async-scheduling", **kwargs)\ngroup.add_argument("--engram-config")\n'
    )
    server.write_text(
        'class Arguments:\n    api_key: list[str] | None = None\n\nparser.add_argument("--headless")\n'
    )
    return tmp_path


def found(vllm: Path, *words: str):
    return list(
        check_flags(
            Facts(
                parse_arguments(["M", *words]), {}, engine=Engine(vllm, frozenset(), None, read_flags(vllm))
            )
        )
    )


@pytest.mark.parametrize(
    "words",
    [
        ("-pp", "2", "--headless"),
        ("--pipeline_parallel_size=2",),
        ("--api-key", "x"),
        ("--no-async-scheduling",),
        ("--engram-config.host_file_gather", "true"),
        ("--pipeline-par", "2"),
        ("-dph",),
    ],
)
def test_known(vllm, words):
    assert found(vllm, *words) == []


@pytest.mark.parametrize(
    ("words", "what", "do"),
    [
        (("--pipeline-paralel-size", "6"), "--pipeline-paralel-size is no flag", "--pipeline-parallel-size?"),
        (("--engram_confg.host_file_gather", "true"), "--engram-confg is no flag", "--engram-config?"),
        (("--bogus",), "--bogus is no flag", "--help"),
    ],
)
def test_unknown(vllm, words, what, do):
    (finding,) = found(vllm, *words)
    assert not finding.stops
    assert what in finding.what
    assert do in finding.do


def test_sources_that_do_not_tell(vllm):
    (vllm / "vllm/entrypoints/common/cli_args.py").unlink()
    assert found(vllm, "--bogus") == []
