# SPDX-License-Identifier: Apache-2.0
"""``plan``: fits or not, with which command, and which number fails."""

from __future__ import annotations

import json
import shlex
import sys
from xml.etree import ElementTree

import flash_next
import pytest
from series_support import run_here


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return flash_next.write_checkpoint(tmp_path_factory.mktemp("plan") / "model", "gptq")


def plan(model, *args):
    return run_here("plan", "--model", model, *args)


def test_six_cards(model):
    result = plan(model, "--gpus", "6x24", "--ram", "192", "--json")
    assert result.code == 0, result
    found = result.document
    assert found["layout"]["partition"] == [8] * 6
    assert found["layout"]["full_contexts"] == 8
    assert found["host"]["table"] == "memory"
    assert found["environment"]["VLLM_PP_LAYER_PARTITION"] == "8,8,8,8,8,8"
    words = found["command"]
    assert words[:3] == ["vllm", "serve", str(model)]
    assert words[words.index("--kv-cache-dtype") + 1] == "int8_per_token_head"
    flags = {word for word in words if word.startswith("--")}
    assert flags <= found["reasons"].keys()
    assert "ple-host-file-gather" not in {need["patch"] for need in found["patches"]}
    for stage in found["layout"]["stages"]:
        held = sum(stage["weights"].values()) + stage["reserve"] + stage["kv_cache"]
        assert held <= stage["budget"]


def test_text_for_people(model):
    result = plan(model, "--gpus", "6x24", "--ram", "64")
    assert result.code == 0
    assert "It fits: 2,353,718 KV tokens (int8), 8 full contexts of 262,144 tokens." in result.out
    assert "KKKKKK" in result.out
    command = result.out[result.out.index("VLLM_PP_LAYER_PARTITION=") :].split("\n\n")[0]
    words = shlex.split(command)
    assert words[words.index("--engram-config") + 1] == '{"host_file_gather": true}'
    assert "ple-host-file-gather" in result.out


def test_uneven_split_says_what_the_even_one_holds(model):
    result = plan(model, "--gpus", "7x24", "--json")
    assert result.code == 0
    assert result.document["layout"]["tokens"] > 1.1 * result.document["even_partition"]["tokens"]
    assert result.document["even_partition"]["partition"] == [7, 7, 7, 7, 7, 7, 6]


def test_uneven_cards_where_the_even_split_does_not_fit(model):
    result = plan(model, "--gpus", "3x24,1x48")
    assert result.code == 0
    assert "vLLM's own split 12,12,12,12 would not fit." in result.out


@pytest.mark.parametrize(
    ("args", "number", "remedy"),
    [
        (("--gpus", "2x24"), "17.89 GiB too little", "5 such cards fit it"),
        (("--gpus", "4x24"), "0.22 GiB too little", "--no-vision makes it fit"),
        (
            ("--gpus", "6x24", "--tp", "1", "--users", "5", "--kv", "bf16"),
            "886 cache blocks",
            "--kv int8 makes it fit",
        ),
        (
            ("--gpus", "6x24", "--tp", "1", "--mtp", "3", "--users", "7"),
            "too little",
            "no --mtp makes it fit",
        ),
    ],
)
def test_refusal_names_the_number(model, args, number, remedy):
    result = plan(model, *args)
    assert result.code == 1
    assert number in result.err
    assert remedy in result.err
    assert "vllm serve" not in result.out


def test_remedies_are_true(model):
    assert plan(model, "--gpus", "4x24", "--context", "206848").code == 0
    assert plan(model, "--gpus", "4x24", "--context", "207872").code == 1
    assert plan(model, "--gpus", "4x24", "--no-vision").code == 0
    assert plan(model, "--gpus", "5x24").code == 0
    assert plan(model, "--gpus", "6x24", "--users", "8").code == 0
    assert plan(model, "--gpus", "6x24", "--tp", "1", "--users", "9").code == 1


