# SPDX-License-Identifier: Apache-2.0
"""Paged K/V caches of each storage kind, and what they hold as float64.

Shapes: B pages of N tokens, H KV heads, head size D. A :class:`KVCache` holds the views
that the tree's kernels take, ``[B, N, H, D]``, in one of vLLM's block-outermost layouts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

HEAD_SIZE = 256
E4M3_MAX = 448.0
#: Distinct, so that a kernel that swaps K and V or drops one of them fails.
K_SCALE, V_SCALE = 0.5, 2.0
INT8_MIN_SCALE = 1e-6

#: bf16; e4m3 as the raw bytes that a GPU below sm_89 sees; e4m3 as the native type of
#: sm_89 and up; int8 with one fp32 scale per token, head and K or V.
KINDS = ("bf16", "e4m3_bytes", "e4m3_native", "int8")


class TreeLacksInt8(AssertionError):
    """The vLLM tree has no int8 QSA cache: the expected answer of an unpatched one."""


def int8_views(kv_cache: torch.Tensor, head_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The tree's own split of int8 pages ``[B, H, N, 2D + 8]`` into data and scales.

    Data is int8 ``[B, N, H, 2D]`` (K, then V); scales are fp32 ``[B, N, H, 2]``.
    """
    from vllm.models.qwen4_exp.common import qsa_cache

    split = getattr(qsa_cache, "qsa_split_data_scale", None)
    if split is None:
        raise TreeLacksInt8(
            f"{qsa_cache.__file__} has no qsa_split_data_scale: this tree has no "
            "int8_per_token_head cache for QSA"
        )
    data, scales = split(kv_cache, head_size)
    return data, scales


@dataclass(frozen=True)
class KVCache:
    """One layer's cache as the kernels take it."""

    kind: str
    storage: torch.Tensor  # [B, H, N, content], as vLLM binds it to the layer
    data: torch.Tensor  # [B, N, H, 2D]
    scales: torch.Tensor | None  # int8: [B, N, H, 2]
    k_scale: float
    v_scale: float

    @property
    def keys(self) -> torch.Tensor:
        return self.data[..., : self.data.shape[-1] // 2]

    @property
    def values(self) -> torch.Tensor:
        return self.data[..., self.data.shape[-1] // 2 :]

    def attention_arguments(self) -> dict[str, object]:
        """Keyword arguments of ``qsa_sparse_paged_attention`` for this cache."""
        arguments: dict[str, object] = {"k_cache": self.keys, "v_cache": self.values}
        if self.kind == "int8":
            arguments["kv_scales"] = self.scales
        elif self.kind != "bf16":
            arguments |= {"k_scale": self.k_scale, "v_scale": self.v_scale}
        return arguments

    def prepare_arguments(self) -> dict[str, object]:
        """Keyword arguments of ``qsa_prepare`` for this cache."""
        arguments: dict[str, object] = {
            "main_kv_cache": self.data,
            "main_k_scale": self.k_scale,
            "main_v_scale": self.v_scale,
        }
        if self.kind == "int8":
            arguments["main_kv_scales"] = self.scales
        return arguments

    def rows(self, pages: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Dequantised K and V, float64 ``[..., H, D]``, of the given tokens."""
        data = self.data
        if self.kind in ("e4m3_bytes", "e4m3_native"):
            # Index the bytes: not every device indexes fp8.
            picked = data.view(torch.uint8)[pages, offsets].view(torch.float8_e4m3fn)
        else:
            picked = data[pages, offsets]
        half = data.shape[-1] // 2
        keys, values = picked.double().split(half, dim=-1)
        if self.scales is None:
            return keys * self.k_scale, values * self.v_scale
        scales = self.scales[pages, offsets].double()
        return keys * scales[..., :1], values * scales[..., 1:]


def empty_cache(
    kind: str,
    num_pages: int,
    page_size: int,
    num_heads: int,
    *,
    head_size: int = HEAD_SIZE,
    head_major: bool = False,
    page_padding: int = 0,
    device: str = "cpu",
) -> KVCache:
    """A zeroed cache; BLNHC pages, or BLHNC with ``head_major``.

    ``page_padding`` bytes stand between pages, as when other layers' pages share the block.
    """
    itemsize = 2 if kind == "bf16" else 1
    content = 2 * head_size + (8 if kind == "int8" else 0)
    dtype = {"bf16": torch.bfloat16, "int8": torch.int8}.get(kind, torch.uint8)
    page = page_size * num_heads * content
    raw = torch.zeros(num_pages, page + page_padding // itemsize, dtype=dtype, device=device)
    shape = (num_heads, page_size) if head_major else (page_size, num_heads)
    storage = raw[:, :page].unflatten(1, (*shape, content))
    if not head_major:
        storage = storage.transpose(1, 2)
    scales = None
    k_scale = v_scale = 1.0
    if kind == "int8":
        data, scales = int8_views(storage, head_size)
    else:
        data = storage.transpose(1, 2)
        if kind != "bf16":
            k_scale, v_scale = K_SCALE, V_SCALE
        if kind == "e4m3_native":
            data = data.view(torch.float8_e4m3fn)
    return KVCache(kind, storage, data, scales, k_scale, v_scale)


def quantise_int8(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """vLLM's per-token-head quantisation of rows ``[..., D]``: int8 codes, fp32 scales ``[...]``.

    scale = max(absmax / 127, 1e-6); code = x * (1 / scale), rounded half away from zero. All
    in fp32, as ``triton_reshape_and_cache_flash_per_token_head_quant`` does.
    """
    single = rows.float()
    scale = (single.abs().amax(-1) / 127.0).clamp_min(INT8_MIN_SCALE)
    scaled = single * (1.0 / scale)[..., None]
    rounded = torch.where(scaled >= 0, scaled + 0.5, scaled - 0.5).clamp(-128.0, 127.0)
    return rounded.to(torch.int8), scale


def quantise_e4m3(rows: torch.Tensor, scale: float) -> torch.Tensor:
    """e4m3 bytes of ``rows / scale``: to nearest even, saturating (older torch does not)."""
    scaled = (rows.float() / scale).clamp(-E4M3_MAX, E4M3_MAX)
    return scaled.to(torch.float8_e4m3fn).view(torch.uint8)


def fill(cache: KVCache, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Quantise bf16 K and V ``[B, N, H, D]`` into the cache, page by page."""
    half = cache.data.shape[-1] // 2
    for page in range(keys.shape[0]):
        k, v = keys[page], values[page]
        if cache.kind == "bf16":
            cache.data[page, ..., :half], cache.data[page, ..., half:] = k, v
        elif cache.kind == "int8":
            assert cache.scales is not None
            for index, rows in enumerate((k, v)):
                codes, scale = quantise_int8(rows)
                cache.data[page, ..., index * half : (index + 1) * half] = codes
                cache.scales[page, ..., index] = scale
        else:
            data = cache.data.view(torch.uint8)
            data[page, ..., :half] = quantise_e4m3(k, cache.k_scale)
            data[page, ..., half:] = quantise_e4m3(v, cache.v_scale)
