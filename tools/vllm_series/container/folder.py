# SPDX-License-Identifier: Apache-2.0
"""Write the folder for an image in one step."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from vllm_series.container.files import EXECUTABLE, MANIFEST
from vllm_series.errors import EnvironmentFaultError, PreconditionError
from vllm_series.locks import locked
from vllm_series.swap import recover_directory, swap_directory


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make ``folder`` with ``files``, in place of one that this tool wrote before.

    Raises:
        PreconditionError: There is something else.
        EnvironmentFaultError: It cannot be written. What was there is unchanged.

    """
    with locked(folder.with_name(f".{folder.name}.lock"), str(folder), keep=False):
        recover_directory(folder)
        if (
            folder.exists()
            and not (folder / MANIFEST).is_file()
            and (folder.is_file() or any(folder.iterdir()))
        ):
            raise PreconditionError(
                f"{folder} is there already and was not written by this command", hint="name a new folder"
            )
        staging = folder.with_name(f".{folder.name}.new")
        try:
            for name, content in files.items():
                target = staging / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
                target.chmod(0o755 if name in EXECUTABLE else 0o644)
            if folder.exists():
                swap_directory(folder, staging)
            else:
                staging.rename(folder)
        except OSError as error:
            raise EnvironmentFaultError(f"cannot write {folder}: {error.strerror}") from None
        finally:
            shutil.rmtree(staging, ignore_errors=True)
