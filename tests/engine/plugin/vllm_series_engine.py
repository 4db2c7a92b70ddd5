# SPDX-License-Identifier: Apache-2.0
"""A vLLM plugin for tests: other answers about the machine, and nothing else.

vLLM loads it in each of its processes. Every part is off unless its variable is set; on two Ampere cards
none is needed.

* ``VLLM_SERIES_ENGINE_CAPABILITY=8.6``: the platform answers that it is this GPU. vLLM then takes the code
  paths of such a card on a later one, which runs them all.
* ``VLLM_SERIES_ENGINE_FA=2``: the version of FlashAttention to use. The QSA layers only ask for it.
* ``VLLM_SERIES_ENGINE_ONE_GPU=1``: every pipeline rank uses the first GPU. NCCL refuses two ranks on one
  device, so gloo takes its place, and what one stage sends to the next goes through host memory.
"""

from __future__ import annotations

import os
from collections import deque
from typing import Any

CAPABILITY = "VLLM_SERIES_ENGINE_CAPABILITY"
FLASH_ATTENTION = "VLLM_SERIES_ENGINE_FA"
ONE_GPU = "VLLM_SERIES_ENGINE_ONE_GPU"

#: Tensors on their way to the next stage. vLLM may drop its handle before gloo has read the copy.
_SENT: deque[Any] = deque(maxlen=1024)


def register() -> None:
    """Give the answers that the environment asks for; vLLM's entry point."""
    if os.environ.get(CAPABILITY):
        answer_capability(*map(int, os.environ[CAPABILITY].split(".")))
    if os.environ.get(FLASH_ATTENTION):
        answer_flash_attention(int(os.environ[FLASH_ATTENTION]))
    if os.environ.get(ONE_GPU) == "1":
        share_one_gpu()


def answer_capability(major: int, minor: int) -> None:
    """Make the platform another GPU's."""
    from vllm.platforms import current_platform
    from vllm.platforms.interface import DeviceCapability

    def number(capability: int | tuple[int, int]) -> int:
        return capability if isinstance(capability, int) else capability[0] * 10 + capability[1]

    own = major * 10 + minor
    platform = type(current_platform)
    platform.get_device_capability = classmethod(lambda _, device_id=0: DeviceCapability(major, minor))
    platform.has_device_capability = classmethod(lambda _, wanted, device_id=0: own >= number(wanted))
    platform.is_device_capability = classmethod(lambda _, wanted, device_id=0: own == number(wanted))
    platform.is_device_capability_family = classmethod(
        lambda _, wanted, device_id=0: major == number(wanted) // 10
    )


def answer_flash_attention(version: int) -> None:
    """Make every backend use this version of FlashAttention."""
    from vllm.v1.attention.backends import fa_utils

    def get_flash_attn_version(*_: object, **__: object) -> int:
        return version

    fa_utils.get_flash_attn_version = get_flash_attn_version
    from vllm.v1.attention.backends import flash_attn  # Imports the name from the module above.

    flash_attn.get_flash_attn_version = get_flash_attn_version


def share_one_gpu() -> None:
    """Put every rank on the first GPU, and relay what stages send through host memory."""
    import torch.distributed as dist
    from vllm.config.parallel import ParallelConfig
    from vllm.platforms import current_platform

    if getattr(dist.isend, "relayed", False):
        return
    ParallelConfig.get_local_gpu_index = lambda self, local_rank, dp_local_rank=None: 0
    platform = type(current_platform)
    platform.dist_backend = "gloo"
    platform.device_count = classmethod(lambda _: 8)
    send, receive = dist.isend, dist.irecv

    def isend(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if not tensor.is_cuda:
            return send(tensor, *args, **kwargs)
        copy = tensor.cpu()
        _SENT.append(copy)
        return _Relay(send(copy, *args, **kwargs))

    def irecv(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if not tensor.is_cuda:
            return receive(tensor, *args, **kwargs)
        copy = tensor.new_empty(tensor.shape, device="cpu")
        return _Relay(receive(copy, *args, **kwargs), copy, tensor)

    isend.relayed = True  # type: ignore[attr-defined]
    dist.isend, dist.irecv = isend, irecv


class _Relay:
    """The handle of a transfer; a received tensor reaches the GPU when it is waited for."""

    def __init__(self, work: Any, copy: Any = None, target: Any = None) -> None:
        self._work, self._copy, self._target = work, copy, target
        self._done = False

    def is_completed(self) -> bool:
        return self._done or bool(self._work.is_completed())

    def wait(self, *_: object, **__: object) -> bool:
        if not self._done:
            self._work.wait()
            self._done = True
            if self._target is not None:
                self._target.copy_(self._copy)
        return True
