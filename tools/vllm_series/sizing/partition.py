# SPDX-License-Identifier: Apache-2.0
"""Which splits of the layers over pipeline stages vLLM can run, and which one holds most.

The rules are those of the patch ``pp-partition-check`` (``vllm/models/qwen4_exp/common/pipeline.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import accumulate

#: A split may hold this share less than the best one if that makes it more even: the slowest stage sets the
#: pace of all.
_SLACK = 0.01

Capacity = Callable[[int, int, int], int]


def even_partition(layers: int, stages: int) -> tuple[int, ...]:
    """VLLM's own split: the rest goes to all stages but the last, from the back (``get_pp_indices``)."""
    sizes = [layers // stages] * stages
    for number in range(2, layers % stages + 2):
        sizes[-number] += 1
    return tuple(sizes)


def parse_partition(text: str) -> tuple[int, ...] | None:
    """Read ``VLLM_PP_LAYER_PARTITION``; None if it is no list of integers."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        return None


def find_problem(
    linear: Sequence[bool], ple_layers: Sequence[int], stages: int, partition: Sequence[int]
) -> str | None:
    """Why vLLM refuses a split, or None."""
    if len(partition) != stages:
        return f"it has {len(partition)} entries for {stages} pipeline stages"
    for stage, size in enumerate(partition):
        if size <= 0:
            return f"stage {stage} gets {size} layers"
    if sum(partition) != len(linear):
        return f"it adds up to {sum(partition)} layers, and the model has {len(linear)}"
    if stages == 1:
        return None
    late = [layer for layer in ple_layers if layer >= partition[0]]
    if late:
        return f"decoder layer {late[0]} holds the n-gram (PLE) layer and must be on stage 0"
    for stage, (start, end) in enumerate(_bounds(partition)):
        for kind, name in ((True, "linear"), (False, "sparse")):
            if kind in linear and kind not in linear[start:end]:
                return f"stage {stage} (layers {start} to {end - 1}) has no {name}-attention layer"
    return None


def most_stages(linear: Sequence[bool], ple_layers: Sequence[int]) -> int:
    """The largest number of stages that a split exists for."""
    ends = _smallest_ends(linear, ple_layers)
    stages, end = 0, 0
    while (end := ends[end]) <= len(linear):
        stages += 1
    return max(stages, 1)


def best_partition(
    linear: Sequence[bool], ple_layers: Sequence[int], stages: int, capacity: Capacity
) -> tuple[int, ...] | None:
    """The split whose fullest stage has most room, the most even one of those that are nearly as good.

    Args:
        linear: Per layer, whether it is linear attention.
        ple_layers: Layers with an n-gram layer.
        stages: Pipeline stages.
        capacity: Gives what a stage has room for, from its number, first layer and end; negative if it does
            not fit.

    """
    if stages == 1:
        return (len(linear),)
    capacity = cache(capacity)
    ends = _smallest_ends(linear, ple_layers)
    total = len(linear)
    # End of the last stage -> largest smallest capacity.
    best: dict[int, int] = {0: 1 << 62}
    for stage in range(stages):
        reached: dict[int, int] = {}
        for start, least in best.items():
            for end in range(ends[start], total + 1):
                value = min(least, capacity(stage, start, end))
                reached[end] = max(reached.get(end, value), value)
        best = reached
    if total not in best:
        return None
    enough = best[total] if best[total] <= 0 else int(best[total] * (1 - _SLACK))
    # End of the last stage -> (sum of squared sizes, sizes), among stages with enough room.
    even: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    for stage in range(stages):
        extended: dict[int, tuple[int, tuple[int, ...]]] = {}
        for start, (cost, sizes) in even.items():
            for end in range(ends[start], total + 1):
                if capacity(stage, start, end) < enough:
                    continue
                candidate = (cost + (end - start) ** 2, (*sizes, end - start))
                extended[end] = min(extended.get(end, candidate), candidate)
        even = extended
    return even[total][1]


def _smallest_ends(linear: Sequence[bool], ple_layers: Sequence[int]) -> list[int]:
    """Per first layer of a stage, its smallest end; beyond the last layer if no stage can begin there."""
    total = len(linear)
    kinds = len(set(linear))
    seen: dict[bool, int] = {}
    ends = [total + 1] * (total + 1)
    for start in reversed(range(total)):
        seen[linear[start]] = start
        if len(seen) == kinds:
            ends[start] = max(seen.values()) + 1
    ends[0] = max([ends[0], *(layer + 1 for layer in ple_layers)])
    return ends


def _bounds(partition: Sequence[int]) -> Iterator[tuple[int, int]]:
    ends = list(accumulate(partition))
    return zip([0, *ends[:-1]], ends, strict=True)
