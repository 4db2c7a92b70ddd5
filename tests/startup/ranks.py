# SPDX-License-Identifier: Apache-2.0
"""vLLM's start-up for the pipeline ranks of one model, in this process and on the CPU.

The steps and their order are those of the engine (``v1/engine/core.py``, ``_initialize_kv_caches``)
and of its workers (``v1/executor/multiproc_executor.py``): engine config, per rank build and load,
attention block size, KV cache specs and layouts, then one plan for all ranks, and per rank
allocation and binding. Every vLLM function is the real one. Three facts about the machine are
replaced:

* the place of this process in the pipeline: the world has one process, and its pipeline group is
  exchanged for a copy with other ranks;
* the answer to "is FlashAttention there", since the sparse-attention layer refuses a CPU;
* the kernel that would run 4-bit experts, for none exists for the CPU.

No forward pass runs: the model's kernels are Triton. ``process_weights_after_loading`` repacks for
kernels and is left out too.
"""

import copy
import dataclasses
import functools
import gc
import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import torch
from torch import nn
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.config.engram import EngramConfig
from vllm.distributed import init_distributed_environment, initialize_model_parallel, parallel_state
from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.fused_moe.oracle.int_wna16 import WNA16MoEBackend
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.models.utils import PPMissingLayer
from vllm.platforms.interface import Platform
from vllm.utils.torch_utils import set_default_torch_dtype
from vllm.v1.attention.backends.utils import (
    get_supported_kv_cache_layouts,
    record_kv_cache_layout,
    resolve_kv_cache_layout,
)
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec
from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec
from vllm.v1.worker.utils import allocate_kv_cache, bind_kv_cache_to_layers

#: Bytes for the KV cache of each rank. The tiny model's blocks take a few hundred KiB.
KV_BYTES = 64 << 20
#: Draft tokens per step when the MTP head is on.
DRAFT_TOKENS = 2


@dataclass(frozen=True)
class Parameter:
    """A parameter after loading: its dtype, its shape and a digest of its bytes.

    ``unwritten`` counts the elements that still have the value of fresh memory, which is NaN or
    the largest integer (see ``_marked_memory``).
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    digest: str
    unwritten: int


@dataclass(frozen=True)
class Weights:
    """What loading gave one module: its parameters by name, and the names never written."""

    parameters: Mapping[str, Parameter]
    missing: frozenset[str]


@dataclass(frozen=True)
class Rank:
    """One pipeline rank after start-up.

    ``layers`` is the half-open range of decoder layers. ``draft`` is there on the last rank when
    the MTP head is on. ``groups`` holds the rank's layers per KV cache group; every rank has the
    same groups in the same order, and some may be empty. ``bound`` names the layers whose cache
    tensor is bound, ``has_embedding`` and ``has_head`` tell whether the target's are built, and
    ``prepares_ngrams`` whether the runner's model state prepares n-gram inputs at each step.
    """

    layers: tuple[int, int]
    target: Weights
    draft: Weights | None
    groups: tuple[tuple[str, ...], ...]
    bound: frozenset[str]
    num_blocks: int
    bytes_per_block: int
    has_embedding: bool
    has_head: bool
    prepares_ngrams: bool


@dataclass
class _Worker:
    """A rank that is built, before the plan is known."""

    config: VllmConfig
    model: nn.Module
    target: Weights
    draft: Weights | None
    prepares_ngrams: bool
    specs: dict[str, KVCacheSpec]
    layouts: list[str]


def start(
    checkpoint: Path,
    *,
    pp_size: int = 1,
    partition: Sequence[int] | None = None,
    mtp: bool = False,
) -> tuple[Rank, ...]:
    """Start every pipeline rank on the checkpoint, as the engine would.

    Args:
        checkpoint: Folder with ``config.json`` and safetensors files.
        pp_size: Pipeline ranks.
        partition: Layers per rank, for ``VLLM_PP_LAYER_PARTITION``; vLLM's own split if None.
        mtp: Whether to speculate with the checkpoint's MTP head.

    Raises:
        Exception: Whatever vLLM raises for a configuration that it cannot start.

    """
    with ExitStack() as stack:
        stack.enter_context(_partition(partition))
        stack.enter_context(_cpu_stand_ins())
        stack.enter_context(_marked_memory())
        engine = engine_config(checkpoint, pp_size=pp_size, mtp=mtp)
        join_world()
        workers = []
        for rank in range(pp_size):
            with pipeline_rank(rank, pp_size):
                workers.append(_build(copy.deepcopy(engine)))
        plans = _plan(engine, workers)
        ranks = []
        for rank, (worker, plan) in enumerate(zip(workers, plans, strict=True)):
            with pipeline_rank(rank, pp_size):
                ranks.append(_bind(worker, plan))
    gc.collect()
    return tuple(ranks)


def engine_config(checkpoint: Path, *, pp_size: int = 1, mtp: bool = False) -> VllmConfig:
    """Return the engine's config: bf16, prefix caching on, the n-gram table on the device."""
    return EngineArgs(
        model=str(checkpoint),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=2048,
        max_num_seqs=4,
        max_num_batched_tokens=512,
        enforce_eager=True,
        enable_prefix_caching=True,
        mamba_cache_mode="align",
        # The runner that a CPU gets has no asynchronous scheduling under pipeline parallelism.
        async_scheduling=False,
        pipeline_parallel_size=pp_size,
        distributed_executor_backend="mp" if pp_size > 1 else None,
        engram_config=EngramConfig(cpu_offload=False),
        speculative_config=({"method": "mtp", "num_speculative_tokens": DRAFT_TOKENS} if mtp else None),
    ).create_engine_config()


