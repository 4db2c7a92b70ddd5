# SPDX-License-Identifier: Apache-2.0
"""What Hugging Face's implementation computes with the checkpoint: the reference, and how tight it is.

``python -m engine.reference CHECKPOINT RESULT.json`` writes, for each prompt of the standard set,

* ``logprobs``: log-probabilities of the prompt's tokens in float32;
* ``rounding``: the mean difference that bf16 makes in this very implementation. vLLM computes in bf16 and in
  another order, so it cannot be expected to be much nearer;
* ``context``: the mean difference over the second half that a lost first quarter of the prompt makes. What
  loses or mixes up a part of the context is seen if this is many times the rounding.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from engine.prompts import prompts


def logprobs(model: torch.nn.Module, prompt: list[int]) -> torch.Tensor:
    """Log-probabilities of a prompt's tokens from the second on."""
    ids = torch.tensor([prompt], device=next(model.parameters()).device)
    with torch.no_grad():
        logits = model(ids).logits[0, :-1].float()
    return torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None]).flatten().cpu()


def measure(checkpoint: Path, device: str, longest: int) -> dict[str, Any]:
    """The reference of every prompt; longer ones than ``longest`` are left out (None)."""
    from transformers import Qwen4ExpForCausalLM

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    exact = Qwen4ExpForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).to(device).eval()
    rounded = Qwen4ExpForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16).to(device).eval()
    found: dict[str, Any] = {"logprobs": [], "rounding": [], "context": []}
    for prompt in prompts("standard"):
        if len(prompt) > longest:
            for values in found.values():
                values.append(None)
            continue
        reference = logprobs(exact, prompt)
        quarter, half = max(1, len(prompt) // 4), len(prompt) // 2
        cut = logprobs(exact, prompt[quarter:])[half - quarter :]
        found["logprobs"].append([round(value, 5) for value in reference.tolist()])
        found["rounding"].append((logprobs(rounded, prompt) - reference).abs().mean().item())
        found["context"].append((cut - reference[half:]).abs().mean().item())
    return found


def main() -> None:
    """Compute and write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--longest", type=int, default=1 << 20)
    args = parser.parse_args()
    started = time.monotonic()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = measure(args.checkpoint, device, args.longest)
    seconds = {"all": round(time.monotonic() - started, 1)}
    result = {"outcome": "finished", "error": "", "steps": [], "seconds": seconds, "reference": found}
    args.result.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
