# SPDX-License-Identifier: Apache-2.0
"""vLLM releases from the package index, imported as commits.

The same source archive gives the same commit id everywhere: tree, message, names and date depend on the
archive alone. Blob ids equal those of vLLM's own repository, so three-way merges work across both.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from vllm_series.bases import Base
from vllm_series.build import quote_path
from vllm_series.errors import EnvironmentFaultError, UsageError
from vllm_series.git import Repository
from vllm_series.store import Progress

#: Names another package index; pip's own variable is honoured too.
INDEX_VARIABLE = "VLLM_SERIES_INDEX"
IMPORT_REF = "refs/vllm-series/import"
_IMPORTER = "vLLM release import <vllm-series@vllm-ampere-multigpu.invalid>"
_GENERATED_SETUP_CFG = re.compile(rb"\[egg_info\]\s+tag_build = *\s+tag_date = 0\s*")


def is_generated(path: str, content: bytes) -> bool:
    """Whether a file of a source archive was made when it was packed, and is not in the repository."""
    return (
        path in ("PKG-INFO", "vllm/_version.py")
        or path.split("/")[0].endswith(".egg-info")
        or (path == "setup.cfg" and _GENERATED_SETUP_CFG.fullmatch(content) is not None)
    )


def is_import(repository: Repository, commit: str) -> bool:
    """Whether a commit was made from a source archive, and so has no history."""
    return any(found.trailer("Sdist-SHA256") for found in repository.commits(commit, 1))


def download(ref: str, folder: Path, known: Base | None, progress: Progress, index: str = "") -> Path:
    """Download the source archive of a release; a verified one that is there is used again.

    Returns:
        The archive.

    Raises:
        UsageError: The index has no such release.
        EnvironmentFaultError: No network, or the digest is wrong.

    """
    version = ref.removeprefix("v")
    target = folder / f"vllm-{version}.tar.gz"
    if known is not None and target.is_file() and _digest(target) == known.sdist_sha256:
        return target
    # Imported here: it takes longer to import than most commands take to run.
    import pypi_simple
    import requests

    endpoint = (
        index
        or os.environ.get(INDEX_VARIABLE)
        or os.environ.get("PIP_INDEX_URL")
        or pypi_simple.PYPI_SIMPLE_ENDPOINT
    )
    part = target.with_suffix(".part")
    try:
        with pypi_simple.PyPISimple(endpoint) as client:
            page = client.get_project_page("vllm", timeout=30)
            found = [p for p in page.packages if p.package_type == "sdist" and p.version == version]
            if not found:
                raise UsageError(
                    f"the package index {endpoint} has no source archive of vLLM {version}",
                    hint="see the releases with: pip index versions vllm",
                )
            expected = found[0].digests.get("sha256")
            if known is not None and expected != known.sdist_sha256:
                raise EnvironmentFaultError(
                    f"vLLM {version} at {endpoint} has the digest {expected}, "
                    f"and this series was made for {known.sdist_sha256}",
                    hint="use the official package index, or a newer version of this tool",
                )
            if target.is_file() and _digest(target) == expected:
                return target
            client.download_package(found[0], part, progress=progress, timeout=60)
        part.replace(target)
    except pypi_simple.DigestMismatchError as error:
        raise EnvironmentFaultError(
            f"the download of vLLM {version} is damaged: {error}", hint="run the command again"
        ) from None
    except pypi_simple.NoDigestsError:
        raise EnvironmentFaultError(
            f"{endpoint} states no digest of vLLM {version}, so that nothing can be checked",
            hint="use the official package index",
        ) from None
    except pypi_simple.NoSuchProjectError:
        raise EnvironmentFaultError(f"the package index {endpoint} does not know vllm") from None
    except (
        requests.exceptions.MissingSchema,
        requests.exceptions.InvalidSchema,
        requests.exceptions.InvalidURL,
    ):
        raise UsageError(
            f"{endpoint} is no address of a package index", hint="such as https://pypi.org/simple/"
        ) from None
    except requests.RequestException as error:
        raise EnvironmentFaultError(
            f"cannot download vLLM {version} from {endpoint}: {_short(error)}",
            hint="check the network and run the command again; nothing was left half done",
        ) from None
    except OSError as error:
        raise EnvironmentFaultError(
            f"cannot write {part}: {error.strerror}",
            hint="free disk space or set VLLM_SERIES_CACHE",
        ) from None
    finally:
        part.unlink(missing_ok=True)
    return target


def _short(error: Exception) -> str:
    return str(error).splitlines()[0][:200] or type(error).__name__


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _members(archive: Path, top: str) -> Iterator[tuple[str, str, bytes, int]]:
    """Path below the folder ``top``, git mode, content and time of every file of the archive."""
    try:
        with gzip.open(archive) as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
            for member in tar:
                # Raises on links that leave the folder, and on devices.
                tarfile.data_filter(member, "/nonexistent")
                path = _below(member.name, top)
                if member.issym():
                    yield path, "120000", member.linkname.encode(), int(member.mtime)
                elif member.isfile() or member.islnk():
                    content = tar.extractfile(member)
                    yield (
                        path,
                        "100755" if member.mode & 0o100 else "100644",
                        content.read() if content else b"",
                        int(member.mtime),
                    )
            while stream.read(1 << 20):
                pass  # The check sum stands behind the last member.
    except (tarfile.TarError, EOFError, OSError, KeyError, zlib.error) as error:
        raise EnvironmentFaultError(
            f"{archive} cannot be read: {error}", hint=f"remove {archive} and run the command again"
        ) from None


def _below(name: str, top: str) -> str:
    """The path of a member below ``top``; raises if it does not lie there."""
    first, _, path = name.partition("/")
    parts = path.split("/")
    if first != top or (path and {"", ".", ".."}.intersection(parts)) or ".git" in map(str.lower, parts):
        raise tarfile.TarError(f"{name!r} does not belong into {top}/")
    return path


def import_archive(repository: Repository, ref: str, archive: Path, known: Base | None = None) -> str:
    """Import a source archive as a commit, and tag it ``ref`` once it is whole.

    Returns:
        The commit id.

    Raises:
        EnvironmentFaultError: The archive is damaged, or gives another commit than ``known`` says.

    """
    files = bytearray()
    latest = 0
    upstream = ""
    for path, mode, content, seconds in _members(archive, f"vllm-{ref.removeprefix('v')}"):
        latest = max(latest, seconds)
        if path == "vllm/_version.py":
            match = re.search(rb"commit_id = 'g([0-9a-f]+)'", content)
            upstream = match[1].decode() if match else ""
        if not is_generated(path, content):
            files += b"M %b inline %b\ndata %d\n" % (mode.encode(), quote_path(path), len(content))
            files += content + b"\n"
    message = (
        f"vLLM {ref.removeprefix('v')}\n\nThe files of the source archive {archive.name}.\n\n"
        f"Sdist-SHA256: {_digest(archive)}\n" + (f"Upstream-Commit: {upstream}\n" if upstream else "")
    ).encode()
    stream = b"feature done\ncommit %b\nmark :1\ncommitter %b %d +0000\ndata %d\n%b\ndeleteall\n" % (
        IMPORT_REF.encode(),
        _IMPORTER.encode(),
        latest,
        len(message),
        message,
    )
    commit = repository.fast_import(stream + bytes(files) + b"get-mark :1\ndone\n").decode().strip()
    if known is not None and known.commit and commit != known.commit:
        raise EnvironmentFaultError(
            f"{archive.name} imports as {commit}, and this series was made for {known.commit}",
            hint="report this with your git and Python versions",
        )
    repository.update_refs(
        [(f"refs/tags/{ref}", commit, "0" * 40), (IMPORT_REF, "0" * 40, commit)], f"import {ref}"
    )
    return commit
