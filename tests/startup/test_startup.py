# SPDX-License-Identifier: Apache-2.0
"""Every pipeline rank of the tiny model starts, whatever the split, the format and the MTP head.

Run with ``PYTHONPATH`` and ``VLLM_TREE`` naming the vLLM tree under test. All cases share one
process and are started once; a case takes one to three seconds.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="needs a vLLM tree on PYTHONPATH, see VLLM_TREE")

import torch
import vllm
from safetensors import safe_open

from startup.checkpoints import (
    Checkpoint,
    MtpFormat,
    tiny_config,
    write_bf16,
    write_fp8_table,
    write_gptq,
)
from startup.ranks import Rank, Weights, digest, start

pytestmark = pytest.mark.tree

NUM_LAYERS = 24
PLE_LAYER = 1

#: Partitions by pipeline size. None is vLLM's own split, which is even for 24 layers. The others
#: are uneven, and each stage has a sparse-attention layer (index 3, 7, 11, ...) and a GDN layer.
PARTITIONS = {
    1: (None,),
    2: (None, (4, 20)),
    3: (None, (4, 8, 12)),
    4: (None, (4, 5, 7, 8)),
    6: (None, (6, 2, 5, 3, 6, 2)),
}


@dataclass(frozen=True)
class Case:
    """What one start varies."""

    form: str
    pp_size: int
    partition: tuple[int, ...] | None = None
    mtp: bool = False

    def __str__(self) -> str:
        split = "even" if self.partition is None else "_".join(map(str, self.partition))
        return f"{self.form}-pp{self.pp_size}-{split}-{'mtp' if self.mtp else 'plain'}"


CASES = [
    Case(form, pp_size, partition, mtp)
    for form in ("bf16", "gptq")
    for pp_size, partitions in PARTITIONS.items()
    for partition in partitions
    for mtp in (False, True)
] + [Case("gptq_mtp", 1, None, True), Case("gptq_mtp", 4, (4, 5, 7, 8), True)]

every_case = pytest.mark.parametrize("case", CASES, ids=str)

Start = Callable[[Case], tuple[Rank, ...]]


@pytest.fixture(scope="session", autouse=True)
def tree() -> Path:
    """The vLLM tree under test, which must be the one that was imported."""
    assert "VLLM_TREE" in os.environ, "set VLLM_TREE and PYTHONPATH to the vLLM tree under test"
    root = Path(os.environ["VLLM_TREE"]).resolve()
    assert Path(vllm.__file__).resolve().is_relative_to(root), f"{vllm.__file__} is not in {root}"
    return root


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Checkpoint]:
    """The tiny model in bf16, in GPTQ with a bf16 MTP head, and in GPTQ throughout."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("checkpoints")
    bf16 = write_bf16(root / "bf16", tiny_config(NUM_LAYERS))
    return {
        "bf16": bf16,
        "gptq": write_gptq(root / "gptq", bf16),
        "gptq_mtp": write_gptq(root / "gptq_mtp", bf16, mtp=MtpFormat.QUANTIZED),
    }


@pytest.fixture(scope="session")
def started(checkpoints: dict[str, Checkpoint]) -> Start:
    """Start a case, at most once per session."""

    @functools.cache
    def run(case: Case) -> tuple[Rank, ...]:
        return start(
            checkpoints[case.form].path,
            pp_size=case.pp_size,
            partition=case.partition,
            mtp=case.mtp,
        )

    return run


