# SPDX-License-Identifier: Apache-2.0
"""Checkpoints and cards that are not as they should be: one line that names the thing and the next step."""

from __future__ import annotations

import contextlib
import json
import struct
import sys

import flash_next
import pytest
from driver_support import Driver
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm_series.errors import EnvironmentFaultError, UsageError
from vllm_series.sizing.cards import detect_cards, parse_cards
from vllm_series.sizing.checkpoint import read_checkpoint
from vllm_series.sizing.host import TablePlace, detect_memory, host_need
from vllm_series.sizing.kvcache import KvSettings, plan_kv
from vllm_series.sizing.layout import Request, tensor_sizes
from vllm_series.sizing.model import read_model
from vllm_series.sizing.weights import sort_weights


@pytest.fixture
def folder(tmp_path):
    return flash_next.write_checkpoint(tmp_path / "model", "gptq")


def change_config(folder, **values):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["text_config"] |= values.pop("text", {})
    path.write_text(json.dumps(config | values))


def test_model(folder):
    model = read_model(folder)
    assert (model.layers, model.stream_bytes, model.kv.ple_layers) == (48, 20_480, (1,))
    assert model.quantization.method == "gptq"
    assert model.quantization.group_size == 32
    assert model.multimodal
    assert [model.kv.linear.count(kind) for kind in (True, False)] == [36, 12]


def test_compressed_tensors_keeps_its_groups(folder):
    weights = {"num_bits": 4, "group_size": 128}
    quantization = {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": weights}},
    }
    change_config(folder, quantization_config=quantization)
    found = read_model(folder).quantization
    assert (found.method, found.bits, found.group_size) == ("compressed-tensors", 4, 128)


@pytest.mark.parametrize(
    ("values", "text", "message"),
    [
        (
            {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
            {"model_type": ""},
            "LlamaForCausalLM",
        ),
        ({}, {"model_type": "qwen3_8_flash_next_text"}, "which vLLM has given up"),
        ({}, {"num_hidden_layers": 47}, "48 layer_types for 47 layers"),
        ({}, {"head_dim": "wide"}, 'understood: head_dim is "wide", and no whole number'),
        ({}, {"head_dim": -1}, "head_dim is -1"),
        ({}, {"layer_types": None}, "layer_types is null, and no list"),
        ({}, {"ple_layer_ids": 5}, "ple_layer_ids is 5, and no list"),
        ({}, {"ple_layer_ids": ["a"]}, 'ple_layer_ids is "a", and no whole number'),
        ({}, {"mamba_ssm_dtype": ["x"]}, r'mamba_ssm_dtype is \["x"\]'),
        ({}, {"split_ngram_parts": "x"}, 'split_ngram_parts is "x"'),
        ({}, {"mtp_num_hidden_layers": 0, "mtp": "x"}, 'mtp is "x", and no JSON object'),
        ({"architectures": 5}, {}, "architectures is 5, and no list"),
        ({"quantization_config": "x"}, {}, 'quantization_config is "x", and no JSON object'),
        ({"quantization_config": {"bits": "four"}}, {}, 'bits of quantization_config is "four"'),
        ({"quantization_config": {"dynamic": 5}}, {}, "dynamic of quantization_config is 5"),
        ({"quantization_config": {"config_groups": ["x"]}}, {}, "config_groups is"),
        ({"quantization_config": {"config_groups": {"g": "x" * 99}}}, {}, 'g is "x+…, and no JSON object'),
    ],
)
def test_config_of_another_model(folder, values, text, message):
    change_config(folder, text=text, **values)
    with pytest.raises(UsageError, match=message):
        read_model(folder)


def test_every_value_of_the_quantization_is_read_or_named(folder):
    """No message is that of Python."""
    refused: list[UsageError] = []
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for key in (
        "quantization_config",
        "architectures",
        "mtp",
        "config_groups",
        "bits",
        "group_size",
        "dynamic",
    ):
        for value in (None, True, 3, 1.5, "x", [], ["x"], [[]], {}, {"a": 1}, {"a": {"weights": 1}}):
            odd = {key: value} if key in ("quantization_config", "architectures") else {}
            odd |= {"text_config": config["text_config"] | {"mtp_num_hidden_layers": 0, key: value}}
            if key not in ("quantization_config", "architectures", "mtp"):
                odd = {"quantization_config": config["quantization_config"] | {key: value}}
            path.write_text(json.dumps(config | odd))
            try:
                read_model(folder)
            except UsageError as error:
                refused.append(error)
    assert refused
    assert all(error.hint for error in refused)
    assert not [e.message for e in refused if "' object" in e.message or "invalid literal" in e.message]


def test_config_lacks_a_key(folder):
    config = json.loads((folder / "config.json").read_text())
    del config["text_config"]["indexer_head_dim"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match="lacks indexer_head_dim"):
        read_model(folder)


@settings(max_examples=300)
@given(
    key=st.sampled_from(sorted(flash_next.CONFIG["text_config"])),
    value=st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 10**9),
        st.floats(),
        st.text(max_size=4),
        st.just([]),
        st.just({}),
    ),
)
def test_any_value_is_read_or_refused(tmp_path_factory, key, value):
    """No value of the config ends in anything but a model that can be planned, or one clear error."""
    folder = tmp_path_factory.getbasetemp() / "any"
    folder.mkdir(exist_ok=True)
    text = flash_next.CONFIG["text_config"] | {key: value}
    (folder / "config.json").write_text(json.dumps(flash_next.CONFIG | {"text_config": text}))
    with contextlib.suppress(UsageError):
        model = read_model(folder)
        plan_kv(model.kv, KvSettings(), (model.layers,))
        list(tensor_sizes(model, Request(parse_cards("6x24"))))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe"])
