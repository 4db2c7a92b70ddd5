# SPDX-License-Identifier: Apache-2.0
"""Tiny random Qwen4Exp checkpoints as files on disk.

Transformers builds the model and writes it in the layout of the published checkpoints (one tensor
per expert, the n-gram table in shards). Transformers knows no MTP head, so its tensors are added
here under the names that vLLM's ``qwen4_exp/nvidia/mtp.py`` reads. The GPTQ form is a
round-to-nearest quantization of the same tensors in the layout that gptqmodel writes for
``desc_act=false, sym=true``; it is good enough to run, not to judge quality by.

This module needs torch, transformers and safetensors, and no vLLM.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import Qwen4ExpForCausalLM, Qwen4ExpTextConfig

INDEX = "model.safetensors.index.json"
GPTQ_BITS = 4
GPTQ_GROUP_SIZE = 128
FP8_SCALE = 0.25

_NIBBLES = 32 // GPTQ_BITS
_ZERO_POINT = 8

#: Last name parts of the linear layers that a GPTQ run quantizes. The router, the shared expert's
#: gate, the two narrow GDN projections, the hyper-connections, the indexer, the whole PLE layer,
#: ``embed_tokens`` and ``lm_head`` keep their format.
GPTQ_LAYERS = frozenset(
    {
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "in_proj_qkv",
        "in_proj_z",
        "out_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    }
)


class MtpFormat(Enum):
    """How the MTP head of a GPTQ checkpoint is stored.

    A plain head needs a ``dynamic`` rule: the list of quantized modules decides for linear layers
    only, and vLLM takes all experts for quantized where no rule says otherwise.
    """

    PLAIN = "bf16"
    QUANTIZED = "gptq"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder. ``tensors`` maps each name to (safetensors dtype, shape)."""

    path: Path
    num_layers: int
    tensors: Mapping[str, tuple[str, tuple[int, ...]]]


def tiny_config(num_layers: int = 24, **overrides: object) -> Qwen4ExpTextConfig:
    """Return a small text config with every kind of layer that the real model has.

    Layers follow the 3:1 pattern of Qwen3.8-Flash-Next: layer indices 3, 7, 11, ... are sparse
    attention, the others GDN. ``ple_layer_ids`` is 1-based, so id 2 is layer index 1. All head
    sizes are ones that the GPU kernels accept too (attention 128, GDN 128, indexer 128).

    Args:
        num_layers: Decoder layers, a multiple of 4.
        overrides: Config fields that replace the defaults.
    """
    kinds = ["linear_attention"] * 3 + ["qwen_sparse_attention"]
    fields: dict[str, object] = {
        "architectures": ["Qwen4ExpForCausalLM"],
        "vocab_size": 512,
        "hidden_size": 256,
        "num_hidden_layers": num_layers,
        "layer_types": kinds * (num_layers // len(kinds)),
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 128,
        # vLLM wants the gate named. Set afterwards, Hugging Face and vLLM compute different models.
        "output_gate_type": "sigmoid",
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "shared_expert_intermediate_size": 128,
        "hc_count": 4,
        "hc_lowrank": 32,
        "ple_layer_ids": [2],
        "ple_embed_dim": 256,
        "ple_conv_kernel_size": 4,
        "ngram_size": 3,
        "heads_per_ngram": 8,
        "ngram_vocab_size_base": 1000,
        "make_ngram_vocab_size_divisible_by": 128,
        "split_ngram_parts": 4,
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 128,
        "indexer_budget": 512,
        # With MTP the indexer's ring holds 8 tokens, and vLLM asks that this divides a KV block.
        "indexer_compress_ratio": 4,
        "mtp_num_hidden_layers": 1,
        "max_position_embeddings": 4096,
        "rope_parameters": {
            "rope_theta": 10000.0,
            "rope_type": "default",
            "partial_rotary_factor": 0.5,
        },
        "bos_token_id": 0,
        "eos_token_id": 1,
        "dtype": "bfloat16",
    }
    return Qwen4ExpTextConfig(**(fields | overrides))


def write_bf16(
    folder: Path, config: Qwen4ExpTextConfig, *, seed: int = 0, std: float = 0.05, head_std: float = 0.6
) -> Checkpoint:
    """Write a random bf16 checkpoint with an MTP head.

    Args:
        folder: The folder.
        config: The model.
        seed: Of the weights.
        std: Standard deviation of matrices; norms keep their initial values.
        head_std: That of ``lm_head``; it makes greedy tokens distinct.
    """
    generator = torch.Generator().manual_seed(seed)
    model = Qwen4ExpForCausalLM(config).to(torch.bfloat16)
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2:
            own = head_std if name.startswith("lm_head") else std
            parameter.data.normal_(std=own, generator=generator)
    model.save_pretrained(folder, max_shard_size="4MB")

    shapes = {name: shape for name, (_, shape) in _read_header(folder).items()}
    mtp = {name: _random(shape, generator) for name, shape in mtp_shapes(config, shapes).items()}
    save_file(mtp, folder / "mtp.safetensors", metadata={"format": "pt"})
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"].update(dict.fromkeys(mtp, "mtp.safetensors"))
    (folder / INDEX).write_text(json.dumps(index, indent=2))
    return read_checkpoint(folder)


def write_gptq(folder: Path, source: Checkpoint, *, mtp: MtpFormat = MtpFormat.PLAIN) -> Checkpoint:
    """Write ``source`` (bf16) as a 4-bit GPTQ checkpoint with bf16 PLE and indexer."""
    folder.mkdir(parents=True)
    quantized_modules: list[str] = []
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(sorted(source.path.glob("*.safetensors"))):
        tensors: dict[str, torch.Tensor] = {}
        with safe_open(shard, "pt") as file:
            for name in file.keys():  # noqa: SIM118  safe_open is no mapping
                tensor = file.get_tensor(name)
                if not is_gptq_weight(name, mtp):
                    tensors[name] = tensor
                    continue
                module = name.removesuffix(".weight")
                quantized_modules.append(module)
                tensors.update({f"{module}.{k}": v for k, v in quantize(tensor).items()})
        out = f"model-{number:05d}.safetensors"
        save_file(tensors, folder / out, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(tensors, out))

    quantization = {
        "quant_method": "gptq",
        "checkpoint_format": "gptq",
        "bits": GPTQ_BITS,
        "group_size": GPTQ_GROUP_SIZE,
        "desc_act": False,
        "sym": True,
        "lm_head": False,
        "dynamic": {"-:.*mtp.*": {}} if mtp is MtpFormat.PLAIN else {},
    }
    config = json.loads((source.path / "config.json").read_text())
    config["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "quantize_config.json").write_text(json.dumps(quantization, indent=2))
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}, indent=2))
    return read_checkpoint(folder)


def write_fp8_table(folder: Path, source: Checkpoint, *, declared: bool) -> Checkpoint:
    """Write ``source`` with its n-gram table in FP8 and one global scale.

    Args:
        folder: New folder.
        source: A checkpoint with a bf16 table.
        declared: Whether ``ple_embedding_dtype`` in the config says so.
    """
    folder.mkdir(parents=True)
    weight_map: dict[str, str] = {}
    for shard in sorted(source.path.glob("*.safetensors")):
        tensors: dict[str, torch.Tensor] = {}
        with safe_open(shard, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                tensor = file.get_tensor(name)
                table, found, _ = name.partition(".shard_")
                if found:
                    tensor = (tensor.float() / FP8_SCALE).to(torch.float8_e4m3fn)
                    tensors[f"{table}.weight_scale"] = torch.tensor([FP8_SCALE])
                tensors[name] = tensor
        tensors = {name: value for name, value in tensors.items() if name not in weight_map}
        save_file(tensors, folder / shard.name, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(tensors, shard.name))
    config = json.loads((source.path / "config.json").read_text())
    if declared:
        config["ple_embedding_dtype"] = "float8_e4m3fn"
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}, indent=2))
    return read_checkpoint(folder)


