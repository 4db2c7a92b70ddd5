# SPDX-License-Identifier: Apache-2.0
"""Each mistake is found, says what to do, and is not found where it was not made."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import flash_next
import pytest
from vllm_series.preflight import engine, files, flags, machine, settings
from vllm_series.preflight.arguments import parse_arguments
from vllm_series.preflight.checks import CHECKS, examine
from vllm_series.preflight.facts import Engine, Facts, Finding, Gpu, Process
from vllm_series.sizing.checkpoint import read_checkpoint
from vllm_series.sizing.model import read_model
from vllm_series.sizing.weights import sort_weights

GIB = 1 << 30
EVERY_PATCH = frozenset(
    {
        "pp-empty-kv-group", "pp-partition-check", "pp-mtp-last-stage", "gptq-mixed-indexer",
        "gptq-mtp-block-names", "pp-embed-head-only-where-used", "offload-equal-block-bytes",
        "pp-handler-stream", "ple-host-file-gather", "qsa-int8-kv", "qsa-fp8-kv-sm80", "qsa-8bit-operands",
        "qsa-sm86-configs",
    }
)  # fmt: skip
GOOD = 'MODEL -pp 6 --kv-cache-dtype int8_per_token_head --engram-config {"host_file_gather":true}'


def cards(count: int = 6, size: int = 24, **values: object) -> tuple[Gpu, ...]:
    one = Gpu(0, "RTX 3090", size * GIB, size * GIB - 300_000_000, (8, 6))
    return tuple(replace(one, index=number, **values) for number in range(count))


def described(folder: Path) -> dict[str, object]:
    model, checkpoint = read_model(folder), read_checkpoint(folder)
    return {
        "model": model,
        "checkpoint": checkpoint,
        "weights": sort_weights(checkpoint.tensors, model.layers),
    }


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return described(flash_next.write_checkpoint(tmp_path_factory.mktemp("checks") / "m", "gptq"))


@pytest.fixture
def good(checkpoint):
    """A start that nothing is wrong with."""
    return Facts(
        arguments=start(GOOD),
        environment={"PATH": "/bin"},
        driver="580.95.05",
        gpus=cards(),
        memory=128 * GIB,
        memory_free=100 * GIB,
        shared=64 * GIB,
        shared_free=60 * GIB,
        cache_free=500 * GIB,
        engine=Engine(Path("/site"), EVERY_PATCH, cuda=13),
        podman=True,
        cdi_driver=frozenset({"580.95.05"}),
        **checkpoint,
    )


def start(text: str):
    return parse_arguments(text.split())


def changed(folder: Path, **text: object) -> dict[str, object]:
    config = json.loads((folder / "config.json").read_text())
    config["text_config"] |= text
    (folder / "config.json").write_text(json.dumps(config))
    return described(folder)


def only(facts: Facts, check, **values: object):
    """The findings of one check, and that no other check is moved by the change."""
    found = list(check(replace(facts, **values)))
    for finding in found:
        assert finding.what
        assert finding.why
        assert finding.do
    return found


def test_good_start_has_no_finding(good):
    assert examine(good) == []


def test_every_check_is_run():
    made = {
        value
        for module in (machine, files, flags, settings, engine)
        for name, value in vars(module).items()
        if name.startswith("check_") and value.__module__ == module.__name__
    }
    assert made == set(CHECKS)


@pytest.mark.parametrize(
    ("problem", "driver", "stops"),
    [("the Python package nvidia-ml-py is missing", None, False), ("the driver does not answer", None, True)],
)
def test_no_driver(good, problem, driver, stops):
    (found,) = only(good, machine.check_driver, driver_problem=problem, driver=driver, gpus=())
    assert found.stops is stops


@pytest.mark.parametrize(
    ("driver", "cuda", "wrong"), [("570.1", 13, True), ("570.1", 12, False), ("570", None, False)]
)
def test_old_driver(good, driver, cuda, wrong):
    found = only(good, machine.check_driver, driver=driver, engine=replace(good.engine, cuda=cuda))
    assert bool(found) is wrong


def test_too_few_and_too_old_cards(good):
    assert "5 cards visible, and the start needs 6" in only(good, machine.check_cards, gpus=cards(5))[0].what
    assert "7.5" in only(good, machine.check_cards, gpus=cards(capability=(7, 5)))[0].what
    assert only(good, machine.check_cards, gpus=cards(3), arguments=start(GOOD + " --nnodes 2")) == []


def test_memory_of_others(good):
    """A 256 MiB squatter on card 0 kills rank 0 when the share is high."""
    squatter = (Process(4711, "python3 ComfyUI", 256 << 20),)
    first, *rest = cards()
    crowded = (replace(first, processes=squatter), *rest)
    (found,) = only(good, machine.check_card_memory, gpus=crowded)
    assert not found.stops
    assert "ComfyUI (pid 4711, 0.25 GiB)" in found.what
    tight = (replace(first, processes=squatter, free=int(0.95 * first.total)), *rest)
    high = start(GOOD + " --gpu-memory-utilization 0.97")
    (found,) = [
        f for f in only(good, machine.check_card_memory, gpus=tight, arguments=high) if "card 0" in f.what
    ]
    assert found.stops


def test_host_memory(good):
    pinned = start("MODEL -pp 6")
    (found,) = only(good, machine.check_host_memory, arguments=pinned, memory_free=90 * GIB)
    assert found.stops
    assert "host_file_gather" in found.do
    assert only(good, machine.check_host_memory, arguments=pinned, memory_free=97 * GIB) == []
    (found,) = only(good, machine.check_host_memory, memory=16 * GIB)
    assert not found.stops


@pytest.mark.parametrize(
    ("extra", "total", "free", "count"),
    [
        ("", 64 << 20, 64 << 20, 1),
        (" --kv-offloading-size 36", 64 * GIB, 35 * GIB, 1),
        (" --kv-offloading-size 36", 64 * GIB, 37 * GIB, 0),
        (" --kv-offloading-size 36", 64 << 20, 64 << 20, 2),
    ],
)
def test_shared_memory(good, extra, total, free, count):
    found = only(
        good, machine.check_shared_memory, arguments=start(GOOD + extra), shared=total, shared_free=free
    )
    assert len(found) == count


def test_disk(good):
    assert only(good, machine.check_disk, cache_free=GIB)


@pytest.mark.parametrize(
    ("podman", "drivers", "wrong"),
    [
        (True, None, True),
        (True, frozenset({"570.1"}), True),
        (True, frozenset(), False),
        (False, None, False),
    ],
)
def test_containers(good, podman, drivers, wrong):
    assert bool(only(good, machine.check_containers, podman=podman, cdi_driver=drivers)) is wrong


def test_model_named(good):
    assert only(good, files.check_model, arguments=start("-pp 6"))[0].stops
    problem = Finding("model", True, "x/config.json is no JSON", "why", "do")
    assert only(good, files.check_model, model_problem=problem) == [problem]


def test_checkpoint_incomplete(good, tmp_path):
    folder = flash_next.write_checkpoint(tmp_path / "m", "gptq")
    (folder / "model-00007.safetensors").unlink()
    with (folder / "mtp.safetensors").open("r+b") as file:
        file.truncate(file.seek(0, 2) - 1)
    flash_next.write_file(folder / "again.safetensors", flash_next.plain("lm_head.weight", 4, 4))
    found = only(good, files.check_complete, **described(folder))
    assert [finding.what for finding in found] == [
        "model-00007.safetensors is missing",
        "mtp.safetensors is shorter than its header says",
        "lm_head.weight stands in two files",
    ]


def test_layers_that_no_file_has(good, tmp_path):
    folder = flash_next.write_checkpoint(tmp_path / "m", "gptq")
    (folder / "model.safetensors.index.json").unlink()
    (folder / "model-00007.safetensors").unlink()
    (found,) = only(good, files.check_complete, **described(folder))
    assert found.stops
    assert found.what == "no file has the weights of layer 7"


def test_a_table_that_the_config_does_not_name(good, checkpoint):
    model = checkpoint["model"]
    without = replace(model, kv=replace(model.kv, ple_layers=()))
    (found,) = only(good, files.check_table_shards, **checkpoint | {"model": without})
    assert "names no ple_layer_ids" in found.what


def table(folder: Path, rows: dict[int, int], dtype: str = "BF16", width: int = 160) -> dict[str, object]:
    """Write other shards of the n-gram table: rows by shard number."""
    prefix = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding."
    specs = {f"{prefix}shard_{number}.weight": (dtype, (count, width)) for number, count in rows.items()}
    flash_next.write_file(folder / "model-table.safetensors", specs)
    return changed(folder, split_ngram_parts=4)


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ({0: 8, 1: 8, 3: 6}, "shard 2 of 4 of the n-gram table is missing"),
        ({}, "the folder has no shard of the n-gram table"),
        ({0: 8, 1: 7, 2: 8, 3: 6}, "has 7 rows, and the first shard 8"),
        ({0: 8, 1: 8, 2: 8, 3: 9}, "has 9 rows, and the first shard 8"),
        ({0: 8, 1: 8, 2: 8, 3: 8, 4: 8}, "shard 4 of the n-gram table is one too many"),
        ({0: 8, 1: 8, 2: 8, 3: 6}, None),
        ({0: 8, 1: 8, 2: 8, 3: 8}, None),
    ],
)
def test_table_shards(good, tmp_path, rows, what):
    folder = flash_next.write_checkpoint(tmp_path / "m", "gptq")
    found = only(good, files.check_table_shards, **table(folder, rows))
    assert [f.what for f in found if what and what in f.what] == [f.what for f in found]
    assert bool(found) is (what is not None)


def test_renamed_table(good, tmp_path):
    folder = flash_next.write_checkpoint(tmp_path / "m", "gptq")
    name = "language_model.model.layers.1.ple.ple_embedding.ngram_embedding.shards.44.weight"
    flash_next.write_file(folder / "model-table.safetensors", {name: ("BF16", (8, 160))})
    (found,) = only(good, files.check_table_shards, **described(folder))
    assert "MLX" in found.what
    assert "shard_0.weight" in found.why


def test_table_format(good, tmp_path):
    folder = flash_next.write_checkpoint(tmp_path / "m", "gptq", table="F8_E4M3")
    silent, unscaled = only(good, files.check_table_format, **described(folder))
    assert "not set" in silent.what
    assert "no weight_scale" in unscaled.what
    scale = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding.weight_scale"
    flash_next.write_file(folder / "scale.safetensors", flash_next.plain(scale, 1))
    assert only(good, files.check_table_format, **changed(folder, ple_embedding_dtype="float8_e4m3fn")) == []
    flash_next.write_checkpoint(folder, "gptq")
    (found,) = only(good, files.check_table_format, **changed(folder, ple_embedding_dtype="float8_e4m3fn"))
    assert "the table is bf16" in found.what


@pytest.mark.parametrize(
    ("values", "arguments", "what"),
    [
        ({}, "--quantization awq", "--quantization awq"),
        ({}, "--quantization gptq_marlin", None),
        ({"desc_act": True}, "", "desc_act"),
        ({"desc_act": True, "group_size": -1}, "", None),
        ({"lm_head": True}, "", "LM head is quantized"),
        ({}, '-sc {"method":"mtp","num_speculative_tokens":2}', "no dynamic rule"),
        ({"dynamic": {"-:.*mtp.*": {}}}, '-sc {"method":"mtp","num_speculative_tokens":2}', None),
    ],
)
def test_quantization(good, tmp_path, values, arguments, what):
    folder = flash_next.write_checkpoint(tmp_path / "m", "gptq")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= values
    (folder / "config.json").write_text(json.dumps(config))
    found = only(good, files.check_quantization, arguments=start(f"MODEL {arguments}"), **described(folder))
    assert [what in f.what for f in found if what] == [True] * (what is not None)


def test_no_head(good, tmp_path):
    folder = flash_next.write_checkpoint(tmp_path / "m", "gptq", mtp=False)
    mtp = start('MODEL -sc {"method":"mtp","num_speculative_tokens":2}')
    assert only(good, files.check_head, arguments=mtp, **described(folder))
    assert only(good, files.check_head, arguments=mtp) == []


def test_unknown_tensors(good, tmp_path):
    folder = flash_next.write_checkpoint(tmp_path / "m", "gptq")
    flash_next.write_file(folder / "extra.safetensors", flash_next.plain("adapter.weight", 4))
    (found,) = only(good, files.check_unknown, **described(folder))
    assert "adapter.weight" in found.what


@pytest.mark.parametrize(
    ("stages", "partition", "do"),
    [
        (4, "2,16,16,14", "VLLM_PP_LAYER_PARTITION=12,12,12,12"),
        (6, "8,8,8,8,8,9", "VLLM_PP_LAYER_PARTITION=8,8,8,8,8,8"),
        (6, "8;8", "VLLM_PP_LAYER_PARTITION=8,8,8,8,8,8"),
        (13, None, "use at most 12 stages"),
        (5, None, None),
        (2, "25,23", None),
        (1, None, None),
    ],
)
def test_partition(good, stages, partition, do):
    environment = {} if partition is None else {"VLLM_PP_LAYER_PARTITION": partition}
    found = only(
        good, settings.check_partition, arguments=start(f"MODEL -pp {stages}"), environment=environment
    )
    assert [f.do for f in found] == ([] if do is None else [do])


def test_partition_without_stages(good):
    (found,) = only(
        good,
        settings.check_partition,
        arguments=start("MODEL"),
        environment={"VLLM_PP_LAYER_PARTITION": "24,24"},
    )
    assert not found.stops


@pytest.mark.parametrize(
    ("environment", "what"),
    [
        ({"VLLM_PLE_CPU_OFFLOAD": "1"}, "VLLM_PLE_CPU_OFFLOAD is set"),
        ({"PYTORCH_ALLOC_CONF": "a", "PYTORCH_CUDA_ALLOC_CONF": "b"}, "PYTORCH_CUDA_ALLOC_CONF=b"),
        ({"PYTORCH_ALLOC_CONF": "a", "PYTORCH_CUDA_ALLOC_CONF": "a"}, None),
        ({"PYTORCH_CUDA_ALLOC_CONF": "a"}, None),
    ],
)
def test_variables(good, environment, what):
    found = only(good, settings.check_variables, environment=environment)
    assert [what in f.what for f in found if what] == [True] * (what is not None)


@pytest.mark.parametrize(
    ("check", "arguments", "stops"),
    [
        (settings.check_compilation, '-cc {"mode":3} -cc.mode=0', False),
        (settings.check_compilation, '--compilation-config {"mode":3} -O2', False),
        (settings.check_compilation, "--enforce-eager -cc.cudagraph_mode=FULL", False),
        (settings.check_compilation, "-cc.mode=3 -cc.cudagraph_mode=FULL", None),
        (settings.check_batched_tokens, "--max-num-batched-tokens 8 --max-num-seqs 16", True),
        (
            settings.check_batched_tokens,
            "--max-num-batched-tokens 2048 --max-model-len 4096 --no-enable-chunked-prefill",
            True,
        ),
        (settings.check_batched_tokens, "--max-num-batched-tokens 8192", False),
        (settings.check_batched_tokens, "--max-num-batched-tokens 2048 --max-model-len 4096", None),
        (settings.check_scheduling, "-pp 2 --no-async-scheduling", True),
        (settings.check_scheduling, "--no-async-scheduling", None),
        (
            settings.check_table_settings,
            "--engram-config.host_file_gather true --load-format runai_streamer",
            True,
        ),
        (settings.check_table_settings, '--engram-config {"host_file_gather":true,"use_thp":true}', True),
        (
            settings.check_table_settings,
            '--engram-config {"host_file_gather":true,"cpu_offload":true}',
            False,
        ),
        (settings.check_table_settings, "--load-format runai_streamer", None),
        (settings.check_kv_cache, "--kv-cache-dtype nvfp4", True),
        (settings.check_kv_cache, "--attention-config.indexer_kv_dtype=fp8", True),
        (settings.check_kv_cache, "--kv-cache-memory-bytes 1 --gpu-memory-utilization 0.9", False),
        (settings.check_kv_cache, "--kv_cache_dtype=fp8", None),
        (settings.check_context, "--max-model-len 524288", True),
        (settings.check_context, "--max-model-len 262144", None),
        (settings.check_speculation, '-sc {"use_local_argmax_reduction":true}', True),
        (settings.check_parallelism, "-pp 2 -tp 2 -dp 2 --enable-expert-parallel", True),
        (settings.check_parallelism, "-pp 2 -ep", False),
        (settings.check_parallelism, "-pp 2 -tp 2 -ep", None),
        (settings.check_config_file, "--config serve.yaml", False),
    ],
)
def test_flags(good, check, arguments, stops):
    found = only(good, check, arguments=start(f"MODEL {arguments}"))
    assert [f.stops for f in found] == ([] if stops is None else [stops])


def test_shadowing_package(good):
    assert only(good, engine.check_shadow, shadow=Path("/home/me/vllm"))[0].stops
    assert only(good, engine.check_shadow, shadow=Path("/site/vllm")) == []


def test_no_engine(good):
    assert only(good, engine.check_engine, engine=None)[0].stops
    assert only(good, engine.check_patches, engine=None) == []


@pytest.mark.parametrize(
    ("missing", "arguments", "stops"),
    [
        ("pp-empty-kv-group", GOOD, True),
        ("qsa-int8-kv", GOOD, True),
        ("ple-host-file-gather", GOOD, True),
        ("gptq-mixed-indexer", GOOD, True),
        ("qsa-sm86-configs", GOOD, False),
        ("pp-mtp-last-stage", GOOD, None),
        ("pp-mtp-last-stage", GOOD + ' -sc {"method":"mtp","num_speculative_tokens":1}', True),
        ("offload-equal-block-bytes", GOOD + " --kv-offloading-size 8", True),
        ("qsa-fp8-kv-sm80", "MODEL --kv-cache-dtype fp8", False),
        ("pp-empty-kv-group", "MODEL", None),
    ],
)
def test_missing_patches(good, missing, arguments, stops):
    found = only(
        good,
        engine.check_patches,
        arguments=start(arguments),
        engine=replace(good.engine, patches=EVERY_PATCH - {missing}),
    )
    assert [f.stops for f in found] == ([] if stops is None else [stops])
    assert all(missing in f.what for f in found)


def test_patches_of_the_series(good):
    """Every patch that a start may need is in the series."""
    from vllm_series.project import find_project

    root = Path(__file__).parents[2]
    assert set(find_project(root).series.names) >= EVERY_PATCH


def test_fit(good):
    (found,) = only(good, engine.check_fit, gpus=cards(2), arguments=start("MODEL -pp 2"))
    assert found.stops
    assert "too little" in found.what
    tight = start("MODEL -pp 4 --kv-cache-dtype fp8")
    (found,) = only(
        good,
        engine.check_fit,
        gpus=cards(4),
        arguments=tight,
        environment={"VLLM_PP_LAYER_PARTITION": "11,12,13,12"},
    )
    assert not found.stops
    (found,) = only(good, engine.check_fit, gpus=(*cards(3), *cards(1, 48)), arguments=tight)
    assert found.stops
    assert "the partition " in found.do
    assert only(good, engine.check_fit, gpus=cards(7), arguments=start("MODEL -pp 7")) == []
