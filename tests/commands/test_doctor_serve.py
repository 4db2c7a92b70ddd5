# SPDX-License-Identifier: Apache-2.0
"""``doctor --serve`` as people call it."""

from __future__ import annotations

import flash_next
import pytest


@pytest.fixture
def model(tmp_path):
    return flash_next.write_checkpoint(tmp_path / "model", "gptq")


def test_findings(cli, applied, model):
    result = cli(
        "doctor", "--vllm", applied, "--json", "--serve",
        "vllm", "serve", model, "-pp", "4", "--kv_cache_dtype=nvfp4",
        VLLM_PP_LAYER_PARTITION="2,16,16,14", VLLM_PLE_CPU_OFFLOAD="1",
    )  # fmt: skip
    assert result.code == 1, result
    found = result.document["findings"]
    assert {"partition", "variables", "KV cache", "patches"} <= {finding["check"] for finding in found}
    assert all(finding["what"] and finding["why"] and finding["do"] for finding in found)
    assert result.document["facts"]["model"] == str(model)


def test_text(cli, applied, model):
    result = cli(
        "doctor", "--vllm", applied, "--serve", model, "-pp", "4", VLLM_PP_LAYER_PARTITION="2,16,16,14"
    )
    assert result.code == 1
    text = result.out
    assert "error: partition: VLLM_PP_LAYER_PARTITION=2,16,16,14: stage 0" in text
    assert "  do:  VLLM_PP_LAYER_PARTITION=12,12,12,12" in text
    assert text.index("error:") < text.rindex("warning:")


def test_the_command_as_plan_prints_it(cli, applied, model):
    """Variables may stand before it, as in a shell."""
    result = cli(
        "doctor", "--vllm", applied, "--json", "--serve",
        "VLLM_PP_LAYER_PARTITION=2,16,16,14", "CUDA_DEVICE_ORDER=PCI_BUS_ID",
        "vllm", "serve", model, "-pp", "4",
    )  # fmt: skip
    assert result.document["facts"]["model"] == str(model)
    assert "partition" in {finding["check"] for finding in result.document["findings"]}


def test_short_flags_of_vllm_with_an_h_in_them(cli, applied, model):
    result = cli("doctor", "--vllm", applied, "--json", "--serve", model, "-pp", "6", "-dph")
    assert result.document["facts"]["model"] == str(model)
    for words in (["-h"], ["--serve", "-h"], ["--help"]):
        assert "Check this machine" in cli("doctor", *words).out


def test_words_that_are_neither_command_nor_model(cli, applied, model):
    result = cli(
        "doctor", "--vllm", applied, "--json", "--serve",
        "vllm", "serve", model, "…", "--engram-config", '{"cpu_offload": true}',
    )  # fmt: skip
    assert result.code == 1
    what = f"'…' is one word too many beside the model {model}"
    assert [f["what"] for f in result.document["findings"] if f["check"] == "arguments"] == [what]
    result = cli("doctor", "--vllm", applied, "--json", "--serve", "docker", "run", "x", model)
    assert result.code == 1
    errors = [f["what"] for f in result.document["findings"] if f["stops"]]
    assert any(text.startswith("docker is neither a folder here nor a model of a hub") for text in errors)
    assert "'run' is one word too many beside the model docker, and 2 more" in errors


def test_unreadable_arguments(cli):
    result = cli("doctor", "--serve", "M", "-sc", "{")
    assert result.code == 2
    assert "is no JSON" in result.err


def test_arguments_without_serve(cli):
    result = cli("doctor", "M")
    assert result.code == 2
    assert "--serve" in result.err


def test_doctor_of_the_tool_is_as_before(cli):
    result = cli("doctor", "--json")
    assert result.code == 0
    assert {"git", "cache", "series"} <= {check["check"] for check in result.document["checks"]}
