# SPDX-License-Identifier: Apache-2.0
"""What to pack: which trees the GPU tiers need, and the wheels."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from vllm_series.compose import Mode, compose, write_tree
from vllm_series.errors import EnvironmentFaultError
from vllm_series.plan import Target, make_plan
from vllm_series.project import Project
from vllm_series.testtable import TestTable
from vllm_series.tiers import RECORDED

SERIES = "series"
REQUIREMENTS = Path(__file__).resolve().parent / "gpuenv" / "requirements.txt"
#: What pip may take for a Linux machine with a recent C library.
_PLATFORMS = (
    *(f"manylinux_2_{n}_x86_64" for n in (34, 31, 28, 27, 26, 24, 17, 5)),
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
)


def roles(project: Project, target: Target, table: TestTable) -> dict[str, str]:
    """The trees by role: the whole series, and for each patch with GPU tests the tree without it."""
    found = {SERIES: write_tree(target, make_plan(project, target, None).applications)}
    for name in project.series.names:
        tests = table.of(name, target.serving.ref)
        if any(tests.tiers.get(tier) for tier in RECORDED):
            composition = compose(project, target, name, Mode.SERIES)
            if composition is not None:
                found[f"without {name}"] = composition.control_tree
    return found


def wheels(folder: Path, release: str, python: str = "3.12") -> tuple[Path, tuple[Path, ...]]:
    """The wheels of vLLM and of the packages beside it; downloaded into ``folder`` as far as they lack.

    Raises:
        EnvironmentFaultError: The package index does not have them, or cannot be reached.

    """
    folder.mkdir(parents=True, exist_ok=True)
    version = release.removeprefix("v")
    _download(folder, python, ["-r", str(REQUIREMENTS)])
    _download(folder, python, [f"vllm=={version}"])
    vllm = sorted(folder.glob(f"vllm-{version}-*.whl"))
    if not vllm:
        raise EnvironmentFaultError(f"{folder} has no wheel of vLLM {version}")
    wanted = _distributions(REQUIREMENTS)
    others = [w for w in sorted(folder.glob("*.whl")) if tuple(w.name.split("-")[:2]) in wanted]
    return vllm[0], tuple(others)


def _distributions(requirements: Path) -> set[tuple[str, str]]:
    rows = (line.split("#")[0].strip() for line in requirements.read_text("utf-8").splitlines())
    pairs = (row.split("==") for row in rows if row)
    return {(name.replace("-", "_"), version) for name, version in pairs}


def _download(folder: Path, python: str, what: Sequence[str]) -> None:
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--only-binary=:all:", "--implementation", "cp", "--python-version", python,
        *(f"--platform={platform}" for platform in _PLATFORMS), "--find-links", str(folder),
        "--dest", str(folder), *what,
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if result.returncode != 0:
        errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR:")]
        raise EnvironmentFaultError(
            f"cannot download {what[-1]}: {(errors or ['no message'])[0]}",
            hint=f"put the wheels into {folder} by hand",
        )
