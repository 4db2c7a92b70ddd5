# SPDX-License-Identifier: Apache-2.0
"""The tiers: in how real an environment a patch is proven.

A tier is a value. What needs a GPU is run on a machine that has one (``ci/gpu.sh``), and leaves a file of
results. The tests of such a tier judge that file, on any machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vllm_series.errors import UsageError


@dataclass(frozen=True)
class Tier:
    """A tier.

    Attributes:
        name: Its name on the command line and in ``tests.toml``.
        what: What it does, for people.
        variables: Environment variables of its processes.
        selectors: Whether it runs tests that ``tests.toml`` names; the static tier names none.
        upstream: Whether vLLM's own test files are compared between base and patched tree.
        limit: Seconds that one phase of a test may take.
        recorded: Whether its tests judge results that come from elsewhere.

    """

    name: str
    what: str
    variables: Mapping[str, str] = field(default_factory=dict)
    selectors: bool = True
    upstream: bool = False
    limit: float = 300.0
    recorded: bool = False


#: vLLM has no platform "empty" that a ``VllmConfig()`` could be made on.
_CPU = {"VLLM_TARGET_DEVICE": "cpu"}
#: Triton stays off, as on any machine without a GPU, and a GPU stays out of sight.
_NO_GPU = {"CUDA_VISIBLE_DEVICES": "-1"}
#: vLLM takes an empty list for a worker before its start, and leaves Triton on.
_TRITON_ON = {"CUDA_VISIBLE_DEVICES": ""}
#: The interpreter calls numpy per program, and numpy's threads only cost there. A test that compiles does so
#: in a process of its own, which it tells to, so both tiers are alike to pytest and share its fixtures.
_KERNELS = {**_CPU, **_TRITON_ON, "TRITON_INTERPRET": "1", "OPENBLAS_NUM_THREADS": "1"}

TIERS = (
    Tier(
        "static",
        "byte-compile, import and lint the changed files",
        {**_CPU, **_NO_GPU},
        selectors=False,
    ),
    Tier("cpu", "vLLM's tests in pure Python", {**_CPU, **_NO_GPU}, upstream=True),
    Tier("interpret", "GPU kernels in Triton's interpreter", _KERNELS),
    Tier("compile", "GPU kernels compiled ahead of time", _KERNELS, limit=1800.0),
    Tier("gpu", "GPU kernels on a GPU", {**_CPU, **_NO_GPU}, recorded=True),
    Tier("engine", "a vLLM engine on one GPU", {**_CPU, **_NO_GPU}, recorded=True),
    Tier("pp", "a vLLM engine with pipeline stages", {**_CPU, **_NO_GPU}, recorded=True),
)

#: The tiers that ``tests.toml`` may name.
SELECTING = tuple(tier.name for tier in TIERS if tier.selectors)
#: The tiers that judge recorded results.
RECORDED = tuple(tier.name for tier in TIERS if tier.recorded)


def choose(names: Sequence[str] | None, *, results: bool = False) -> tuple[Tier, ...]:
    """The tiers of that name, in their own order.

    Args:
        names: None for all that can be had: with recorded results, those that judge them; without, the rest.
        results: Whether there are recorded results.

    Raises:
        UsageError: There is no such tier.

    """
    known = {tier.name: tier for tier in TIERS}
    for name in names or ():
        if name not in known:
            raise UsageError(f"there is no tier {name}", hint=f"tiers: {', '.join(known)}")
    return tuple(tier for tier in TIERS if (tier.name in names if names else tier.recorded == results))
