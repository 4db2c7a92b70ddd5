# SPDX-License-Identifier: Apache-2.0
"""Environment of the kernel tests: which vLLM tree, and Triton's CPU interpreter.

Run them as::

    VLLM_TREE=<tree> PYTHONPATH=<tree> VLLM_TARGET_DEVICE=cpu CUDA_VISIBLE_DEVICES= \\
    TRITON_INTERPRET=1 HF_HUB_OFFLINE=1 python -m pytest tests/kernels

Without ``VLLM_TREE`` nothing here is collected: plain ``pytest`` needs no torch.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from .checkout import metadata_entry

# numpy multiplies small matrices here; a second thread only waits for the first.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

_TREE = os.environ.get("VLLM_TREE", "")

if not _TREE:
    collect_ignore_glob = ["test_*.py"]


def pytest_report_header() -> str:
    return f"kernel tests: VLLM_TREE={_TREE}" if _TREE else "kernel tests: off (VLLM_TREE unset)"


def _check_environment() -> None:
    tree = Path(_TREE).resolve()
    if not (tree / "vllm/models/qwen4_exp/nvidia/ops/qsa.py").is_file():
        raise pytest.UsageError(f"VLLM_TREE={_TREE} has no qwen4_exp QSA kernels")
    # Triton reads both when a kernel is decorated, vLLM when it is imported: too late here.
    for name, value, why in (
        ("TRITON_INTERPRET", "1", "kernels would need a GPU"),
        ("CUDA_VISIBLE_DEVICES", "", "vLLM would replace triton.jit by a placeholder"),
        ("VLLM_TARGET_DEVICE", "cpu", "vLLM would look for its CUDA extension"),
    ):
        if os.environ.get(name) != value:
            raise pytest.UsageError(f"set {name}={value!r} (is {os.environ.get(name)!r}): {why}")
    sys.path += metadata_entry(tree)
    import vllm
    from vllm.triton_utils import HAS_TRITON

    if not HAS_TRITON:
        raise pytest.UsageError("vLLM has switched Triton off; its log says why")
    found = Path(vllm.__path__[0]).resolve().parent
    if found != tree:
        raise pytest.UsageError(f"vllm is imported from {found}, not from VLLM_TREE={tree}")


def pytest_sessionstart(session: pytest.Session) -> None:
    if not _TREE:
        return
    _check_environment()
    from . import interpreter

    interpreter.install()


@pytest.fixture(scope="session")
def tree() -> Path:
    """The vLLM checkout under test."""
    return Path(_TREE).resolve()
