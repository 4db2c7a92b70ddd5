# SPDX-License-Identifier: Apache-2.0
"""Checks of the flags and variables: what is ignored, what contradicts, what is known to fail."""

from __future__ import annotations

from vllm_series.preflight.facts import Facts, Finding, Findings
from vllm_series.sizing.partition import (
    best_partition,
    even_partition,
    find_problem,
    most_stages,
    parse_partition,
)
from vllm_series.sizing.units import GIB, thousands

_CACHE_DTYPES = ("auto", "bfloat16", "fp8", "fp8_e4m3", "int8_per_token_head")
_MAPPED_FORMATS = ("auto", "hf", "safetensors", "dummy")
#: Prefill chunk above which cards of 24 GB have run out of memory.
_CHUNK = 2048


def check_partition(facts: Facts) -> Findings:
    """The layers are split so that every stage can run."""
    text = facts.environment.get("VLLM_PP_LAYER_PARTITION")
    stages = facts.arguments.stages
    if facts.model is None:
        return
    if stages == 1:
        if text is not None:
            yield Finding(
                "partition",
                False,
                f"VLLM_PP_LAYER_PARTITION={text} without --pipeline-parallel-size",
                "it has no effect on a single stage",
                "add --pipeline-parallel-size, or unset the variable",
            )
        return
    linear, ple = facts.model.kv.linear, facts.model.kv.ple_layers
    partition = even_partition(len(linear), stages) if text is None else parse_partition(text)
    problem = (
        "it is no list of numbers" if partition is None else find_problem(linear, ple, stages, partition)
    )
    if problem is None:
        return
    works = best_partition(linear, ple, stages, lambda *_: 0)
    name = f"VLLM_PP_LAYER_PARTITION={text}" if text is not None else "vLLM's own split of the layers"
    if works is None:
        do = f"use at most {most_stages(linear, ple)} stages"
    else:
        do = f"VLLM_PP_LAYER_PARTITION={','.join(map(str, works))}"
    yield Finding(
        "partition", True, f"{name}: {problem}", "vLLM refuses it, or dies planning the KV cache", do
    )