def test_cards_share_stages_if_that_alone_fits(model):
    result = plan(model, "--gpus", "6x24", "--users", "9", "--json")
    assert result.code == 0
    assert result.document["layout"]["tensor_parallel"] == 2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--gpus", "6*24"), "not a number of cards"),
        (("--gpus", "6x24", "--context", "300000"), "more than the model's 262144"),
        (("--gpus", "6x24", "--partition", "8,8,8,8,8,9"), "adds up to 49"),
        (("--gpus", "6x24", "--partition", "2,10,8,8,10,10"), "has no sparse-attention layer"),
        (("--gpus", "6x24", "--partition", "a"), "no list of numbers"),
        (("--gpus", "6x24", "--tp", "5"), "--tp 5 does not divide"),
        (
            (
                "--gpus",
                "13x24",
            ),
            "13 stages, and the model can be split into 12",
        ),
        (("--gpus", "6x24", "--plot", "x.pdf"), "must end in .svg or .png"),
        (("--gpus", "6x24", "--kv", "fp4"), "fp4"),
        (("--gpus", ""), "nothing is not a number of cards"),
        (("--gpus", "6x99999999"), "not a number of cards"),
        (("--gpus", "6x24", "--ram", "nan"), "--ram nan"),
        (("--gpus", "6x24", "--ram", "inf"), "--ram inf"),
        (("--gpus", "6x24", "--reserve", "nan"), "--reserve nan"),
        (("--gpus", "6x24", "--reserve", "1e300"), "--reserve 1e+300"),
        (("--gpus", "6x24", "--utilization", "nan"), "--utilization nan"),
        (("--gpus", "6x24", "--users", "100", "--batched-tokens", "64"), "a token per request"),
        (("--gpus", "6x24", "--plot", "none/x.svg"), "there is no folder none"),
    ],
)
def test_usage(model, args, message):
    result = plan(model, *args)
    assert result.code == 2
    assert message in result.err


def change_config(folder, **values):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["text_config"].update(values)
    path.write_text(json.dumps(config))


def test_files_that_are_not_there_without_an_index(tmp_path):
    """Nothing but the layers themselves tells that a download without an index is half done."""
    folder = flash_next.write_checkpoint(tmp_path / "model", "gptq")
    (folder / "model.safetensors.index.json").unlink()
    assert plan(folder, "--gpus", "6x24").code == 0
    for name, lacking in (
        ("model-rest.safetensors", "the token embedding"),
        ("model-00030.safetensors", "the weights of layer 30"),
    ):
        (folder / name).unlink()
        result = plan(folder, "--gpus", "6x24")
        assert result.code == 2
        assert f"lacks {lacking}" in result.err


def test_a_checkpoint_that_the_planned_start_could_not_load(tmp_path):
    """What doctor would stop is said by the plan already."""
    folder = flash_next.write_checkpoint(tmp_path / "model", "gptq")
    assert not any(
        "dynamic" in text for text in plan(folder, "--gpus", "6x24", "--json").document["warnings"]
    )
    result = plan(folder, "--gpus", "6x24", "--mtp", "3", "--json")
    assert result.code == 0
    assert any("unquantized MTP head" in text and "dynamic" in text for text in result.document["warnings"])
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"] |= {"desc_act": True, "lm_head": True}
    path.write_text(json.dumps(config))
    found = " ".join(plan(folder, "--gpus", "6x24", "--json").document["warnings"])
    assert "desc_act" in found
    assert "LM head is quantized" in found


def test_a_table_in_the_config_or_the_files_alone(tmp_path):
    folder = flash_next.write_checkpoint(tmp_path / "model", "gptq")
    change_config(folder, ple_layer_ids=[])
    result = plan(folder, "--gpus", "6x24")
    assert result.code == 2
    assert "lacks ple_layer_ids in its config, and has an n-gram table" in result.err
    (folder / "model.safetensors.index.json").unlink()
    (folder / "model-table.safetensors").unlink()
    result = plan(folder, "--gpus", "6x24", "--json")
    assert result.code == 0
    assert "--engram-config" not in result.document["command"]
    change_config(folder, ple_layer_ids=[2])
    assert "lacks the n-gram table" in plan(folder, "--gpus", "6x24").err


def test_a_model_that_is_no_folder_and_a_broken_link(tmp_path):
    folder = flash_next.write_checkpoint(tmp_path / "model", "gptq")
    result = plan(folder / "config.json", "--gpus", "6x24")
    assert (result.code, "has no config.json" in result.err) == (2, True)
    (folder / "model-00030.safetensors").unlink()
    (folder / "model-00030.safetensors").symlink_to("../blobs/none")
    result = plan(folder, "--gpus", "6x24")
    assert (result.code, "is a link to nothing" in result.err) == (2, True)


