# SPDX-License-Identifier: Apache-2.0
"""The tree's own QSA kernel tests, unchanged, on the CPU: all that are not too large pass.

Left out, and covered in smaller form by ``test_qsa_interpreted.py`` and
``test_prepare_interpreted.py``: attention with more than 32 rows (up to 27 GB of cache and
minutes of interpreter) and the 4097-token prepare.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

TOO_LARGE = ["tiled", "r128", "r257", "r513", "r700", "r1024", "r2048"]
FILES = {
    "test_qsa_prepare.py": 14,
    "test_qsa_reference.py": 60,
}  # at least so many tests, else something was not collected


@pytest.mark.parametrize(("name", "at_least"), FILES.items(), ids=FILES)
def test_upstream_kernel_tests_pass(tree: Path, tmp_path: Path, name: str, at_least: int) -> None:
    report = tmp_path / "report.xml"
    expression = " and ".join(f"not {word}" for word in TOO_LARGE)
    command = [sys.executable, "-m", "kernels.upstream_tests", "-q", "-k", expression]
    node = f"tests/models/qwen4_exp/{name}"
    done = subprocess.run(
        [*command, f"--junitxml={report}", node],
        cwd=Path(__file__).parents[1],
        env=os.environ.copy(),
        capture_output=True,
        text=True,
        check=False,
    )
    tail = done.stdout[-6000:]
    assert report.is_file(), tail + done.stderr[-3000:]
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    counts = {key: int(suite.attrib[key]) for key in ("tests", "failures", "errors", "skipped")}
    assert counts["tests"] >= at_least, counts
    assert (counts["failures"], counts["errors"], counts["skipped"]) == (0, 0, 0), tail
