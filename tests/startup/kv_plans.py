# SPDX-License-Identifier: Apache-2.0
"""vLLM's own KV cache plan for a model of any size: its layers are built without memory, on the meta device.

What is replaced of the machine is what ``startup.ranks`` replaces, and the place of this process in the
tensor-parallel group. Every spec and every plan comes from vLLM.
"""

import copy
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import torch
from transformers import Qwen4ExpTextConfig
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.config.engram import EngramConfig
from vllm.distributed import parallel_state
from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends
from vllm.engine.arg_utils import EngineArgs
from vllm.platforms.interface import Platform
from vllm.v1.attention.backends.utils import (
    get_supported_kv_cache_layouts,
    record_kv_cache_layout,
    resolve_kv_cache_layout,
)
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec
from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

from startup import ranks


@dataclass(frozen=True)
class Case:
    """A start whose caches are planned."""

    kv_cache_dtype: str
    partition: tuple[int, ...]
    tensor_parallel: int = 1
    draft_tokens: int = 0
    prefix_caching: bool = True
    context: int = 262_144

    def __str__(self) -> str:
        split = "_".join(map(str, self.partition))
        return (
            f"{self.kv_cache_dtype}-pp{split}-tp{self.tensor_parallel}-mtp{self.draft_tokens}-"
            f"{'align' if self.prefix_caching else 'none'}-{self.context}"
        )


@dataclass(frozen=True)
class Planned:
    """vLLM's plan: what it logs, and what each stage allocates per block."""

    block_tokens: int
    stage_block_bytes: tuple[int, ...]
    blocks: int
    tokens: int
    concurrency: float


def write_config(folder: Path, config: Qwen4ExpTextConfig) -> Path:
    """Write a checkpoint folder that holds a config and no weights."""
    config.save_pretrained(folder)
    path = folder / "config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {"architectures": ["Qwen4ExpForCausalLM"]}))
    return folder


def plan(folder: Path, case: Case, stage_bytes: Sequence[int]) -> Planned:
    """Plan the caches of every stage, as the engine does, from the bytes that each stage has for them."""
    stages = len(case.partition)
    with ExitStack() as stack:
        stack.enter_context(ranks._partition(case.partition))
        stack.enter_context(ranks._cpu_stand_ins())
        engine = _engine_config(folder, case)
        ranks.join_world()
        configs, specs, layouts = [], [], []
        for stage in range(stages):
            config = copy.deepcopy(engine)
            with ranks.pipeline_rank(stage, stages), _tensor_parallel(case.tensor_parallel):
                own_specs, own_layouts = _specs(config, last=stage == stages - 1)
            configs.append(config)
            specs.append(own_specs)
            layouts.append(own_layouts)
        engine.cache_config.block_size = configs[0].cache_config.block_size
        layout = resolve_kv_cache_layout(engine, layouts, [s for own in specs for s in own.values()])
        record_kv_cache_layout(engine.cache_config, layout.name)
        plans = _configs(engine, specs, list(stage_bytes))
    tokens, concurrency = kv_cache_utils.get_kv_cache_capacity(engine, plans[0])
    return Planned(
        configs[0].cache_config.block_size,
        tuple(own.kv_cache_tensors[0].size // own.num_blocks for own in plans),
        plans[0].num_blocks,
        tokens,
        concurrency,
    )


def _engine_config(folder: Path, case: Case) -> VllmConfig:
    cards = len(case.partition) * case.tensor_parallel
    mtp = {"method": "mtp", "num_speculative_tokens": case.draft_tokens}
    engine = EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=case.context,
        max_num_seqs=8,
        max_num_batched_tokens=2048,
        enforce_eager=True,
        enable_prefix_caching=case.prefix_caching,
        async_scheduling=False,
        pipeline_parallel_size=len(case.partition),
        tensor_parallel_size=case.tensor_parallel,
        distributed_executor_backend="mp" if cards > 1 else None,
        engram_config=EngramConfig(cpu_offload=False),
        speculative_config=mtp if case.draft_tokens else None,
    ).create_engine_config()
    # Not an engine argument here: the CPU platform knows no int8 cache.
    engine.cache_config.cache_dtype = case.kv_cache_dtype
    return engine


def _specs(config: VllmConfig, *, last: bool) -> tuple[dict[str, KVCacheSpec], list[str]]:
    with torch.device("meta"):
        ranks._initialize(config, draft=False)
        if config.speculative_config is not None and last:
            ranks._initialize(config, draft=True)
    with set_current_vllm_config(config):
        Platform.update_block_size_for_backend.__func__(Platform, config)
        layouts = get_supported_kv_cache_layouts(get_current_attn_backends(config))
        return get_kv_cache_spec(config), [layout.name for layout in layouts]


def _configs(
    engine: VllmConfig, specs: list[dict[str, KVCacheSpec]], memory: list[int]
) -> list[KVCacheConfig]:
    try:
        from vllm.v1.core import kv_cache_planning
    except ImportError:  # 0.32.0 plans in kv_cache_utils and groups inside.
        return kv_cache_utils.get_kv_cache_configs(engine, specs, memory)
    groups = kv_cache_planning.get_global_kv_cache_groups(engine, specs)
    return kv_cache_planning.get_kv_cache_configs(engine, specs, memory, groups)


@contextmanager
def _tensor_parallel(size: int) -> Iterator[None]:
    """Make this process the first of ``size`` tensor-parallel ranks for vLLM's code."""
    group = copy.copy(parallel_state.get_tp_group())
    group.ranks = list(range(size))
    group.world_size = size
    with patch.multiple(parallel_state, _TP=group, _ETP=group):
        yield