def test_config_is_no_config(folder, content):
    (folder / "config.json").write_bytes(content)
    with pytest.raises(UsageError, match=r"config\.json"):
        read_model(folder)


def test_no_config(tmp_path):
    with pytest.raises(UsageError, match=r"no config\.json"):
        read_model(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        struct.pack("<Q", 2) + b"{]",
        struct.pack("<Q", 1 << 40) + b"{}",
        struct.pack("<Q", 21) + b'{"a": {"dtype": "I8"}}',
        struct.pack("<Q", 68) + b'{"a": {"dtype": "I8", "shape": [4], "data_offsets": [4, 0], "x": 1}}',
        struct.pack("<Q", 60) + b'{"a": {"dtype": "I8", "shape": [4], "data_offsets": [-4, 0]}}',
    ],
    ids=["empty", "short", "lfs", "junk", "huge", "keys", "offsets", "before"],
)
def test_file_is_no_safetensors_file(folder, content):
    (folder / "model-00003.safetensors").write_bytes(content)
    with pytest.raises(UsageError, match=r"model-00003\.safetensors is no safetensors file"):
        read_checkpoint(folder)


def test_cut_and_missing_files(folder):
    (folder / "mtp.safetensors").unlink()
    path = folder / "model-00001.safetensors"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)
    found = read_checkpoint(folder)
    assert found.missing == ("mtp.safetensors",)
    assert found.cut == ("model-00001.safetensors",)
    assert found.unindexed == ()


def test_tensor_that_the_index_names_and_the_file_lacks(folder):
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.extra.weight"] = "mtp.safetensors"
    path.write_text(json.dumps(index))
    assert read_checkpoint(folder).unindexed == ("model.extra.weight",)


def test_empty_folder(tmp_path):
    with pytest.raises(UsageError, match="no safetensors files"):
        read_checkpoint(tmp_path)


def test_weights_land_where_they_are_used(folder):
    checkpoint = read_checkpoint(folder)
    weights = sort_weights(checkpoint.tensors, 48)
    assert weights.unknown == ()
    assert weights.table == 320_001_536 * 160 * 2
    assert weights.table_parts == tuple(range(128))
    indices = sum(tensor.size for tensor in checkpoint.tensors if tensor.name.endswith(".g_idx"))
    parts = [*weights.layers, weights.embedding, weights.head, weights.vision, weights.draft]
    held = sum(part.on_card(1) for part in parts)
    assert held + weights.table + indices == sum(tensor.size for tensor in checkpoint.tensors)


def test_draft_brings_an_embedding_on_a_later_stage(folder):
    weights = sort_weights(read_checkpoint(folder).tensors, 48)
    alone = weights.stage(0, 48, 1, first=True, last=True, draft=True, vision=False)
    later = weights.stage(40, 48, 1, first=False, last=True, draft=True, vision=False)
    assert later["MTP head"] - alone["MTP head"] == weights.embedding.on_card(1)


def test_tensor_parallel_splits_experts_and_keeps_the_mixers(folder):
    weights = sort_weights(read_checkpoint(folder).tensors, 48)
    layer = weights.layers[0]
    assert layer.split > 20 * layer.whole > 0
    assert layer.on_card(2) == layer.split // 2 + layer.whole


def test_cards():
    cards = parse_cards("4x24, 2x32")
    assert [card.name for card in cards] == ["24 GiB card"] * 4 + ["32 GiB card"] * 2
    assert cards[0].usable / 2**30 == pytest.approx(23.56)


@pytest.mark.parametrize(
    "text", ["", "six", "6*24", "0x24", "6x0", "6x24,", "65x24", "-1x24", "6x3090", "3090"]
)
def test_no_cards(text):
    with pytest.raises(UsageError, match="--gpus"):
        parse_cards(text)


def test_cards_cannot_be_detected_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(EnvironmentFaultError, match="nvidia-ml-py is missing") as caught:
        detect_cards()
    assert "--gpus" in caught.value.hint


def test_detected_cards(monkeypatch):
    driver = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    cards = detect_cards()
    assert [card.name for card in cards] == ["NVIDIA GeForce RTX 3090 (0)", "NVIDIA GeForce RTX 3090 (1)"]
    assert [card.usable for card in cards] == [card.usable for card in parse_cards("2x24")]
    driver.broken = True
    with pytest.raises(EnvironmentFaultError, match="version mismatch"):
        detect_cards()


def test_host(tmp_path):
    need = host_need(6, 102_000_000_000, 188_000_000_000)
    assert need.place(None) is TablePlace.DISK
    assert need.place(need.with_table) is TablePlace.MEMORY
    assert need.place(need.with_table - 1) is TablePlace.DISK
    assert need.short(None) == need.short(need.without_table) == 0
    assert need.short(need.without_table - 5) == 5
    source = tmp_path / "meminfo"
    source.write_text("MemTotal:       1024 kB\nMemFree: 1 kB\n")
    assert detect_memory(source) == 1 << 20
    source.write_text("junk")
    assert detect_memory(source) is None
    assert detect_memory(tmp_path / "none") is None
