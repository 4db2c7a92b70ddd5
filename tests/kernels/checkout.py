# SPDX-License-Identifier: Apache-2.0
"""Makes a plain vLLM checkout importable enough for its Triton kernels.

vLLM asks ``importlib.metadata`` for its own version and switches Triton off when there is no
answer. A checkout has none, so :func:`metadata_entry` writes the smallest possible one.
"""

from __future__ import annotations

import tempfile
from importlib.metadata import distributions
from pathlib import Path

# Not the tree's real version, and no "cpu" in it: that would ask for Triton's CPU backend.
VERSION = "0+checkout"


def metadata_entry(tree: Path) -> list[str]:
    """``sys.path`` entries to add for ``tree``: none, or one with a version for vLLM."""
    if any(True for _ in distributions(name="vllm", path=[str(tree)])):
        return []
    entry = Path(tempfile.gettempdir()) / "vllm-checkout-metadata"
    metadata = entry / f"vllm-{VERSION}.dist-info" / "METADATA"
    if not metadata.is_file():
        metadata.parent.mkdir(parents=True, exist_ok=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}\n")
    return [str(entry)]