@functools.cache
def join_world() -> None:
    """Set up vLLM's process groups for a world of this one process."""
    with set_current_vllm_config(VllmConfig()):
        rendezvous = Path(tempfile.mkdtemp(prefix="startup-")) / "rendezvous"
        init_distributed_environment(1, 0, f"file://{rendezvous}", 0, backend="gloo")
        initialize_model_parallel(1, 1)


@contextmanager
def pipeline_rank(rank: int, pp_size: int) -> Iterator[None]:
    """Make this process pipeline rank ``rank`` of ``pp_size`` for vLLM's code."""
    group = copy.copy(parallel_state.get_pp_group())
    group.ranks = list(range(pp_size))
    group.rank = group.rank_in_group = rank
    group.world_size = pp_size
    with patch.object(parallel_state, "_PP", group):
        yield


def _describe(tensor: torch.Tensor) -> Parameter:
    if tensor.dtype.is_floating_point:
        # FP8 has no isnan on the CPU.
        unwritten = tensor.float().isnan()
    else:
        unwritten = tensor == torch.iinfo(tensor.dtype).max
    return Parameter(tensor.dtype, tuple(tensor.shape), digest(tensor), int(unwritten.sum()))


def digest(tensor: torch.Tensor) -> str:
    """Return a digest of the tensor's elements in order."""
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _build(config: VllmConfig) -> _Worker:
    """Build and load the rank's target, and the drafter on the last rank."""
    model = _initialize(config, draft=False)
    target = _load(config, model)
    draft = None
    if config.speculative_config is not None and parallel_state.get_pp_group().is_last_rank:
        draft = _load(config, _initialize(config, draft=True))
    state = model.get_model_state_cls()(config, model, None, torch.device("cpu"))
    with set_current_vllm_config(config):
        # Not current_platform's: the CPU's override serves the CPU's own attention backend.
        Platform.update_block_size_for_backend.__func__(Platform, config)
        specs = get_kv_cache_spec(config)
        layouts = get_supported_kv_cache_layouts(get_current_attn_backends(config))
    return _Worker(
        config,
        model,
        target,
        draft,
        state.uses_ngram_embedding,
        specs,
        [layout.name for layout in layouts],
    )


