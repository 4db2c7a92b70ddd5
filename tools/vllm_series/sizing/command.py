# SPDX-License-Identifier: Apache-2.0
"""The command that starts what was planned, with a reason for every part of it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vllm_series.sizing.host import TablePlace
from vllm_series.sizing.kvcache import KvDtype
from vllm_series.sizing.layout import Layout
from vllm_series.sizing.model import Model
from vllm_series.sizing.weights import Weights


@dataclass(frozen=True)
class Setting:
    """An environment variable or a flag, its value (empty for a switch), and why it is there."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True)
class Start:
    """A start of ``vllm serve``.

    Attributes:
        model: The checkpoint's folder.
        environment: Variables, for every process and every box.
        flags: Flags in the order of the command line.

    """

    model: Path
    environment: tuple[Setting, ...]
    flags: tuple[Setting, ...]

    def words(self, extra: Sequence[str] = ()) -> list[str]:
        """The command as words, without the environment."""
        words = ["vllm", "serve", str(self.model)]
        for flag in self.flags:
            words += [flag.name, flag.value] if flag.value else [flag.name]
        return [*words, *extra]

    def text(self, extra: Sequence[str] = ()) -> str:
        """The command for a shell, one flag per line."""
        variables = [f"{setting.name}={shlex.quote(setting.value)}" for setting in self.environment]
        lines = [" ".join([*variables, "vllm serve", shlex.quote(str(self.model))])]
        rest = [" ".join(filter(None, (flag.name, _quoted(flag.value)))) for flag in self.flags]
        return " \\\n  ".join([*lines, *rest, *extra])


def start(model: Model, weights: Weights, layout: Layout, folder: Path, place: TablePlace) -> Start:
    """The start of a layout."""
    return Start(folder, tuple(_environment(layout)), tuple(_flags(model, weights, layout, place)))


def _environment(layout: Layout) -> Iterator[Setting]:
    if len(layout.stages) > 1:
        partition = ",".join(map(str, layout.partition))
        yield Setting("VLLM_PP_LAYER_PARTITION", partition, "layers per stage, balanced by bytes")
    yield Setting("CUDA_DEVICE_ORDER", "PCI_BUS_ID", "cards are numbered as nvidia-smi shows them")


def _flags(model: Model, weights: Weights, layout: Layout, place: TablePlace) -> Iterator[Setting]:
    request = layout.request
    stages = len(layout.stages)
    if stages > 1:
        yield Setting("--pipeline-parallel-size", str(stages), "one stage per card, or per group of cards")
    if layout.tensor_parallel > 1:
        yield Setting(
            "--tensor-parallel-size", str(layout.tensor_parallel), "stages of fewer cards hold too little"
        )
        if layout.expert_parallel:
            yield Setting(
                "--enable-expert-parallel", "", "splitting an expert would cut through a quantization group"
            )
    yield Setting("--max-model-len", str(request.context), "the context that was asked for")
    yield Setting(
        "--max-num-seqs",
        str(max(request.users, 2 * stages)),
        "a pipeline is busy only with one batch per stage; more than this takes graph memory",
    )
    yield Setting(
        "--max-num-batched-tokens",
        str(request.batched_tokens),
        "prefill chunk; its activations are reserved on every card, and 8192 has run out of memory on 24 GB",
    )
    yield Setting(
        "--gpu-memory-utilization", f"{request.utilization:g}", "vLLM's share of what CUDA gives of a card"
    )
    if request.kv is not KvDtype.BF16:
        yield Setting("--kv-cache-dtype", request.kv.argument, "nearly twice the tokens of bf16 per GiB")
    if not request.prefix_caching:
        yield Setting("--no-enable-prefix-caching", "", "requests hold one state per layer instead of two")
    if weights.table:
        yield _table(place)
    if request.draft_tokens:
        config = {"method": "mtp", "num_speculative_tokens": request.draft_tokens}
        yield Setting("--speculative-config", json.dumps(config), "the checkpoint's MTP head proposes tokens")
    if model.multimodal and request.vision:
        yield Setting(
            "--limit-mm-per-prompt",
            '{"image": 2, "video": 0}',
            "at start vLLM reserves memory for the largest input that is allowed",
        )
    elif model.multimodal:
        yield Setting("--language-model-only", "", "the vision tower is not loaded")


def _table(place: TablePlace) -> Setting:
    if place is TablePlace.DISK:
        return Setting(
            "--engram-config",
            '{"host_file_gather": true}',
            "the n-gram table stays in the checkpoint's files",
        )
    return Setting("--engram-config", '{"cpu_offload": true}', "the n-gram table is pinned in host memory")


def _quoted(value: str) -> str:
    return shlex.quote(value) if value else ""
