# SPDX-License-Identifier: Apache-2.0
"""The file of results that ``ci/gpu.sh`` writes on a machine with a GPU.

Which tests ran there and what came out is for this project's tests to judge. Here it is only known which
machine it was, and when.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from vllm_series.errors import UsageError

SCHEMA = 1
#: Tell a test where the results are, and which tree it judges.
FILE_VARIABLE, TREE_VARIABLE = "VLLM_SERIES_RESULTS", "VLLM_SERIES_TREE_ID"


@dataclass(frozen=True)
class Results:
    """A file of results.

    Attributes:
        path: The file.
        digest: SHA-256 of it.
        date: When it was begun.
        release: The release that its trees are made from.
        machine: Where it comes from: GPU, driver and versions.

    """

    path: Path
    digest: str
    date: str
    release: str
    machine: dict[str, object]

    def variables(self, tree: str) -> dict[str, str]:
        """The environment of a test that judges the runs on a tree."""
        return {FILE_VARIABLE: str(self.path), TREE_VARIABLE: tree}

    def document(self) -> dict[str, object]:
        """What evidence says of it."""
        return {**self.machine, "results": self.digest}


def read_results(path: Path) -> Results:
    """Read a file of results.

    Raises:
        UsageError: It is none.

    """
    try:
        content = path.read_bytes()
        row = json.loads(content)
        if row["schema"] != SCHEMA:
            raise UsageError(f"{path} was written by another version of ci/gpu.sh")
        digest = hashlib.sha256(content).hexdigest()
        return Results(path.absolute(), digest, str(row["date"]), str(row["release"]), dict(row["machine"]))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path} holds no results of GPU runs: {error!r}", hint="ci/gpu.sh writes them as results.json"
        ) from None
