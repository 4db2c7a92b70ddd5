# SPDX-License-Identifier: Apache-2.0
"""`host_file_gather` on one GPU: fixed staging address, full-graph replay, cost per step.

    PYTHONPATH=<vLLM tree with the patch> python ci/gpu_ple.py [--size-gb 2] [--json FILE]

Needs torch 2.11 or newer with CUDA, triton, and transformers with Qwen4Exp. The class, the id hash
(Triton) and the loader are Python; vLLM's compiled libraries are imported and none of their operators
is called. Prints JSON and exits with 1 when a check fails.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

import bench_ple  # noqa: E402
import torch  # noqa: E402

CONTEXT = 2  # ngram_size - 1
EOS = 1


class Step:
    """Persistent inputs of one step, as the model runner keeps them."""

    def __init__(self, module: Any, tokens: int) -> None:
        self.module = module
        self.input_ids = torch.zeros(tokens, dtype=torch.int32, device="cuda")
        self.query_start_loc = torch.tensor([0, tokens], dtype=torch.int32, device="cuda")
        self.context = torch.full((1, CONTEXT), EOS, dtype=torch.int32, device="cuda")

    def stage(self, seed: int) -> torch.Tensor:
        """Draw new tokens, stage their rows, and return the row ids."""
        from vllm.models.qwen4_exp.nvidia.ngram_embedding import stage_checkpoint_rows

        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(2, 248320, self.input_ids.shape, generator=generator)
        self.input_ids.copy_(tokens)
        args = (self.input_ids, self.query_start_loc, self.context)
        stage_checkpoint_rows([self.module], *args)
        return self.module.compute_ngram_ids(*args).cpu()

    def forward(self) -> torch.Tensor:
        """Run what the PLE layer runs inside the captured region."""
        hidden = torch.empty(0, device="cuda")
        args = (self.input_ids, self.query_start_loc, self.context)
        embeddings = self.module(hidden, *args)
        return self.module.ngram_embedding.dequantize(embeddings, torch.bfloat16)


def expected_rows(path: Path, offset: int, ids: torch.Tensor) -> torch.Tensor:
    """Read rows with plain file reads."""
    rows = bytearray()
    with path.open("rb", buffering=0) as file:
        for row_id in ids.flatten().tolist():
            file.seek(offset + row_id * bench_ple.ROW_BYTES)
            rows += file.read(bench_ple.ROW_BYTES)
    return torch.frombuffer(rows, dtype=torch.bfloat16).view(ids.shape[0], -1)


def same_bits(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """Compare bit patterns, so NaN equals itself."""
    return torch.equal(actual.cpu().view(torch.int16), expected.view(torch.int16))


def check_graph(module: Any, path: Path, offset: int, tokens: int) -> dict[str, Any]:
    """Capture one step, replay it for new tokens, and compare with the file."""
    step = Step(module, tokens)
    addresses = set()
    step.stage(0)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step.forward()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        # A consumer with its own output, as kv_proj is in the model.
        output = step.forward() * 1
    exact = True
    for seed in range(1, 6):
        ids = step.stage(seed)
        addresses.add(module.ngram_embedding.staged_weight.data_ptr())
        graph.replay()
        torch.cuda.synchronize()
        exact &= same_bits(output, expected_rows(path, offset, ids))
    # Fewer tokens than the graph holds: the padded rows keep the last step's content.
    before = output.clone()
    short = Step(module, tokens // 2 or 1)
    ids = short.stage(99)
    graph.replay()
    torch.cuda.synchronize()
    n = ids.shape[0]
    exact &= same_bits(output[:n], expected_rows(path, offset, ids))
    padding = same_bits(output[n:], before[n:].cpu())
    return {
        "tokens": tokens,
        "address_constant": len(addresses) == 1,
        "replay_sees_new_rows": exact,
        "padding_untouched": padding,
    }


def cost(module: Any, evictor: Any, tokens: int, *, cold: bool, steps: int) -> dict[str, Any]:
    """Time whole staging calls, and the GPU work of a step that only hashes the ids."""
    from vllm.models.qwen4_exp.nvidia.ngram_embedding import stage_checkpoint_rows

    step = Step(module, tokens)
    step.stage(0)
    total, hashing = [], []
    for _ in range(steps):
        if cold:
            evictor.drop()
        step.input_ids.copy_(torch.randint(2, 248320, step.input_ids.shape))
        args = (step.input_ids, step.query_start_loc, step.context)
        torch.cuda.synchronize()
        start = time.perf_counter()
        stage_checkpoint_rows([module], *args)
        torch.cuda.synchronize()
        total.append(time.perf_counter() - start)
        start = time.perf_counter()
        module.compute_ngram_ids(*args).cpu()
        hashing.append(time.perf_counter() - start)
    return {
        "tokens": tokens,
        "state": "cold" if cold else "cached",
        "stage_ms": statistics.median(total) * 1e3,
        "stage_min_ms": min(total) * 1e3,
        "hash_and_sync_ms": statistics.median(hashing) * 1e3,
        "steps": steps,
    }


def main() -> None:
    """Build the class on the GPU and run all checks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size-gb", type=float, default=2.0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpu_ple_") as name:
        folder = Path(name)
        config = bench_ple.write_config(folder, args.size_gb)
        with torch.device("cuda"):
            module = bench_ple.build_module(folder, config)
        embedding = module.ngram_embedding
        path = folder / "model.safetensors"
        offset = bench_ple.write_rows(path, embedding.org_vocab_size)
        bench_ple.load_rows(module, path)
        evictor = bench_ple.Evictor(path)
        found: dict[str, Any] = {
            "gpu": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "staging_device": str(embedding.staged_weight.device),
            "ids_pinned": embedding.ngram_ids.is_pinned(),
            "graphs": [check_graph(module, path, offset, tokens) for tokens in (1, 8, 64)],
            "costs": [],
        }
        for cold, steps in ((True, 5), (False, 20)):
            if not cold:
                evictor.fill()
                evictor.populate()
            for tokens in bench_ple.TOKENS:
                found["costs"].append(cost(module, evictor, tokens, cold=cold, steps=steps))
    text = json.dumps(found, indent=1)
    print(text)
    if args.json:
        args.json.write_text(text)
    good = found["staging_device"].startswith("cuda") and found["ids_pinned"]
    good &= all(value for graph in found["graphs"] for key, value in graph.items() if key != "tokens")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
