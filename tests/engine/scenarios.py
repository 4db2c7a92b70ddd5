# SPDX-License-Identifier: Apache-2.0
"""What is run, as data: which engine on which tree, and what it is asked.

A *role* names a tree by its content: ``series`` is the release with the whole series, ``without NAME`` the
same without one patch (and those that need it). The order is that of importance: where time runs out, the
last ones are missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

SERIES = "series"
#: Greedy tokens per prompt.
TOKENS = 24
#: The tiny model has eight layers: GDN but for the fourth and the eighth, and the PLE in the second.
EVEN, UNEVEN = "4,4", "6,2"
ACCEPTED = ("4,4", "5,3", "6,2")
#: A stage of GDN layers alone (two ways), the PLE on a later stage, an empty stage, and no partition at all.
REFUSED = ("2,6", "3,5", "1,7", "8,0", "4,3")

_ENGINE: Mapping[str, Any] = {
    "skip_tokenizer_init": True,
    "dtype": "bfloat16",
    "max_model_len": 4096,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 1024,
    # Several engines share a GPU, so none may measure how much of it is free.
    "kv_cache_memory_bytes": 1 << 30,
    "gpu_memory_utilization": 0.08,
    "enforce_eager": True,
    "enable_prefix_caching": True,
    "gdn_prefill_backend": "triton",
    "disable_log_stats": False,
    "seed": 0,
}

_SCORE = {"do": "score", "prompts": "standard"}
_GENERATE = {"do": "generate", "prompts": "standard", "tokens": TOKENS}
_RESCORE = {"do": "rescore"}
_SHORT = {"do": "generate", "prompts": "short", "tokens": TOKENS}
#: The second generation finds the prompts of the first in the prefix cache.
STANDARD = (_GENERATE, _SCORE, _RESCORE, _GENERATE, _SHORT, _RESCORE)
_RETURNING = {"do": "generate", "prompts": "returning", "tokens": TOKENS}
_FILLING = {"do": "generate", "prompts": "filling", "tokens": 2}
#: A prompt, others until it has left the GPU, and the prompt again.
OFFLOAD = (_RETURNING, _RESCORE, _FILLING, _RETURNING, _RESCORE)
#: Decoding by one to eight users at once.
RATES = ({"do": "rate", "prompts": "users", "users": (1, 2, 4, 8), "tokens": 256},)


@dataclass(frozen=True)
class Scenario:
    """One run.

    Attributes:
        name: Names the result, together with the role.
        role: The tree.
        engine: Arguments of ``LLM`` beside the common ones.
        engram: Arguments of ``EngramConfig``.
        steps: See ``run.py``.
        partitions: Partitions to ask about instead of steps.
        tests: Node ids in the tree to run instead; an expression (``FILE::-k X``) is for all.
        stages: Pipeline stages.
        partition: Layers per stage, where there are several.
        relay: Whether it can only be run with two stages on one GPU.
        fails: Whether it is there to fail.
        alone: Whether it is timed, so that nothing else may run.

    """

    name: str
    role: str = SERIES
    engine: Mapping[str, Any] = field(default_factory=dict)
    engram: Mapping[str, Any] = field(default_factory=dict)
    steps: tuple[Mapping[str, Any], ...] = STANDARD
    partitions: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    stages: int = 1
    partition: str = ""
    relay: bool = False
    fails: bool = False
    alone: bool = False

    @property
    def key(self) -> str:
        """Name and role as one word, for file names."""
        return f"{self.name}@{self.role}".replace(" ", "-")

    def document(self) -> dict[str, Any]:
        """The scenario as ``run.py`` reads it."""
        pipeline: dict[str, Any] = {}
        if self.stages > 1:
            pipeline = {
                "pipeline_parallel_size": self.stages,
                "distributed_executor_backend": "mp",
            }
        what = {"partitions": self.partitions} if self.partitions else {"steps": self.steps}
        return {
            "name": self.name,
            "engine": {**_ENGINE, **pipeline, **self.engine},
            "engram": dict(self.engram),
            **what,
        }


_GRAPHS = {"enforce_eager": False}
_FP8 = {"kv_cache_dtype": "fp8_e4m3"}
_INT8 = {"kv_cache_dtype": "int8_per_token_head"}
_MTP = {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}
_FILE = {"host_file_gather": True}
_PINNED = {"cpu_offload": True}
#: A request takes up to 17 blocks of 272 tokens. There are too few for the prompts that come in between, and
#: room on the host for all.
_TIER = {
    "num_gpu_blocks_override": 40,
    "kv_offloading_size": 1.0,
    "max_model_len": 2048,
    "max_num_seqs": 2,
}


def _two(name: str, partition: str = EVEN, **fields: Any) -> Scenario:
    return Scenario(name, stages=2, partition=partition, **fields)


def _without(patch: str, scenario: Scenario, **fields: Any) -> Scenario:
    values = {key: getattr(scenario, key) for key in scenario.__dataclass_fields__}
    return Scenario(**{**values, "role": f"without {patch}", "fails": True, **fields})


def _kernels(patch: str, name: str, *tests: str) -> Iterator[Scenario]:
    scenario = Scenario(f"kernels-{name}", steps=(), tests=tests)
    yield scenario
    yield _without(patch, scenario)


def _all() -> Iterator[Scenario]:
    """Every scenario, the important ones first; those that compile most of the kernels among them."""
    first = {"steps": (_GENERATE, _SCORE, _RESCORE)}
    pp_relay = _two("pp-relay", relay=True, steps=(*STANDARD, {"do": "soak", "seconds": 20}))
    partitions = Scenario("partitions", stages=2, steps=(), partitions=ACCEPTED + REFUSED)
    pp_eager = _two("pp-eager", steps=(*STANDARD, {"do": "soak", "seconds": 10}))
    pp_mtp = _two("pp-mtp", engine=_MTP)
    fp8 = Scenario("fp8", engine=_FP8)
    int8 = Scenario("int8", engine=_INT8)
    uneven = _two("pp-offload-uneven", UNEVEN, engine=_TIER, steps=OFFLOAD)
    file = Scenario("ple-file", engine=_GRAPHS, engram=_FILE)
    yield Scenario("eager")
    yield pp_eager
    yield Scenario("graphs", engine=_GRAPHS)
    yield int8
    yield fp8
    yield _two("pp-graphs", engine=_GRAPHS, steps=(*STANDARD, {"do": "soak", "seconds": 45}))
    yield pp_mtp
    yield Scenario("mtp", engine=_MTP)
    yield Scenario("one-chunk", engine={"max_num_batched_tokens": 4096})
    yield partitions
    yield _without("pp-empty-kv-group", pp_eager, **first)
    yield _without("pp-partition-check", partitions)
    yield _without("pp-mtp-last-stage", pp_mtp, **first)
    yield pp_relay
    yield _without("pp-handler-stream", pp_relay)
    yield Scenario("offload", engine=_TIER, steps=OFFLOAD)
    yield Scenario("offload-int8", engine={**_TIER, **_INT8}, steps=OFFLOAD)
    yield from _kernels(
        "pp-handler-stream",
        "stream",
        "tests/v1/worker/test_pp_utils.py::test_broadcasts_are_ordered_on_the_stream_the_model_runs_on",
    )
    yield from _kernels(
        "qsa-int8-kv",
        "int8",
        "tests/models/qwen4_exp/test_qsa_prepare.py",
        "tests/models/qwen4_exp/test_qsa_reference.py::-k int8 and (prepare or edge_rows or every_byte)",
    )
    yield from _kernels(
        "qsa-fp8-kv-sm80",
        "fp8",
        "tests/models/qwen4_exp/test_qsa_prepare.py::test_qsa_fused_prepare_encodes_every_bf16_value_as_e4m3",
    )
    yield file
    yield _two("pp-int8", engine=_INT8)
    yield _two("pp-fp8", engine=_FP8)
    yield _two("pp-ple-file", engine=_GRAPHS, engram=_FILE)
    yield _two("pp-uneven", UNEVEN, engine=_GRAPHS)
    yield Scenario("ple-pinned", engine=_GRAPHS, engram=_PINNED)
    yield Scenario("graphs-int8", engine={**_GRAPHS, **_INT8})
    yield _without("qsa-fp8-kv-sm80", fp8, **first)
    yield _without("qsa-int8-kv", int8, **first)
    yield _without("ple-host-file-gather", file, **first)
    yield _two("pp-offload", engine=_TIER, steps=OFFLOAD)
    yield uneven
    yield _without("offload-equal-block-bytes", uneven)
    yield _two("pp-offload-int8", engine={**_TIER, **_INT8}, steps=OFFLOAD)
    timed = {"steps": RATES, "alone": True}
    yield Scenario("rates", engine=_GRAPHS, **timed)
    yield _two("pp-rates", engine=_GRAPHS, **timed)
    yield Scenario("rates-mtp", engine={**_GRAPHS, **_MTP}, **timed)
    yield _two("pp-rates-mtp", engine={**_GRAPHS, **_MTP}, **timed)


SCENARIOS = tuple(_all())
