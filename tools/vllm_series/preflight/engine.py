# SPDX-License-Identifier: Apache-2.0
"""Checks of the vLLM about to run: which package it is, which patches it has, and whether the model fits."""

from __future__ import annotations

from dataclasses import replace

from vllm_series.preflight.facts import Facts, Finding, Findings
from vllm_series.preflight.machine import DEFAULT_UTILIZATION
from vllm_series.sizing.advice import refusal
from vllm_series.sizing.cards import card
from vllm_series.sizing.kvcache import KvDtype
from vllm_series.sizing.layout import Request, lay_out, tensor_sizes
from vllm_series.sizing.partition import even_partition, find_problem, parse_partition
from vllm_series.sizing.patches import Configuration, needed

_DTYPES = {
    "auto": KvDtype.BF16,
    "bfloat16": KvDtype.BF16,
    "fp8": KvDtype.FP8,
    "fp8_e4m3": KvDtype.FP8,
    "int8_per_token_head": KvDtype.INT8,
}


def check_shadow(facts: Facts) -> Findings:
    """No package ``vllm`` in the current folder takes the place of the installed one."""
    if facts.shadow is not None and (facts.engine is None or facts.shadow.parent != facts.engine.folder):
        other = facts.engine.folder / "vllm" if facts.engine else "the installed one"
        yield Finding(
            "package",
            True,
            f"{facts.shadow} would shadow {other}",
            "vLLM looks at models in a child process whose path begins with the current folder",
            "start from another folder",
        )


def check_engine(facts: Facts) -> Findings:
    """There is a vLLM."""
    if facts.engine is None:
        yield Finding(
            "package",
            True,
            "no vLLM was found beside this Python, behind the command vllm, or where --vllm says",
            "there is nothing to start",
            "name its checkout or site-packages folder with --vllm",
        )


def check_patches(facts: Facts) -> Findings:
    """The patches that this start needs are there."""
    if facts.engine is None:
        return
    for need in needed(configuration(facts)):
        if need.patch not in facts.engine.patches:
            yield Finding(
                "patches",
                need.required,
                f"{facts.engine.folder} lacks {need.patch}",
                need.without,
                f"vllm-series pick {need.patch} in a checkout, vllm-series overlay --site-packages in an "
                "installed vLLM",
            )


def configuration(facts: Facts) -> Configuration:
    """What of the start decides which patches matter."""
    quantization = facts.model.quantization if facts.model else None
    weights = facts.weights
    return Configuration(
        stages=facts.arguments.stages,
        draft=facts.arguments.draft_tokens > 0,
        kv_cache_dtype="auto" if _DTYPES.get(facts.arguments.kv_cache_dtype) is KvDtype.BF16 else
        facts.arguments.kv_cache_dtype,
        quantization=quantization.method if quantization else None,
        plain_indexer=quantization is not None and weights is not None and weights.plain_indexer,
        quantized_draft=weights is not None and weights.quantized_draft,
        table_on_disk=facts.arguments.table_on_disk,
        kv_offload="--kv-offloading-size" in facts.arguments.flags,
        capability=min((gpu.capability for gpu in facts.gpus), default=None),
    )  # fmt: skip


def check_fit(facts: Facts) -> Findings:
    """The model fits the cards as ``vllm-series plan`` counts."""
    arguments, model, weights = facts.arguments, facts.model, facts.weights
    kv = _DTYPES.get(arguments.kv_cache_dtype)
    count = arguments.stages * arguments.tensor_parallel
    nodes = max(arguments.number("--nnodes", 1), 1)
    if model is None or weights is None or kv is None or len(facts.gpus) < count // nodes or count % nodes:
        return
    request = Request(
        cards=tuple(card(gpu.name, gpu.total) for gpu in facts.gpus[: count // nodes]) * nodes,
        nodes=nodes,
        context=arguments.context or model.max_context,
        kv=kv,
        draft_tokens=arguments.draft_tokens,
        vision=model.multimodal and "--language-model-only" not in arguments.flags,
        batched_tokens=arguments.number("--max-num-batched-tokens", 2048),
        utilization=arguments.share("--gpu-memory-utilization", DEFAULT_UTILIZATION),
        tensor_parallel=arguments.tensor_parallel,
        prefix_caching=arguments.is_on("--enable-prefix-caching") is not False,
    )
    text = facts.environment.get("VLLM_PP_LAYER_PARTITION")
    partition = parse_partition(text) if text else even_partition(model.layers, arguments.stages)
    if partition is None or not list(tensor_sizes(model, request)):
        return
    if find_problem(model.kv.linear, model.kv.ple_layers, arguments.stages, partition):
        return
    request = replace(request, partition=partition)
    layout = lay_out(model, weights, request, arguments.tensor_parallel, partition)
    if not layout.fits:
        error = refusal(model, weights, layout)
        yield Finding(
            "fit",
            layout.tightest.free < 0,
            error.message,
            "vLLM stops at start when one full context does not fit; reserves are estimated here",
            error.hint,
        )
