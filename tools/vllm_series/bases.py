# SPDX-License-Identifier: Apache-2.0
"""The supported vLLM releases, and which file of a patch serves which base."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from vllm_series.errors import UsageError

_REF = re.compile(r"v(\d+)\.(\d+)\.(\d+)(?:\.?(?:post|rc|dev)\d+)*", re.ASCII)


@dataclass(frozen=True)
class Base:
    """A supported base.

    Attributes:
        ref: Tag, such as ``v0.33.0``.
        version: Release version in the package index.
        commit: Id of the commit that :mod:`vllm_series.releases` imports the release as.
        sdist_sha256: Digest of the release's source archive.
        upstream: Id of vLLM's own commit as far as the release states it.

    """

    ref: str
    version: str
    commit: str
    sdist_sha256: str
    upstream: str = ""


def parse_bases(text: str, where: str = "base.toml") -> tuple[Base, ...]:
    """Read ``base.toml``; the pinned base is the first.

    Raises:
        UsageError: Not TOML, a missing key, or no base.

    """
    try:
        rows = tomllib.loads(text).get("base", [])
        bases = tuple(Base(**row) for row in rows)
    except (tomllib.TOMLDecodeError, TypeError) as error:
        raise UsageError(f"{where}: {error}") from None
    if not bases:
        raise UsageError(f"{where}: it names no base")
    for number, base in enumerate(bases):
        if any(other.ref == base.ref for other in bases[:number]):
            raise UsageError(f"{where}: {base.ref} stands there twice")
        if not all(isinstance(value, str) for value in vars(base).values()):
            raise UsageError(f"{where}: a value of {base.ref} is no text")
        if version_of(base.ref) is None:
            raise UsageError(f"{where}: {base.ref} is no release tag like v0.33.0")
    return bases


def version_of(ref: str | None) -> tuple[int, ...] | None:
    """``(0, 33, 0)`` for a release tag; None for anything else."""
    match = _REF.fullmatch(ref or "")
    return tuple(int(part) for part in match.groups()) if match else None


def as_tag(text: str) -> str:
    """The release tag of a version, ``v0.33.0`` for ``0.33.0``; any other text as it is."""
    return f"v{text}" if version_of(f"v{text}") else text


def serving_base(bases: Sequence[Base], release: str | None) -> Base:
    """The supported base whose patch files serve a commit.

    Args:
        bases: The supported bases, the pinned one first.
        release: The nearest release at or before the commit, None if that is unknown.

    Returns:
        The newest base that is not newer than the release, else the oldest base; the pinned base
        if the release is unknown.

    """
    found = version_of(release)
    if found is None:
        return bases[0]
    ordered = sorted(bases, key=lambda base: version_of(base.ref) or ())
    older = [base for base in ordered if (version_of(base.ref) or ()) <= found]
    return older[-1] if older else ordered[0]


def serving_file(name: str, base: Base, pinned: Base, files: Collection[str]) -> str | None:
    """Which patch file serves ``base``, relative to the patch directory.

    A variant for the base wins over the file for the pinned base. A patch that exists only for other
    bases serves none: None.
    """
    variant = f"{base.ref}/{name}.patch"
    if base != pinned and variant in files:
        return variant
    plain = f"{name}.patch"
    return plain if plain in files else None
