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
        act_order: Whether columns were reordered while groups are used (GPTQ's ``desc_act``).
        head: Whether the LM head is quantized too.
        excludes_draft: Whether a ``dynamic`` rule keeps the MTP head out of it.

    """

    method: str
    bits: int | None
    group_size: int | None
    act_order: bool = False
    head: bool = False
    excludes_draft: bool = False


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
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(
            f"{folder} has no config.json", hint="name the folder that the checkpoint was downloaded to"
        ) from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UsageError(f"{path} is no JSON: {error}", hint="download the file again") from None
    if not isinstance(values, dict):
        raise UsageError(f"{path} holds no JSON object", hint="download the file again")
    text = values.get("text_config") or values
    if not isinstance(text, dict):
        raise UsageError(f"{path}: text_config is no JSON object", hint="download the file again")
    _check_family(path, values, text)
    try:
        return _model(values, text)
    except KeyError as error:
        raise UsageError(
            f"{path} lacks {error.args[0]}", hint="compare it with the published checkpoint's config.json"
        ) from None
    except ValueError as error:
        raise UsageError(
            f"{path} cannot be understood: {error}",
            hint="compare it with the published checkpoint's config.json",
        ) from None


def _check_family(path: Path, values: Mapping[str, Any], text: Mapping[str, Any]) -> None:
    kinds = [str(values.get("model_type", "")), str(text.get("model_type", ""))]
    if any(kind.startswith("qwen3_8_flash_next") for kind in kinds):
        raise UsageError(
            f"{path} names the model type {next(filter(None, kinds))}, which vLLM has given up for qwen4_exp",
            hint="take config.json from the newest revision of the checkpoint",
        )
    named = values.get("architectures") or []
    if not isinstance(named, list):
        raise UsageError(
            f"{path}: architectures is {_shown(named)}, and no list", hint="download the file again"
        )
    if not any(name in _ARCHITECTURES for name in named) and not any(
        k.startswith("qwen4_exp") for k in kinds
    ):
        what = ", ".join(map(str, named)) or next(filter(None, kinds), "nothing")
        raise UsageError(
            f"{path} describes {what}, and only Qwen4Exp (Qwen3.8-Flash-Next) is known here",
            hint="vllm serve itself says at start what another model needs",
        )


def _model(values: Mapping[str, Any], text: Mapping[str, Any]) -> Model:
    linear = tuple(kind == "linear_attention" for kind in _list(text, "layer_types", needed=True))
    if len(linear) != _count(text, "num_hidden_layers"):
        raise ValueError(f"{len(linear)} layer_types for {text['num_hidden_layers']} layers")
    # PLE layer ids are counted from 1.
    ple_ids = _list(text, "ple_layer_ids")
    ple_layers = tuple(sorted({_whole("ple_layer_ids", ple_id) - 1 for ple_id in ple_ids}))
    if ple_layers and not 0 <= ple_layers[0] <= ple_layers[-1] < len(linear):
        raise ValueError(f"ple_layer_ids {text['ple_layer_ids']} of {len(linear)} layers")
    draft = text.get("mtp_num_hidden_layers") or _object(text, "mtp").get("num_hidden_layers") or 0
    kv = KvShape(
        linear=linear,
        ple_layers=ple_layers,
        draft_layers=_whole("mtp_num_hidden_layers", draft),
        kv_heads=_count(text, "num_key_value_heads"),
        head_dim=_count(text, "head_dim"),
        index_dim=_count(text, "indexer_head_dim"),
        compress_ratio=_count(text, "indexer_compress_ratio"),
        key_heads=_count(text, "linear_num_key_heads"),
        value_heads=_count(text, "linear_num_value_heads"),
        key_dim=_count(text, "linear_key_head_dim"),
        value_dim=_count(text, "linear_value_head_dim"),
        conv_kernel=_count(text, "linear_conv_kernel_dim", 4),
        state_bytes=_state_bytes(text.get("mamba_ssm_dtype") or "float32"),
        ple_channels=_count(text, "hc_count") * _count(text, "hidden_size"),
        ple_window=(_count(text, "ple_conv_kernel_size", 4) - 1) * _count(text, "ngram_size", 3),
    )
    return Model(
        kv=kv,
        hidden=_count(text, "hidden_size"),
        streams=_count(text, "hc_count"),
        heads=_count(text, "num_attention_heads"),
        expert_width=_count(text, "moe_intermediate_size"),
        max_context=_count(text, "max_position_embeddings"),
        quantization=_quantization(
            _object(values, "quantization_config") or _object(text, "quantization_config")
        ),
        table_dtype=text.get("ple_embedding_dtype"),
        table_parts=_whole("split_ngram_parts", text.get("split_ngram_parts") or 0),
        multimodal="vision_config" in values,
    )


def _state_bytes(dtype: object) -> int:
    if str(dtype) not in _STATE_BYTES:
        raise ValueError(f"mamba_ssm_dtype is {_shown(dtype)}")
    return _STATE_BYTES[str(dtype)]


def _count(text: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A number of the config that must be positive."""
    value = _whole(key, text[key] if default is None else text.get(key, default))
    if value <= 0:
        raise ValueError(f"{key} is {value}")
    return value


def _shown(value: object) -> str:
    """A value for a message, as JSON writes it."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _whole(key: str, value: object) -> int:
    """A number without a fraction; ``1.0`` is one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value % 1 != 0:
        raise ValueError(f"{key} is {_shown(value)}, and no whole number")
    return int(value)


def _object(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A JSON object; an empty one if there is none."""
    value = values.get(key) or {}
    if not isinstance(value, dict):
        raise ValueError(f"{key} is {_shown(value)}, and no JSON object")
    return value


def _list(values: Mapping[str, Any], key: str, *, needed: bool = False) -> list[Any]:
    """A JSON list; an empty one if there is none, unless it is needed."""
    value = values[key] if needed else values.get(key) or []
    if not isinstance(value, list):
        raise ValueError(f"{key} is {_shown(value)}, and no list")
    return value


def _quantization(values: Mapping[str, Any]) -> Quantization | None:
    if not values:
        return None
    # compressed-tensors keeps bits and groups per group of layers.
    groups = _object(values, "config_groups")
    first = _object(_object(groups, next(iter(groups))), "weights") if groups else values
    bits, group = first.get("bits", first.get("num_bits")), first.get("group_size")
    rules = values.get("dynamic") or ()
    if not isinstance(rules, (dict, list, tuple)):
        raise ValueError(f"dynamic of quantization_config is {_shown(rules)}, and no JSON object")
    return Quantization(
        str(values.get("quant_method", "unknown")),
        None if bits is None else _whole("bits of quantization_config", bits),
        None if group is None else _whole("group_size of quantization_config", group),
        act_order=bool(values.get("desc_act")) and group not in (None, -1),
        head=bool(values.get("lm_head")),
        excludes_draft=any(str(rule).startswith("-:") and "mtp" in str(rule) for rule in rules),
    )