@every_case
def test_ranks_share_the_layers_out(started: Start, case: Case) -> None:
    ranks = started(case)
    sizes = case.partition or (NUM_LAYERS // case.pp_size,) * case.pp_size
    ends = list(accumulate(sizes))
    assert [rank.layers for rank in ranks] == list(zip([0, *ends[:-1]], ends, strict=True))
    assert [rank.draft is not None for rank in ranks] == [False] * (case.pp_size - 1) + [case.mtp]


@every_case
def test_every_parameter_is_loaded(started: Start, case: Case) -> None:
    """Every element of every parameter comes from the checkpoint."""
    for rank in started(case):
        for weights in filter(None, (rank.target, rank.draft)):
            # Biases of GPTQ experts are optional and start as zeros.
            assert {name for name in weights.missing if not name.endswith("_bias")} == set()
            # vLLM pads the rows of this projection to a multiple of 16 and drops the results.
            padding = "hyper_connection.input_mix_weight_down_block_inject.weight"
            assert not [
                name
                for name, parameter in weights.parameters.items()
                if parameter.unwritten and not name.endswith(padding)
            ]


@every_case
def test_a_split_changes_no_parameter(started: Start, case: Case) -> None:
    """Each parameter of each stage has the bytes that it has without a pipeline."""
    (whole,) = started(replace(case, pp_size=1, partition=None))
    seen: set[str] = set()
    for rank in started(case):
        for name, parameter in rank.target.parameters.items():
            assert parameter == whole.target.parameters[name], name
        seen |= rank.target.parameters.keys()
    assert seen == whole.target.parameters.keys()
    assert started(case)[-1].draft == whole.draft


@every_case
def test_caches_are_bound_for_exactly_the_own_layers(started: Start, case: Case) -> None:
    """#36640 (KeyError for another stage's layer) and #54711 (bare StopIteration)."""
    ranks = started(case)
    for rank in ranks:
        wanted = expected_caches(rank, case.mtp and rank is ranks[-1])
        assert rank.bound == wanted
        assert sorted(name for group in rank.groups for name in group) == sorted(wanted)


@every_case
def test_ranks_agree_on_groups_and_blocks(started: Start, case: Case) -> None:
    """Block ids and group indices are global, so an unused group stays, empty."""
    ranks = started(case)
    assert len({len(rank.groups) for rank in ranks}) == 1
    assert len({rank.num_blocks for rank in ranks}) == 1
    ple = [[f"model.layers.{PLE_LAYER}.ple" in group for group in rank.groups] for rank in ranks]
    owner = ple[0].index(True)
    assert ranks[0].groups[owner] == (f"model.layers.{PLE_LAYER}.ple",)
    assert all(rank.groups[owner] == () for rank in ranks[1:])


@every_case
def test_only_the_first_rank_prepares_ngrams(started: Start, case: Case) -> None:
    """Both guards against pipelines with PLE gave way, and later ranks skip the dead work."""
    expected = [True] + [False] * (case.pp_size - 1)
    assert [rank.prepares_ngrams for rank in started(case)] == expected


@every_case
def test_embedding_and_head_are_where_they_are_used(started: Start, case: Case) -> None:
    """The embedding is on the first rank and ``lm_head`` on the last; the MTP head has its own."""
    ranks = started(case)
    others = [False] * (case.pp_size - 1)
    assert [rank.has_embedding for rank in ranks] == [True, *others]
    assert [rank.has_head for rank in ranks] == [*others, True]


@pytest.mark.parametrize("form", ["bf16", "gptq"])
def test_final_mixer_is_on_the_last_rank_only(started: Start, form: str) -> None:
    """1Cat #479: earlier ranks died of "no module or parameter named hyper_connection_mixer"."""
    *earlier, last = started(Case(form, 4, (4, 5, 7, 8)))
    mixer = "model.hyper_connection_mixer."
    assert any(name.startswith(mixer) for name in last.target.parameters)
    for rank in earlier:
        assert not any(name.startswith(mixer) for name in rank.target.parameters)


@pytest.mark.parametrize("form", ["bf16", "gptq"])
@pytest.mark.parametrize("pp_size", [1, 4])
def test_ngram_table_is_bf16_and_complete(
    started: Start, checkpoints: dict[str, Checkpoint], form: str, pp_size: int
) -> None:
    """The table of a GPTQ body stays bf16, on the first rank, row for row."""
    first, *later = started(Case(form, pp_size))
    table = f"model.layers.{PLE_LAYER}.ple.ple_embedding.ngram_embedding"
    rows = torch.cat([read(checkpoints[form], f"{table}.shard_{i}.weight") for i in range(4)])
    loaded = first.target.parameters[f"{table}.weight"]
    assert loaded.dtype == torch.bfloat16
    assert loaded.digest == digest(rows)
    for rank in later:
        assert not any(".ple." in name for name in rank.target.parameters)


def test_gptq_body_keeps_its_formats(started: Start, checkpoints: dict[str, Checkpoint]) -> None:
    """Q/K/V in 4 bits and the indexer in bf16 are separate; in bf16 they are one projection."""
    attention = "model.layers.3.self_attn"
    (gptq,) = started(Case("gptq", 1))
    assert leaves(gptq.target, f"{attention}.qkv_proj") == {"qweight", "qzeros", "scales"}
    assert leaves(gptq.target, f"{attention}.indexer.index_qk_proj") == {"weight"}
    index_qk = f"{attention}.indexer.index_qk_proj.weight"
    wanted = read(checkpoints["gptq"], index_qk)
    assert gptq.target.parameters[index_qk].digest == digest(wanted)
    (bf16,) = started(Case("bf16", 1))
    assert leaves(bf16.target, f"{attention}.qkv_proj") == {"weight"}
    assert leaves(bf16.target, f"{attention}.indexer.index_qk_proj") == set()


@pytest.mark.parametrize(("form", "leaf"), [("gptq", "weight"), ("gptq_mtp", "qweight")])
def test_mtp_head_keeps_its_format(started: Start, form: str, leaf: str) -> None:
    """The head's modules are listed as mtp.layers.0, and built as mtp.layers.24."""
    (rank,) = started(Case(form, 1, None, True))
    assert rank.draft is not None
    attention = "model.layers.0.self_attn"
    assert leaf in leaves(rank.draft, f"{attention}.o_proj")
    assert leaf in leaves(rank.draft, f"{attention}.qkv_proj")
    fused = set() if form == "gptq" else {"weight"}
    assert leaves(rank.draft, f"{attention}.indexer.index_qk_proj") == fused


def test_fp8_table_beside_a_gptq_body(checkpoints: dict[str, Checkpoint], tmp_path: Path) -> None:
    """FP8 rows (vLLM #54765) are read as FP8 where the config says so, and as bf16 never."""
    table = f"model.layers.{PLE_LAYER}.ple.ple_embedding.ngram_embedding"
    declared = write_fp8_table(tmp_path / "declared", checkpoints["gptq"], declared=True)
    (rank,) = start(declared.path)
    assert rank.target.parameters[f"{table}.weight"].dtype == torch.float8_e4m3fn
    assert leaves(rank.target, table) == {"weight", "weight_scale"}
    assert not any(name.startswith(table) for name in rank.target.missing)

    silent = write_fp8_table(tmp_path / "silent", checkpoints["gptq"], declared=False)
    with pytest.raises(ValueError, match=r"ple_embedding_dtype|weight_scale"):
        start(silent.path)


@pytest.mark.parametrize(
    ("pp_size", "partition"),
    [(2, (1, 23)), (3, (3, 10, 11)), (2, (0, 24)), (12, None)],
    ids=["ple_late", "no_sparse_attention", "empty", "too_many"],
)
def test_split_that_cannot_run_is_refused_before_loading(
    checkpoints: dict[str, Checkpoint], pp_size: int, partition: tuple[int, ...] | None
) -> None:
    with pytest.raises(ValueError, match=r"VLLM_PP_LAYER_PARTITION|pipeline_parallel_size"):
        start(checkpoints["bf16"].path, pp_size=pp_size, partition=partition)


def expected_caches(rank: Rank, with_draft: bool) -> set[str]:
    """Return the cache names of a rank's layers and, on the last rank, of the MTP layer."""
    names: set[str] = set()
    for index in range(*rank.layers):
        prefix = f"model.layers.{index}."
        if index == PLE_LAYER:
            names.add(prefix + "ple")
        names |= sparse_caches(prefix) if index % 4 == 3 else {prefix + "linear_attn"}
    return names | (sparse_caches(f"mtp.layers.{NUM_LAYERS}.") if with_draft else set())


def sparse_caches(prefix: str) -> set[str]:
    """Return a sparse-attention layer's caches: K/V, raw index keys and compressed index keys."""
    attention = prefix + "self_attn."
    return {
        attention + "attn",
        attention + "indexer.raw_key_cache",
        attention + "indexer.compressed_key_cache",
    }


def leaves(weights: Weights, module: str) -> set[str]:
    """Return the parameter names directly below a module."""
    return {name.removeprefix(f"{module}.") for name in weights.parameters if name.startswith(f"{module}.")}


def read(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    """Read one tensor of the checkpoint."""
    for shard in checkpoint.path.glob("*.safetensors"):
        with safe_open(shard, "pt") as file:
            if name in file.keys():  # noqa: SIM118
                return file.get_tensor(name)
    raise KeyError(name)
