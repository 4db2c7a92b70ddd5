# SPDX-License-Identifier: Apache-2.0
"""A vLLM that pip has installed: where it lies, which release it is, what the wheel brought along."""

from __future__ import annotations

import base64
import binascii
import csv
import hashlib
import io
import json
import os
import re
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote, urlsplit

from vllm_series.errors import PreconditionError, UsageError

PACKAGE = "vllm"

_ASK = "python -c 'import sysconfig; print(sysconfig.get_paths()[\"purelib\"])'"

_RELEASE = re.compile(r"\d+(?:\.\d+)+(?:\.post\d+)?")
_COMMIT = re.compile(r"\+(?:.*\.)?g([0-9a-f]{7,40})(?:\.|$)")


@dataclass(frozen=True)
class Recorded:
    """What the wheel's ``RECORD`` says of one file; files made after the build have no digest."""

    sha256: str
    size: int | None


@dataclass(frozen=True)
class Installed:
    """An installed vLLM.

    Attributes:
        site: The folder that holds the package, such as ``site-packages``.
        dist_info: The folder with its metadata.
        version: Its version, such as ``0.33.0+cu129``.

    """

    site: Path
    dist_info: Path
    version: str

    @property
    def package(self) -> Path:
        """The folder of the package."""
        return self.site / PACKAGE

    @property
    def distribution(self) -> str:
        """The name of the metadata folder, such as ``vllm-0.33.0.dist-info``."""
        return self.dist_info.name

    @property
    def record_path(self) -> str:
        """The installer's list of files, relative to :attr:`site`."""
        return f"{self.distribution}/RECORD"

    @property
    def ref(self) -> str:
        """The release tag that the version stands for, whatever was built from it."""
        return f"v{self.version.partition('+')[0]}"

    @property
    def release(self) -> str | None:
        """The release that it was built from, such as ``v0.33.0``; None for any other commit."""
        public = self.version.partition("+")[0]
        return f"v{public}" if _RELEASE.fullmatch(public) else None

    @property
    def commit(self) -> str | None:
        """The commit that the version names, abbreviated, if it names one."""
        match = _COMMIT.search(self.version)
        return match[1] if match else None

    @cached_property
    def record(self) -> Mapping[str, Recorded]:
        """The files that pip has installed, by path relative to :attr:`site`."""
        path = self.site / self.record_path
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise PreconditionError(
                f"{path} is missing, so that nobody can say what was installed",
                hint="install vLLM with pip or uv",
            ) from None
        return dict(_rows(text, path))


def _rows(text: str, path: Path) -> Iterator[tuple[str, Recorded]]:
    for row in csv.reader(io.StringIO(text)):
        if len(row) != 3:
            raise PreconditionError(f"{path} is damaged: {','.join(row)!r}", hint="install vLLM anew")
        name, digest, size = row
        kind, _, value = digest.partition("=")
        raw = b""
        if kind == "sha256":
            try:
                raw = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
            except binascii.Error:
                raise PreconditionError(
                    f"{path} is damaged: the digest of {name}", hint="install vLLM anew"
                ) from None
        yield name, Recorded(raw.hex(), int(size) if size.isdigit() else None)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def find_installed(path: Path) -> Installed | None:
    """The vLLM installed at ``path``: site-packages, the package in it, or a virtual environment.

    Returns:
        The installation, or None if there is none.

    Raises:
        PreconditionError: There are several, or it is an editable one.

    """
    for site in _sites(path):
        found = sorted(site.glob(f"{PACKAGE}-*.dist-info"))
        if len(found) > 1:
            raise PreconditionError(
                f"{site} has the metadata of several vLLMs: {', '.join(p.name for p in found)}",
                hint="uninstall vLLM until none is left, then install one",
            )
        if not found:
            continue
        version = found[0].name.removeprefix(f"{PACKAGE}-").removesuffix(".dist-info")
        installed = Installed(site, found[0], version)
        if not (installed.package / "__init__.py").is_file():
            raise _without_package(installed)
        return installed
    return None


def require_installed(path: Path | None = None) -> Installed:
    """The vLLM installed at ``path``; None stands for the active environment, else for this tool's own.

    Raises:
        UsageError: There is none.
        PreconditionError: There are several, it is an editable one, or there is no such folder.

    """
    where = (path or _active()).expanduser().absolute()
    if not where.is_dir():
        raise PreconditionError(f"{where} is not a folder", hint=f"the folder to name is told by: {_ASK}")
    try:
        found = find_installed(where)
    except PermissionError:
        raise UsageError(f"{where} cannot be read") from None
    if found is None:
        raise UsageError(
            f"{where} has no installed vLLM",
            hint=f"name the site-packages folder that has it, as told by the Python that runs vLLM: {_ASK}",
        )
    return found


def _active() -> Path:
    environment = os.environ.get("VIRTUAL_ENV")
    return Path(environment) if environment else Path(sysconfig.get_paths()["purelib"])


def _sites(path: Path) -> Iterator[Path]:
    if path.name == PACKAGE and (path / "__init__.py").is_file():
        yield path.parent
        return
    yield path
    for pattern in ("lib/python3*/site-packages", "lib/python3*/dist-packages"):
        yield from sorted(path.glob(pattern))


def _without_package(installed: Installed) -> PreconditionError:
    try:
        source = json.loads((installed.dist_info / "direct_url.json").read_text())
        url = urlsplit(source["url"]) if source.get("dir_info", {}).get("editable") else None
    except (OSError, ValueError, KeyError, AttributeError):
        url = None
    if url is not None and url.scheme == "file":
        folder = unquote(url.path)
        return PreconditionError(
            f"{installed.site} has an editable vLLM, whose files are in {folder}", hint=f"name {folder}"
        )
    return PreconditionError(
        f"{installed.site} has the metadata of vLLM {installed.version}, and not the package",
        hint="install vLLM anew",
    )
