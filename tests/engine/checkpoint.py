# SPDX-License-Identifier: Apache-2.0
"""The tiny random model of the engine's tests, and what Hugging Face's implementation computes with it.

``python -m engine.checkpoint FOLDER`` writes it. Eight layers in the pattern of the real model, with its
head sizes where the kernels depend on them, an MTP head, and a PLE in the second layer.

A random model amplifies rounding, most of all where something is chosen: which experts, which tokens.
So every token goes to all experts here, and up to 2,048 tokens the indexer selects all. The scale of the
weights is one at which rounding changes little and a lost part of the context much; ``reference.py``
measures both.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from startup.checkpoints import Checkpoint, tiny_config, write_bf16

LAYERS = 8
STD, HEAD_STD = 0.02, 0.6
EXPERTS = 8


def write(folder: Path) -> Checkpoint:
    """Write the checkpoint into a new folder."""
    config = tiny_config(
        LAYERS,
        num_attention_heads=12,
        num_key_value_heads=1,
        head_dim=256,
        num_experts=EXPERTS,
        num_experts_per_tok=EXPERTS,
        # The GPU's top-k kernel takes 512 of the 4-token groups, not fewer.
        indexer_budget=2048,
        max_position_embeddings=8192,
        rope_parameters={"rope_theta": 10000.0, "rope_type": "default", "partial_rotary_factor": 0.25},
    )
    return write_bf16(folder, config, std=STD, head_std=HEAD_STD)


def main() -> None:
    """Write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    found = write(args.folder)
    print(f"{found.num_layers} layers, {len(found.tensors)} tensors")


if __name__ == "__main__":
    main()