def read_checkpoint(folder: Path) -> Checkpoint:
    """Describe the checkpoint in ``folder``."""
    config = json.loads((folder / "config.json").read_text())
    return Checkpoint(folder, int(config["num_hidden_layers"]), _read_header(folder))


def is_gptq_weight(name: str, mtp: MtpFormat) -> bool:
    """Tell whether the GPTQ form stores tensor ``name`` in 4 bits."""
    if name.startswith("mtp.") and mtp is MtpFormat.PLAIN:
        return False
    module, _, leaf = name.rpartition(".")
    return leaf == "weight" and module.rpartition(".")[2] in GPTQ_LAYERS


def mtp_shapes(
    config: Qwen4ExpTextConfig, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of the MTP head's tensors.

    The head is one sparse-attention decoder layer, two H x H projections with their norms (H for
    the embedding, hc_count * H for the hidden streams) and a final hyper-connection mixer. Names
    are those of ``Qwen4ExpMultiTokenPredictor`` in vLLM's ``qwen4_exp/nvidia/mtp.py``.

    Args:
        config: The target's config.
        shapes: Shapes of the target's tensors by name.
    """
    hidden = config.hidden_size
    like = f"model.layers.{config.layer_types.index('qwen_sparse_attention')}."
    mixer = "model.hyper_connection_mixer."
    head = {
        "mtp.fc_embedding.weight": (hidden, hidden),
        "mtp.fc_hidden.weight": (hidden, hidden),
        "mtp.pre_fc_norm_embedding.weight": (hidden,),
        "mtp.pre_fc_norm_hidden.weight": (config.hc_count * hidden,),
    }
    for name, shape in shapes.items():
        if name.startswith(like):
            head["mtp.layers.0." + name.removeprefix(like)] = shape
        elif name.startswith(mixer):
            head["mtp.hyper_connection_mixer." + name.removeprefix(mixer)] = shape
    return head


def quantize(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """Round a weight [out, in] to 4 bits in gptqmodel's layout.

    Returns:
        ``qweight`` int32 [in / 8, out] (the lowest nibble is the first input), ``qzeros`` int32
        [groups, out / 8] (zero point minus one, as format "gptq" stores it), ``scales`` fp16
        [groups, out] and ``g_idx`` int32 [in].

    """
    out_size, in_size = weight.shape
    groups = in_size // GPTQ_GROUP_SIZE
    columns = weight.float().t().reshape(groups, GPTQ_GROUP_SIZE, out_size)
    scales = (columns.abs().amax(1) / (_ZERO_POINT - 1)).clamp_min(1e-6).half()
    levels = torch.round(columns / scales.float()[:, None]) + _ZERO_POINT
    levels = levels.clamp(0, 2**GPTQ_BITS - 1).to(torch.int32).reshape(in_size, out_size)
    zeros = torch.full((groups, out_size), _ZERO_POINT - 1, dtype=torch.int32)
    return {
        "qweight": _pack(levels.t()).t().contiguous(),
        "qzeros": _pack(zeros),
        "scales": scales.contiguous(),
        "g_idx": torch.arange(in_size, dtype=torch.int32) // GPTQ_GROUP_SIZE,
    }


def _pack(levels: torch.Tensor) -> torch.Tensor:
    """Pack 4-bit values, int32 [rows, n], into int32 [rows, n / 8], lowest nibble first."""
    nibbles = levels.reshape(levels.shape[0], -1, _NIBBLES)
    words = torch.zeros(nibbles.shape[:2], dtype=torch.int32)
    for position in range(_NIBBLES):
        words |= nibbles[:, :, position] << (GPTQ_BITS * position)
    return words


def _random(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    tensor = torch.empty(shape)
    if len(shape) == 1:
        # GemmaRMSNorm multiplies by 1 + weight.
        return tensor.zero_().to(torch.bfloat16)
    return tensor.normal_(std=0.05, generator=generator).to(torch.bfloat16)


def _read_header(folder: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: entry for file in folder.glob("*.safetensors") for name, entry in _entries(file)}


def _entries(path: Path) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
    with safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118
            view = file.get_slice(name)
            yield name, (view.get_dtype(), tuple(view.get_shape()))
