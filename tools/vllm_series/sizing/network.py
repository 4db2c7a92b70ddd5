# SPDX-License-Identifier: Apache-2.0
"""Boxes joined by a network: what crosses it, and how vLLM is started on each of them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from vllm_series.sizing.command import Start
from vllm_series.sizing.layout import Layout
from vllm_series.sizing.model import Model

#: The port of a Ray head.
_RAY_PORT = 6379


@dataclass(frozen=True)
class Link:
    """What crosses from one box to the next, in one direction.

    Attributes:
        token_bytes: The hidden streams of one token in bf16.
        chunk_bytes: Those of a prefill chunk.

    """

    token_bytes: int
    chunk_bytes: int

    def chunk_seconds(self, gigabits: float) -> float:
        """Time of a chunk on a link of so many gigabits per second, without any overhead."""
        return self.chunk_bytes * 8 / (gigabits * 1e9)


def link(model: Model, layout: Layout) -> Link:
    """What the network between two boxes must carry.

    Tensor parallelism stays within a box, so only the boundary of two stages crosses; the sampled token ids
    that come back are a few bytes per request.
    """
    return Link(model.stream_bytes, model.stream_bytes * layout.request.batched_tokens)


def start_commands(start: Start, nodes: int) -> dict[str, list[tuple[str, str]]]:
    """Per mode, what to run on which box."""
    head = "HEAD_ADDRESS"
    own = ["--nnodes " + str(nodes), f"--master-addr {head}"]
    processes = [("box 0", start.text([*own, "--node-rank 0"]))]
    processes += [
        (f"box {node}", start.text([*own, f"--node-rank {node}", "--headless"])) for node in range(1, nodes)
    ]
    variables = " ".join(f"{s.name}={shlex.quote(s.value)}" for s in start.environment)
    ray = [("box 0, first", f"{variables} ray start --head --port {_RAY_PORT}")]
    ray += [
        (f"box {node}, then", f"{variables} ray start --address {head}:{_RAY_PORT}")
        for node in range(1, nodes)
    ]
    ray.append(("box 0, last", start.text(["--distributed-executor-backend ray"])))
    return {"multiprocessing": processes, "Ray": ray}
