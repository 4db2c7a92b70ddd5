# SPDX-License-Identifier: Apache-2.0
"""Find the vLLM about to run, without importing it, and see which patches are in it."""

from __future__ import annotations

import importlib.machinery
import re
import shutil
import subprocess
import sys
from pathlib import Path

from vllm_series.bases import Base
from vllm_series.errors import SeriesError
from vllm_series.places import Folder
from vllm_series.preflight.facts import Engine
from vllm_series.preflight.flags import read_flags
from vllm_series.project import Project
from vllm_series.stack import apply_changes
from vllm_series.tree import Snapshot

_PROBE = "import importlib.util as u; s = u.find_spec('vllm'); print(s.origin if s and s.origin else '')"
_RUNTIME = re.compile(r"^nvidia_cuda_runtime(?:_cu\d+)?-(\d+)\.")


def find_engine(project: Project | None, named: Path | None) -> Engine | None:
    """The package that ``vllm serve`` would import: where ``named`` says, else where the command finds it."""
    folder = named.absolute() if named is not None else _installed()
    if folder is None or not (folder / "vllm" / "__init__.py").is_file():
        return None
    patches = present(project, folder) if project else frozenset()
    return Engine(folder, patches, _cuda(folder), read_flags(folder))


def present(project: Project, folder: Path) -> frozenset[str]:
    """The patches whose changes to the package are there, by the files of the base that explains most."""
    return max((_present(project, base, folder) for base in project.bases), key=len)


def _present(project: Project, base: Base, folder: Path) -> frozenset[str]:
    """Take the series back from its end, patch by patch; what can be taken back is there."""
    snapshot = Snapshot(Folder(folder))
    found = set()
    try:
        patches = project.patches(base)
        for patch in reversed(patches):
            # A wheel has the package alone, without tests and docs.
            own = [change.reversed() for change in reversed(patch.changes) if change.path.startswith("vllm/")]
            results, changes = apply_changes(snapshot, own)
            if own and changes and all(result.ok for result in results):
                found.add(patch.name)
                snapshot = snapshot.with_changes(changes)
    except SeriesError:
        return frozenset()
    return frozenset(found)


def _installed() -> Path | None:
    """The folder that holds the package, as this Python or the one behind the command ``vllm`` finds it."""
    path = [entry for entry in sys.path if entry and Path(entry).resolve() != Path.cwd()]
    spec = importlib.machinery.PathFinder.find_spec("vllm", path)
    if spec is not None and spec.origin:
        return Path(spec.origin).parent.parent
    command = shutil.which("vllm")
    if command is None:
        return None
    try:
        first = Path(command).read_bytes().split(b"\n", 1)[0].decode()
        python = first.removeprefix("#!").split()[0]
        done = subprocess.run(
            [python, "-I", "-c", _PROBE], capture_output=True, text=True, timeout=60, check=False, cwd="/"
        )
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
        return None
    origin = done.stdout.strip()
    return Path(origin).parent.parent if origin else None


def _cuda(folder: Path) -> int | None:
    """Major version of the CUDA runtime that is installed beside the package."""
    versions = [
        int(match[1]) for path in folder.glob("nvidia_cuda_runtime*") if (match := _RUNTIME.match(path.name))
    ]
    return max(versions, default=None)