def check_variables(facts: Facts) -> Findings:
    """No variable is set that nothing reads."""
    for name in sorted(facts.environment):
        if name.startswith("VLLM_PLE_"):
            yield Finding(
                "variables",
                False,
                f"{name} is set",
                "since 0.31 vLLM reads none of these; the setting is silently ignored",
                "--engram-config '{\"cpu_offload\": true}' pins the n-gram table, "
                "'{\"host_file_gather\": true}' leaves it on disk",
            )
    new, old = (facts.environment.get(n) for n in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"))
    if new is not None and old is not None and new != old:
        yield Finding(
            "variables",
            False,
            f"PYTORCH_ALLOC_CONF={new} and PYTORCH_CUDA_ALLOC_CONF={old}",
            "both name the allocator's settings; PyTorch takes one, vLLM looks at the other",
            "unset PYTORCH_CUDA_ALLOC_CONF, or give both the same value",
        )


def check_compilation(facts: Facts) -> Findings:
    """The compilation config comes in one form, and graphs are not asked for and forbidden at once."""
    flag = "--compilation-config"
    whole = facts.arguments.configs.get(flag, {})
    parts = facts.arguments.nested.get(flag, {})
    for key in sorted(whole.keys() & parts.keys()):
        yield Finding(
            "compilation config",
            False,
            f"{flag} sets {key} to {whole[key]}, and {flag}.{key} to {parts[key]}",
            "one of them is lost",
            "keep one of the two",
        )
    if "-O" in facts.arguments.flags and (whole or parts):
        yield Finding(
            "compilation config",
            False,
            f"both -O and {flag} are given",
            "both set the level of compilation",
            f"keep {flag}",
        )
    if "--enforce-eager" in facts.arguments.flags and any("cudagraph" in key for key in (*whole, *parts)):
        yield Finding(
            "compilation config",
            False,
            "--enforce-eager beside settings for CUDA graphs",
            "eager mode captures no graphs, so these settings have no effect",
            "leave one of them out",
        )


def check_batched_tokens(facts: Facts) -> Findings:
    """The prefill chunk is neither too small for vLLM nor too large for the cards."""
    chunk = facts.arguments.number("--max-num-batched-tokens", 0)
    if not chunk:
        return
    requests = facts.arguments.number("--max-num-seqs", 0)
    if chunk < requests:
        yield Finding(
            "batched tokens",
            True,
            f"--max-num-batched-tokens {chunk} is below --max-num-seqs {requests}",
            "vLLM refuses it: a decode step needs a token per request",
            "raise the former or lower the latter",
        )
    context = facts.arguments.context
    unchunked = facts.arguments.is_on("--enable-chunked-prefill") is False
    if unchunked and context is not None and chunk < context:
        yield Finding(
            "batched tokens",
            True,
            f"--max-num-batched-tokens {chunk} is below --max-model-len {context} without chunked prefill",
            "vLLM refuses it: a prompt must fit in one step",
            "leave --no-enable-chunked-prefill out",
        )
    small = [gpu for gpu in facts.gpus if gpu.total <= 25 * GIB]
    if chunk > _CHUNK and small:
        yield Finding(
            "batched tokens",
            False,
            f"--max-num-batched-tokens {chunk} on cards of 24 GB",
            "at 8192 the n-gram layer's convolution and the indexer have run out of memory in long prefills",
            f"--max-num-batched-tokens {_CHUNK}",
        )


def check_scheduling(facts: Facts) -> Findings:
    """Pipelines keep asynchronous scheduling."""
    if facts.arguments.stages > 1 and facts.arguments.is_on("--async-scheduling") is False:
        yield Finding(
            "scheduling",
            True,
            "--no-async-scheduling with pipeline parallelism",
            "such starts have hung receiving the first tensors (36 of 36 runs of a 4x3090 box)",
            "leave --no-async-scheduling out",
        )


def check_table_settings(facts: Facts) -> Findings:
    """``host_file_gather`` goes with the rest."""
    if not facts.arguments.table_on_disk:
        return
    config = facts.arguments.config("--engram-config")
    flags = facts.arguments.flags
    for key in ("embedding_across_dp", "dp_shared_memory", "use_thp"):
        if config.get(key) in (True, "true"):
            yield Finding(
                "n-gram table",
                True,
                f"host_file_gather with {key}",
                "vLLM refuses it: no table is in memory",
                f"leave {key} out",
            )
    if config.get("cpu_offload") in (True, "true"):
        yield Finding(
            "n-gram table",
            False,
            "host_file_gather with cpu_offload",
            "the former wins; nothing is pinned",
            "leave cpu_offload out",
        )
    form, strategy = flags.get("--load-format", "auto"), flags.get("--safetensors-load-strategy", "lazy")
    if form not in _MAPPED_FORMATS or strategy in ("eager", "torchao"):
        given = (
            f"--load-format {form}"
            if form not in _MAPPED_FORMATS
            else f"--safetensors-load-strategy {strategy}"
        )
        yield Finding(
            "n-gram table",
            True,
            f"host_file_gather with {given}",
            "rows are read through the loader's mapped files, and this copies them",
            "leave it out",
        )


def check_kv_cache(facts: Facts) -> Findings:
    """The cache's format is one that the sparse attention has, and its size is said once."""
    dtype = facts.arguments.kv_cache_dtype
    if dtype not in _CACHE_DTYPES:
        yield Finding(
            "KV cache",
            True,
            f"--kv-cache-dtype {dtype}",
            "the sparse attention of this model has no such cache",
            "auto, fp8 or int8_per_token_head",
        )
    index = facts.arguments.config("--attention-config").get("indexer_kv_dtype")
    if index == "fp8" and any(gpu.capability < (8, 9) for gpu in facts.gpus):
        yield Finding(
            "KV cache",
            True,
            "indexer_kv_dtype fp8 on a card below compute capability 8.9",
            "its kernels use FP8 instructions that the card lacks",
            "leave it out; the indexer's keys stay bf16",
        )
    if (
        "--kv-cache-memory-bytes" in facts.arguments.flags
        and "--gpu-memory-utilization" in facts.arguments.flags
    ):
        yield Finding(
            "KV cache",
            False,
            "--kv-cache-memory-bytes beside --gpu-memory-utilization",
            "the former fixes the size of the cache, the latter then only guards the start",
            "keep one",
        )


def check_context(facts: Facts) -> Findings:
    """The context is one that the model was made for."""
    context = facts.arguments.context
    stretched = (
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN" in facts.environment or "--hf-overrides" in facts.arguments.flags
    )
    if (
        facts.model is not None
        and context is not None
        and context > facts.model.max_context
        and not stretched
    ):
        yield Finding(
            "context",
            True,
            f"--max-model-len {context}, and the model was made for {thousands(facts.model.max_context)}",
            "vLLM refuses it without rope scaling",
            f"--max-model-len {facts.model.max_context}, or a config with YaRN",
        )


def check_speculation(facts: Facts) -> Findings:
    """Known traps of speculative decoding."""
    config = facts.arguments.config("--speculative-config")
    if config.get("use_local_argmax_reduction") in (True, "true"):
        yield Finding(
            "speculation",
            True,
            "use_local_argmax_reduction with this model's MTP head",
            "starts with it have crashed",
            "leave it out",
        )


def check_parallelism(facts: Facts) -> Findings:
    """Kinds of parallelism that exclude each other, or do nothing."""
    arguments = facts.arguments
    if "--enable-expert-parallel" not in arguments.flags:
        return
    copies = arguments.number("--data-parallel-size", 1)
    if arguments.stages > 1 and arguments.tensor_parallel > 1 and copies > 1:
        yield Finding(
            "parallelism",
            True,
            "expert parallelism over data and tensor parallelism, with pipeline stages",
            'vLLM splits sequences then, and refuses: "Qwen4Exp MoE SP requires PP=1"',
            "leave --data-parallel-size or --enable-expert-parallel out",
        )
    elif arguments.tensor_parallel == 1 and copies == 1:
        yield Finding(
            "parallelism",
            False,
            "--enable-expert-parallel with one card per stage",
            "there is nobody to share the experts with",
            "leave it out",
        )


def check_config_file(facts: Facts) -> Findings:
    """Flags from a file are not looked at."""
    if "--config" in facts.arguments.flags:
        yield Finding(
            "arguments",
            False,
            f"--config {facts.arguments.flags['--config']}",
            "the flags in that file were not checked",
            "write them on the command line for the check",
        )
