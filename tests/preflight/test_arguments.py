# SPDX-License-Identifier: Apache-2.0
"""The words behind ``vllm serve`` in all the forms that vLLM's parser takes."""

from __future__ import annotations

import pytest
from vllm_series.errors import UsageError
from vllm_series.preflight.arguments import parse_arguments, split_variables


@pytest.mark.parametrize(
    "words",
    [
        ["vllm", "serve", "M", "--pipeline-parallel-size", "6"],
        ["M", "-pp", "6"],
        ["M", "-pp=6"],
        ["--pipeline_parallel_size=6", "--model", "M"],
        ["-pp", "2", "M", "-pp", "6"],
        ["--enforce-eager", "M", "-pp", "6"],
        ["--no-async-scheduling", "-pp", "6", "M"],
    ],
)
def test_forms(words):
    found = parse_arguments(words)
    assert (found.model, found.stages, found.tensor_parallel) == ("M", 6, 1)


def test_json_and_single_keys():
    found = parse_arguments(
        ["M", "--engram-config", '{"cpu_offload": true}', "--engram-config.host_file_gather", "true"]
    )
    assert found.table_on_disk
    assert found.config("--engram-config") == {"cpu_offload": True, "host_file_gather": "true"}


def test_switches():
    found = parse_arguments(["M", "--no-async-scheduling", "--enable-prefix-caching"])
    assert found.is_on("--async-scheduling") is False
    assert found.is_on("--enable-prefix-caching") is True
    assert found.is_on("--enable-chunked-prefill") is None


def test_optimization_level():
    assert parse_arguments(["M", "-O3"]).flags["-O"] == "3"
    assert parse_arguments(["M", "-cc", "3"]).config("--compilation-config") == {"mode": 3}


@pytest.mark.parametrize(("text", "number"), [("2048", 2048), ("2k", 2000), ("2K", 2048), ("1.5k", 1500)])
def test_numbers_for_people(text, number):
    found = parse_arguments(["M", "--max-num-batched-tokens", text, "--max-model-len", text])
    assert found.number("--max-num-batched-tokens", 0) == found.context == number


@pytest.mark.parametrize("text", ["auto", "-1"])
def test_context_that_vllm_decides(text):
    assert parse_arguments(["M", f"--max-model-len={text}"]).context is None


@pytest.mark.parametrize(
    "words",
    [
        ["M", "--gpu-memory-utilization", "most"],
        ["M", "--max-num-batched-tokens", "2x"],
        ["M", "--max-num-batched-tokens", "1.5K"],
        ["M", "--max-num-batched-tokens", "1.5"],
        ["M", "--max-model-len", "0"],
        ["M", "-pp", "0"],
        ["M", "-tp", "0"],
        ["M", "--nnodes=0"],
        ["M", "--max-num-seqs", "0"],
        ["M", "--gpu-memory-utilization", "92"],
        ["M", "--gpu-memory-utilization", "nan"],
        ["M", "--kv-offloading-size", "inf"],
        ["M", "-sc", '{"num_speculative_tokens": "two"}'],
    ],
)
def test_bad_numbers(words):
    with pytest.raises(UsageError, match="is no number"):
        parse_arguments(words)


@pytest.mark.parametrize(
    "words", [["M", "-pp", "six"], ["M", "-sc", "{method: mtp}"], ["M", "--engram-config", "{"]]
)
def test_unreadable(words):
    with pytest.raises(UsageError, match="is no"):
        parse_arguments(words)


def test_variables_before_the_command():
    line = ["VLLM_PP_LAYER_PARTITION=8,8", "EMPTY=", "vllm", "serve", "M", "--a=b"]
    assert split_variables(line) == ({"VLLM_PP_LAYER_PARTITION": "8,8", "EMPTY": ""}, line[2:])
    assert split_variables(["./a=b", "C=d"]) == ({}, ["./a=b", "C=d"])


def test_the_command_by_its_path():
    assert parse_arguments(["env/bin/vllm", "serve", "M"]).model == "M"


def test_words_that_belong_to_nothing():
    found = parse_arguments(["vllm", "serve", "M", "…", "-pp", "6", "--enforce-eager", "more"])
    assert (found.model, found.surplus) == ("M", ("…", "more"))
    for flag in ("--served-model-name", "--api_key", "--cudagraph-capture-sizes"):
        assert parse_arguments(["M", flag, "1", "2", "4", "-pp", "6"]).surplus == ()


def test_nothing():
    assert parse_arguments([]).model is None
