# SPDX-License-Identifier: Apache-2.0
"""Qwen3.8-Flash-Next as files: its config and the names, types and shapes of its tensors, without contents.

The files are sparse: they have the size of the real ones and take no space. The experts of a layer are one
tensor here and 1536 in the published checkpoints; the bytes are the same.
"""

from __future__ import annotations

import json
import struct
from math import prod
from pathlib import Path

LAYERS = 48
HIDDEN = 2560
VOCAB = 248_320
EXPERTS = 512
EXPERT_WIDTH = 640
STREAMS = 4 * HIDDEN
PARTS = 128
ROWS = 320_001_536
ROW = 160

Specs = dict[str, tuple[str, tuple[int, ...]]]

CONFIG = {
    "architectures": ["Qwen4ExpForConditionalGeneration"],
    "model_type": "qwen4_exp",
    "vision_config": {"model_type": "qwen4_exp_vision"},
    "text_config": {
        "model_type": "qwen4_exp_text",
        "num_hidden_layers": LAYERS,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * (LAYERS // 4),
        "hidden_size": HIDDEN,
        "vocab_size": VOCAB,
        "num_attention_heads": 24,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "mamba_ssm_dtype": "float32",
        "moe_intermediate_size": EXPERT_WIDTH,
        "num_experts": EXPERTS,
        "hc_count": 4,
        "ple_layer_ids": [2],
        "ple_conv_kernel_size": 4,
        "ngram_size": 3,
        "split_ngram_parts": PARTS,
        "indexer_head_dim": 128,
        "indexer_compress_ratio": 4,
        "mtp_num_hidden_layers": 1,
        "max_position_embeddings": 262_144,
    },
}


def four_bit(name: str, out: int, inner: int, group: int, *, zeros: bool) -> Specs:
    """A matrix in 4 bits, as GPTQ writes it."""
    specs: Specs = {
        f"{name}.qweight": ("I32", (inner // 8, out)),
        f"{name}.scales": ("F16", (inner // group, out)),
        f"{name}.g_idx": ("I32", (inner,)),
    }
    return specs | ({f"{name}.qzeros": ("I32", (inner // group, out // 8))} if zeros else {})


def plain(name: str, *shape: int, dtype: str = "BF16") -> Specs:
    return {name: (dtype, shape)}


def layer(prefix: str, sparse: bool, form: str) -> Specs:
    """One decoder layer: ``gptq`` has 4-bit experts and attention, ``mixed`` also 8-bit GDN projections."""
    group, zeros = (32, True) if form == "gptq" else (128, False)
    dense = "I8" if form == "mixed" else "BF16"

    def linear(name: str, out: int, inner: int, copies: int = 1) -> Specs:
        if form == "bf16":
            return plain(f"{name}.weight", copies * out, inner)
        return four_bit(name, copies * out, inner, group, zeros=zeros)

    specs: Specs = {}
    if sparse:
        attention = f"{prefix}self_attn."
        for name, out in (("q_proj", 12_288), ("k_proj", 512), ("v_proj", 512)):
            specs |= linear(attention + name, out, HIDDEN)
        specs |= linear(f"{attention}o_proj", HIDDEN, 6144)
        specs |= plain(f"{attention}indexer.index_qk_proj.weight", 640, HIDDEN)
    else:
        gdn = f"{prefix}linear_attn."
        specs |= plain(f"{gdn}in_proj_qkv.weight", 10_240, HIDDEN, dtype=dense)
        specs |= plain(f"{gdn}in_proj_z.weight", 6144, HIDDEN, dtype=dense)
        specs |= plain(f"{gdn}out_proj.weight", HIDDEN, 6144, dtype=dense)
        specs |= plain(f"{gdn}in_proj_a.weight", 48, HIDDEN) | plain(f"{gdn}in_proj_b.weight", 48, HIDDEN)
        specs |= plain(f"{gdn}conv1d.weight", 10_240, 1, 4)
    specs |= plain(f"{prefix}mlp.gate.weight", EXPERTS, HIDDEN)
    specs |= linear(f"{prefix}mlp.experts.gate_up_proj", 2 * EXPERT_WIDTH, HIDDEN, EXPERTS)
    specs |= linear(f"{prefix}mlp.experts.down_proj", HIDDEN, EXPERT_WIDTH, EXPERTS)
    for name, out, inner in (("gate", EXPERT_WIDTH, HIDDEN), ("up", EXPERT_WIDTH, HIDDEN)):
        specs |= linear(f"{prefix}mlp.shared_expert.{name}_proj", out, inner)
    specs |= linear(f"{prefix}mlp.shared_expert.down_proj", HIDDEN, EXPERT_WIDTH)
    for name in ("attn_hyper_connection", "mlp_hyper_connection"):
        specs |= mixer(f"{prefix}{name}.")
        specs |= plain(f"{prefix}{name}.block_inject_weight.weight", 4, STREAMS)
    return specs


def mixer(prefix: str) -> Specs:
    return (
        plain(f"{prefix}hc_norm.weight", STREAMS)
        | plain(f"{prefix}input_mix_weight_down.weight", 320, STREAMS)
        | plain(f"{prefix}input_mix_weight_up.weight", STREAMS, 320)
    )


def files(form: str, *, table: str = "BF16", vision: bool = True, mtp: bool = True) -> dict[str, Specs]:
    """The checkpoint's tensors, file by file."""
    root = "model.language_model."
    ple = f"{root}layers.1.ple."
    found: dict[str, Specs] = {
        f"model-{number:05d}.safetensors": layer(f"{root}layers.{number}.", number % 4 == 3, form)
        for number in range(LAYERS)
    }
    rows = -(-ROWS // PARTS)
    found["model-table.safetensors"] = {
        f"{ple}ple_embedding.ngram_embedding.shard_{part}.weight": (
            table,
            (min(rows, ROWS - part * rows), ROW),
        )
        for part in range(PARTS)
    }
    found["model-rest.safetensors"] = (
        plain(f"{root}embed_tokens.weight", VOCAB, HIDDEN)
        | plain("lm_head.weight", VOCAB, HIDDEN)
        | plain(f"{ple}key_proj.weight", STREAMS, HIDDEN)
        | plain(f"{ple}value_proj.weight", HIDDEN, HIDDEN)
        | plain(f"{ple}conv1d.weight", STREAMS, 1, 4)
        | plain(f"{ple}ple_embedding.layer_multipliers", 3, dtype="I64")
        | mixer(f"{root}hyper_connection_mixer.")
        | (
            plain("model.visual.blocks.0.mlp.linear_fc1.weight", 550_000_000 // HIDDEN, HIDDEN)
            if vision
            else {}
        )
    )
    if mtp:
        found["mtp.safetensors"] = (
            plain("mtp.fc_embedding.weight", HIDDEN, HIDDEN)
            | plain("mtp.fc_hidden.weight", HIDDEN, HIDDEN)
            | layer("mtp.layers.0.", True, "bf16")
            | mixer("mtp.hyper_connection_mixer.")
        )
    return found


def write_file(path: Path, specs: Specs) -> None:
    """A safetensors file whose contents are a hole."""
    sizes = {"BF16": 2, "F16": 2, "I32": 4, "I8": 1, "F8_E4M3": 1, "I64": 8}
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in specs.items():
        start, end = end, end + sizes[dtype] * prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    raw = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + end)


def write_checkpoint(folder: Path, form: str, **options: object) -> Path:
    """Write a whole checkpoint; ``form`` is bf16, gptq or mixed."""
    folder.mkdir(parents=True, exist_ok=True)
    quantization = {"quant_method": "gptq", "bits": 4, "group_size": 32 if form == "gptq" else 128}
    extra = {} if form == "bf16" else {"quantization_config": quantization | {"sym": True, "desc_act": False}}
    (folder / "config.json").write_text(json.dumps(CONFIG | extra))
    found = files(form, **options)  # type: ignore[arg-type]
    for name, specs in found.items():
        write_file(folder / name, specs)
    index = {name: file for file, specs in found.items() for name in specs}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder
