# SPDX-License-Identifier: Apache-2.0
"""The folder of an export: written in one step, and never over what a person has changed in it."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from vllm_series.errors import EnvironmentFaultError
from vllm_series.swap import recover_directory, swap_directory


def edited(folder: Path) -> bool:
    """Whether somebody has changed the pull request's text since it was written."""
    body, record = folder / "PULL_REQUEST.md", folder / "evidence.json"
    if not body.is_file():
        return False
    try:
        known = json.loads(record.read_bytes()).get("pull_request_sha256")
    except (OSError, ValueError, AttributeError):
        return True
    return bool(known != hashlib.sha256(body.read_bytes()).hexdigest())


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of an export; other files that lie in the folder stay.

    Raises:
        EnvironmentFaultError: No space, or no permission. The old folder is unchanged.

    """
    staging = folder.with_name(f".{folder.name}.new")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        recover_directory(folder)
        if folder.is_dir():
            shutil.copytree(folder, staging, symlinks=True)
            (staging / "range-diff.txt").unlink(missing_ok=True)
        else:
            staging.mkdir()
        for name, content in files.items():
            (staging / name).write_bytes(content)
        if folder.is_dir():
            swap_directory(folder, staging)
        else:
            staging.rename(folder)
    except OSError as error:
        shutil.rmtree(staging, ignore_errors=True)
        raise EnvironmentFaultError(f"cannot write {folder}: {error.strerror or error}") from None