def _initialize(config: VllmConfig, *, draft: bool) -> nn.Module:
    """Build the target, or the draft model of its speculative config."""
    model_config = config.model_config
    if draft:
        assert config.speculative_config is not None
        model_config = config.speculative_config.draft_model_config
    with set_default_torch_dtype(model_config.dtype):
        return initialize_model(vllm_config=config, model_config=model_config)


def _load(config: VllmConfig, model: nn.Module) -> Weights:
    """Load the module from the checkpoint. vLLM raises for a tensor that it cannot place."""
    loader = DefaultModelLoader(dataclasses.replace(config.load_config, use_tqdm_on_load=False))
    with set_current_vllm_config(config):
        loaded = model.load_weights(loader.get_all_weights(config.model_config, model))
    parameters = {name: _describe(parameter.detach()) for name, parameter in model.named_parameters()}
    return Weights(parameters, frozenset(parameters.keys() - loaded))


def _plan(engine: VllmConfig, workers: list[_Worker]) -> list[KVCacheConfig]:
    """Plan the KV cache of all ranks and tell each the layout."""
    specs = [worker.specs for worker in workers]
    layout = resolve_kv_cache_layout(
        engine,
        [worker.layouts for worker in workers],
        [spec for own in specs for spec in own.values()],
    )
    for worker in workers:
        record_kv_cache_layout(worker.config.cache_config, layout.name)
    memory = [KV_BYTES] * len(workers)
    try:
        from vllm.v1.core import kv_cache_planning
    except ImportError:  # 0.32.0 plans in kv_cache_utils and groups inside.
        return kv_cache_utils.get_kv_cache_configs(engine, specs, memory)
    groups = kv_cache_planning.get_global_kv_cache_groups(engine, specs)
    return kv_cache_planning.get_kv_cache_configs(engine, specs, memory, groups)


def _bind(worker: _Worker, plan: KVCacheConfig) -> Rank:
    """Allocate the rank's cache and bind it to the rank's layers."""
    layout = worker.config.cache_config.get_resolved_kv_cache_layout()
    block_sizes = [group.kv_cache_spec.block_size for group in plan.kv_cache_groups]
    caches = allocate_kv_cache(plan, torch.device("cpu"), layout, block_sizes)
    layers = worker.config.compilation_config.static_forward_context
    bind_kv_cache_to_layers(caches, layers, 1, kv_cache_groups=plan.kv_cache_groups)
    inner = worker.model.model
    return Rank(
        layers=(inner.start_layer, inner.end_layer),
        target=worker.target,
        draft=worker.draft,
        groups=tuple(tuple(group.layer_names) for group in plan.kv_cache_groups),
        bound=frozenset(caches),
        num_blocks=plan.num_blocks,
        bytes_per_block=plan.kv_cache_tensors[0].size // plan.num_blocks,
        has_embedding=not isinstance(inner.embed_tokens, PPMissingLayer),
        has_head=not isinstance(worker.model.lm_head, PPMissingLayer),
        prepares_ngrams=worker.prepares_ngrams,
    )


@contextmanager
def _partition(partition: Sequence[int] | None) -> Iterator[None]:
    text = {} if partition is None else {"VLLM_PP_LAYER_PARTITION": ",".join(map(str, partition))}
    with patch.dict("os.environ", text):
        yield


@contextmanager
def _marked_memory() -> Iterator[None]:
    """Let ``torch.empty`` fill memory with NaN or the largest integer, to tell what was written."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@contextmanager
def _cpu_stand_ins() -> Iterator[None]:
    """Answer for the GPU where construction asks for one."""
    from vllm.models.qwen4_exp.nvidia import model  # noqa: F401  qsa cannot be imported before it

    flash = "vllm.models.qwen4_exp.nvidia.qsa.is_flash_attn_varlen_func_available"
    experts = "vllm.model_executor.layers.quantization.auto_gptq.select_wna16_moe_backend"
    with (
        patch(flash, return_value=True),
        patch(experts, return_value=(WNA16MoEBackend.MARLIN, None)),
    ):
        yield
