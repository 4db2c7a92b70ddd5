# SPDX-License-Identifier: Apache-2.0
"""Which patches of the series a configuration needs, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Configuration:
    """The choices that decide which patches matter.

    Attributes:
        stages: Pipeline stages.
        draft: Whether the MTP head is used.
        kv_cache_dtype: The value of ``--kv-cache-dtype``.
        quantization: vLLM's name of the body's method, None for bf16.
        plain_indexer: Whether the body is quantized and the indexer is not.
        quantized_draft: Whether the MTP head is quantized.
        table_on_disk: Whether rows of the n-gram table are read from the files.
        kv_offload: Whether blocks also go to host memory.
        capability: Compute capability of the cards, None if unknown.

    """

    stages: int = 1
    draft: bool = False
    kv_cache_dtype: str = "auto"
    quantization: str | None = None
    plain_indexer: bool = False
    quantized_draft: bool = False
    table_on_disk: bool = False
    kv_offload: bool = False
    capability: tuple[int, int] | None = None


@dataclass(frozen=True)
class Need:
    """A patch, what happens without it, and whether the start depends on it."""

    patch: str
    without: str
    required: bool


def needed(c: Configuration) -> Iterator[Need]:
    """The patches that matter for a configuration, in the order of the series."""
    piped = c.stages > 1
    old = c.capability is None or c.capability < (8, 9)
    if piped:
        yield Need("pp-empty-kv-group", "every stage but the first dies at start with StopIteration", True)
        yield Need("pp-partition-check", "pipeline parallelism is refused for this model", True)
        if c.draft:
            yield Need("pp-mtp-last-stage", "the MTP head fails an assertion on its first run", True)
    if c.plain_indexer:
        yield Need("gptq-mixed-indexer", "a quantized body with a bf16 indexer cannot be loaded", True)
    if c.quantized_draft and c.draft and c.quantization == "gptq":
        yield Need("gptq-mtp-block-names", "a quantized MTP head cannot be loaded", True)
    if piped:
        yield Need("pp-embed-head-only-where-used", "every stage holds the embedding and the LM head", False)
        if c.kv_offload:
            yield Need("offload-equal-block-bytes", "unequal stages overwrite each other's blocks", True)
        yield Need(
            "pp-handler-stream", "without pynccl a stage may send tokens that are not written yet", False
        )
    if c.table_on_disk:
        yield Need("ple-host-file-gather", "vLLM knows no host_file_gather and refuses --engram-config", True)
    if c.kv_cache_dtype == "int8_per_token_head":
        yield Need("qsa-int8-kv", "int8 keys and values are refused for this model", True)
    if c.kv_cache_dtype.startswith("fp8") and old:
        yield Need("qsa-fp8-kv-sm80", "fp8 writes need FlashInfer and many launches below sm_89", False)
    if c.kv_cache_dtype != "auto":
        yield Need("qsa-8bit-operands", "8-bit caches are read slowly", False)
        if c.capability == (8, 6):
            yield Need(
                "qsa-sm86-configs", "8-bit prefill uses block shapes that were made for other cards", False
            )
