# SPDX-License-Identifier: Apache-2.0
"""A vLLM that an installer put into a Python environment."""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vllm_series.errors import PreconditionError, UsageError

_DISTRIBUTION = re.compile(r"vllm-(?P<version>[^-]+)\.dist-info")
_ASK = "python -c 'import sysconfig; print(sysconfig.get_paths()[\"purelib\"])'"


@dataclass(frozen=True)
class Installed:
    """An installed vLLM wheel.

    Attributes:
        site: The folder that holds ``vllm/``.
        distribution: Name of its ``.dist-info`` folder.
        version: As installed, such as ``0.33.0`` or ``0.33.0+cu129``.

    """

    site: Path
    distribution: str
    version: str

    @property
    def ref(self) -> str:
        """The release tag that the version stands for."""
        return f"v{self.version.partition('+')[0]}"

    @property
    def record(self) -> str:
        """The installer's list of files, relative to ``site``."""
        return f"{self.distribution}/RECORD"


def find_installed(path: Path | None = None) -> Installed:
    """The vLLM in a site-packages folder.

    Args:
        path: That folder, or a virtual environment; None for the active environment, else for the one that
            this tool runs in.

    Raises:
        UsageError: There is no vLLM there, or several.
        PreconditionError: It is a checkout that was installed to be edited, or two versions are mixed.

    """
    for site in _candidates(path):
        found = [match for entry in _entries(site) if (match := _DISTRIBUTION.fullmatch(entry))]
        if len(found) > 1:
            raise PreconditionError(
                f"{site} has several vLLM at once: {', '.join(sorted(m[0] for m in found))}",
                hint="reinstall vLLM with: pip install --force-reinstall --no-deps vllm==VERSION",
            )
        if found and (site / "vllm" / "__init__.py").is_file():
            return Installed(site, found[0][0], found[0]["version"])
        if found:
            raise PreconditionError(
                f"{site} has {found[0][0]} without the package itself: a checkout, installed to be edited",
                hint="patch the checkout with: vllm-series apply --vllm PATH",
            )
    where = path or _active()
    raise UsageError(
        f"{where} has no installed vLLM",
        hint=f"name the site-packages folder that has it, as told by the Python that runs vLLM: {_ASK}",
    )


def _active() -> Path:
    environment = os.environ.get("VIRTUAL_ENV")
    return Path(environment) if environment else Path(sysconfig.get_paths()["purelib"])


def _candidates(path: Path | None) -> Iterator[Path]:
    named = (path or _active()).expanduser().absolute()
    if not named.is_dir():
        raise UsageError(f"{named} is no folder", hint=f"the folder to name is told by: {_ASK}")
    yield named
    for pattern in ("lib/python3*/site-packages", "lib/python3*/dist-packages"):
        yield from sorted(named.glob(pattern))


def _entries(site: Path) -> list[str]:
    try:
        return [entry.name for entry in site.iterdir()]
    except PermissionError:
        raise UsageError(f"{site} cannot be read") from None
