# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint's ``config.json`` says about the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_series.errors import UsageError
from vllm_series.sizing.kvcache import KvShape

_ARCHITECTURES = ("Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration")
_STATE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True)
class Quantization:
    """How the body of a checkpoint is quantized.

    Attributes:
        method: vLLM's name, such as ``gptq``.
        bits: Bits per weight, None if the config does not say.
        group_size: Weights per scale, None if the config does not say.

    """

    method: str
    bits: int | None
    group_size: int | None


@dataclass(frozen=True)
class Model:
    """A model of the Qwen4Exp family.

    Attributes:
        kv: The dimensions that its caches depend on.
        hidden: Width of a hidden stream.
        streams: Hidden streams (hyper-connections) that pass from layer to layer.
        heads: Query heads of a sparse-attention layer.
        expert_width: Intermediate size of an expert.
        max_context: Tokens that the model was made for.
        quantization: Of the body, None if it is bf16.
        table_dtype: Format that the config gives the n-gram table, None if it says nothing.
        table_parts: Shards that the n-gram table comes in.
        multimodal: Whether it has a vision tower.

    """

    kv: KvShape
    hidden: int
    streams: int
    heads: int
    expert_width: int
    max_context: int
    quantization: Quantization | None
    table_dtype: str | None
    table_parts: int
    multimodal: bool

    @property
    def layers(self) -> int:
        """Decoder layers."""
        return len(self.kv.linear)

    @property
    def stream_bytes(self) -> int:
        """What one token carries from one pipeline stage to the next, in bf16."""
        return self.streams * self.hidden * 2


def read_model(folder: Path) -> Model:
    """Read ``config.json``.

    Raises:
        UsageError: There is none, it cannot be read, or the model is another one.

    """
    path = folder / "config.json"
    try:
        values = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UsageError(
            f"{folder} has no config.json", hint="name the folder that the checkpoint was downloaded to"
        ) from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UsageError(f"{path} is no JSON: {error}", hint="download the file again") from None
    if not isinstance(values, dict):
        raise UsageError(f"{path} holds no JSON object", hint="download the file again")
    text = values.get("text_config", values)
    _check_family(path, values, text)
    try:
        return _model(values, text)
    except KeyError as error:
        raise UsageError(
            f"{path} lacks {error.args[0]}", hint="compare it with the published checkpoint's config.json"
        ) from None
    except (TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{path} cannot be understood: {error}") from None


def _check_family(path: Path, values: Mapping[str, Any], text: Mapping[str, Any]) -> None:
    kinds = [str(values.get("model_type", "")), str(text.get("model_type", ""))]
    if any(kind.startswith("qwen3_8_flash_next") for kind in kinds):
        raise UsageError(
            f"{path} names the model type {next(filter(None, kinds))}, which vLLM has given up for qwen4_exp",
            hint="take config.json from the newest revision of the checkpoint",
        )
    named = values.get("architectures") or []
    if not any(name in _ARCHITECTURES for name in named) and not any(
        k.startswith("qwen4_exp") for k in kinds
    ):
        what = ", ".join(map(str, named)) or next(filter(None, kinds), "nothing")
        raise UsageError(
            f"{path} describes {what}, and this plan is for Qwen4Exp (Qwen3.8-Flash-Next) alone",
            hint="vllm serve itself says at start what another model needs",
        )


def _model(values: Mapping[str, Any], text: Mapping[str, Any]) -> Model:
    linear = tuple(kind == "linear_attention" for kind in text["layer_types"])
    if len(linear) != int(text["num_hidden_layers"]):
        raise ValueError(f"{len(linear)} layer_types for {text['num_hidden_layers']} layers")
    draft = text.get("mtp_num_hidden_layers") or (text.get("mtp") or {}).get("num_hidden_layers") or 0
    kv = KvShape(
        linear=linear,
        # PLE layer ids are counted from 1.
        ple_layers=tuple(sorted(int(ple_id) - 1 for ple_id in set(text.get("ple_layer_ids") or ()))),
        draft_layers=int(draft),
        kv_heads=int(text["num_key_value_heads"]),
        head_dim=int(text["head_dim"]),
        index_dim=int(text["indexer_head_dim"]),
        compress_ratio=int(text["indexer_compress_ratio"]),
        key_heads=int(text["linear_num_key_heads"]),
        value_heads=int(text["linear_num_value_heads"]),
        key_dim=int(text["linear_key_head_dim"]),
        value_dim=int(text["linear_value_head_dim"]),
        conv_kernel=int(text.get("linear_conv_kernel_dim", 4)),
        state_bytes=_STATE_BYTES[str(text.get("mamba_ssm_dtype") or "float32")],
        ple_channels=int(text["hc_count"]) * int(text["hidden_size"]),
        ple_window=(int(text.get("ple_conv_kernel_size", 4)) - 1) * int(text.get("ngram_size", 3)),
    )
    return Model(
        kv=kv,
        hidden=int(text["hidden_size"]),
        streams=int(text["hc_count"]),
        heads=int(text["num_attention_heads"]),
        expert_width=int(text["moe_intermediate_size"]),
        max_context=int(text["max_position_embeddings"]),
        quantization=_quantization(values.get("quantization_config") or text.get("quantization_config")),
        table_dtype=text.get("ple_embedding_dtype"),
        table_parts=int(text.get("split_ngram_parts", 0)),
        multimodal="vision_config" in values,
    )


def _quantization(values: Mapping[str, Any] | None) -> Quantization | None:
    if not values:
        return None
    # compressed-tensors keeps bits and groups per group of layers.
    groups: Mapping[str, Any] = values.get("config_groups") or {"": {"weights": values}}
    first = next(iter(groups.values())).get("weights") or {}
    bits, group = first.get("bits", first.get("num_bits")), first.get("group_size")
    return Quantization(
        str(values.get("quant_method", "unknown")),
        None if bits is None else int(bits),
        None if group is None else int(group),
    )