def test_no_mtp_head(tmp_path):
    folder = flash_next.write_checkpoint(tmp_path / "model", "gptq", mtp=False)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["mtp_num_hidden_layers"] = 0
    (folder / "config.json").write_text(json.dumps(config))
    result = plan(folder, "--gpus", "6x24", "--mtp", "2")
    assert result.code == 2
    assert "no MTP head" in result.err


def test_missing_file(tmp_path):
    folder = flash_next.write_checkpoint(tmp_path / "model", "gptq")
    (folder / "mtp.safetensors").unlink()
    result = plan(folder, "--gpus", "6x24", "--json")
    assert result.code == 2
    assert "lacks 1 file of its index, first mtp.safetensors" in result.document["error"]["message"]


def test_cut_file_is_a_warning(tmp_path):
    folder = flash_next.write_checkpoint(tmp_path / "model", "gptq")
    with (folder / "mtp.safetensors").open("r+b") as file:
        file.truncate(100_000)
    result = plan(folder, "--gpus", "6x24", "--json")
    assert result.code == 0
    assert "mtp.safetensors is shorter" in result.document["warnings"][0]


def test_tensor_parallel_and_mtp(model):
    result = plan(model, "--gpus", "8x24", "--tp", "2", "--mtp", "3", "--kv", "fp8", "--json")
    assert result.code == 0, result
    layout = result.document["layout"]
    assert (layout["pipeline_parallel"], layout["tensor_parallel"]) == (4, 2)
    assert [stage["cards"] for stage in layout["stages"]] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    # 640 / 2 is a multiple of the groups of 32, so experts may be split.
    assert not layout["expert_parallel"]
    assert "MTP head" in layout["stages"][-1]["weights"]
    assert "pp-mtp-last-stage" in {need["patch"] for need in result.document["patches"]}


def test_experts_are_dealt_out_where_groups_would_be_cut(tmp_path):
    folder = flash_next.write_checkpoint(tmp_path / "model", "mixed")
    result = plan(folder, "--gpus", "4x24", "--tp", "2", "--json")
    assert result.code == 0
    assert result.document["layout"]["expert_parallel"]
    assert "--enable-expert-parallel" in result.document["command"]


def test_two_boxes(model):
    result = plan(model, "--gpus", "4x24", "--nodes", "2", "--json")
    assert result.code == 0
    network = result.document["network"]
    assert network["token_bytes"] == 20_480
    assert network["chunk_bytes"] == 20_480 * 2048
    processes = [entry["command"] for entry in network["start"]["multiprocessing"]]
    assert "--node-rank 0" in processes[0]
    assert "--headless" not in processes[0]
    assert "--node-rank 1" in processes[1]
    assert "--headless" in processes[1]
    ray = [entry["command"] for entry in network["start"]["Ray"]]
    assert "ray start --head" in ray[0]
    assert "ray start --address" in ray[1]
    assert "--distributed-executor-backend ray" in ray[2]
    assert all("VLLM_PP_LAYER_PARTITION=" in command for command in [*processes, *ray])


def test_svg(model, tmp_path):
    path = tmp_path / "cards.svg"
    result = plan(model, "--gpus", "4x24,2x32", "--plot", path)
    assert result.code == 0
    root = ElementTree.fromstring(path.read_text())
    bars = [e for e in root.iter("{http://www.w3.org/2000/svg}rect") if len(e)]
    names = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"card 0 (stage 0)", "card 5 (stage 5)", "KV cache"} <= set(names)
    right = max(float(e.get("x")) + float(e.get("width")) for e in bars)
    assert right == pytest.approx(150 + 640, abs=1)
    assert list(tmp_path.iterdir()) == [path]


def test_png(model, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "cards.png"
    assert plan(model, "--gpus", "6x24", "--plot", path).code == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_png_without_matplotlib(model, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = plan(model, "--gpus", "6x24", "--plot", tmp_path / "cards.png")
    assert result.code == 5
    assert "matplotlib" in result.err
    assert list(tmp_path.iterdir()) == []


def test_plot_of_what_does_not_fit(model, tmp_path):
    path = tmp_path / "cards.svg"
    assert plan(model, "--gpus", "2x24", "--plot", path).code == 1
    ElementTree.fromstring(path.read_text())
