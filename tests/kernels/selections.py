# SPDX-License-Identifier: Apache-2.0
"""Selections as the indexer would deliver them, for timing.

Every row selects 512 groups of 4 tokens and the 3 tokens of its open group, 2051 in all.
Results are packed as the attention kernel takes them: int32 ``[rows, 2052]``, the last
column holding the count.
"""

from __future__ import annotations

import torch

from .attention import BUDGET, COMPRESS_RATIO, WIDTH

GROUPS = BUDGET // COMPRESS_RATIO
NEW_GROUPS_PER_ROW = 8  # of an overlapping selection: row r + 1 keeps 504 of row r's 512 groups


def _pack(groups: torch.Tensor, context: int) -> torch.Tensor:
    rows = groups.shape[0]
    packed = torch.empty(rows, WIDTH + 1, dtype=torch.int32, device=groups.device)
    members = torch.arange(COMPRESS_RATIO, device=groups.device)
    packed[:, :BUDGET] = (groups[:, :, None] * COMPRESS_RATIO + members).flatten(1).int()
    packed[:, BUDGET:WIDTH] = torch.arange(context - WIDTH + BUDGET, context, device=groups.device)
    packed[:, WIDTH] = WIDTH
    return packed


def _num_groups(context: int) -> int:
    groups = (context - (COMPRESS_RATIO - 1)) // COMPRESS_RATIO
    if groups < GROUPS:
        raise ValueError(f"a context of {context} tokens has fewer than {GROUPS} groups to select")
    return groups


def random_selection(rows: int, context: int, generator: torch.Generator) -> torch.Tensor:
    """Each row's own random groups: nothing is shared, as cold as it gets."""
    count = _num_groups(context)
    picked = [
        torch.randperm(count, generator=generator, device=generator.device)[:GROUPS] for _ in range(rows)
    ]
    return _pack(torch.stack(picked), context)


def overlapping_selection(rows: int, context: int, generator: torch.Generator) -> torch.Tensor:
    """Neighbouring rows share 504 of 512 groups, as neighbouring tokens of a prompt do."""
    count = _num_groups(context)
    order = torch.randperm(count, generator=generator, device=generator.device)
    window = torch.arange(GROUPS, device=order.device)
    start = NEW_GROUPS_PER_ROW * torch.arange(rows, device=order.device)
    return _pack(order[(start[:, None] + window) % count], context)
