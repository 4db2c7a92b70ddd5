# SPDX-License-Identifier: Apache-2.0
"""Turn applied patches into commits, all at once, as objects that nothing points at yet."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_series.git import NO_COMMIT, Ident, Repository
from vllm_series.stack import Application
from vllm_series.tree import File

#: Keeps the new objects alive until a branch does.
BUILD_REF = "refs/vllm-series/build"


def commit_stack(
    repository: Repository,
    base: str,
    applications: Sequence[Application],
    committer: tuple[str, str] | None = None,
) -> list[str]:
    """Write one commit per application on top of ``base``.

    The author and the date of a patch are also the committer's, so that the same series on the same
    base has the same commit ids on every machine.

    Args:
        repository: Where to write.
        base: The commit below.
        applications: The applied patches.
        committer: Name and e-mail address of another committer; the date stays.

    Returns:
        Commit ids in order. :data:`BUILD_REF` names the last one.

    """
    if not applications:
        return []
    out = bytearray(b"feature done\n")
    parent = base
    for mark, application in enumerate(applications, 1):
        patch = application.patch
        author = patch.author
        maker = Ident(*committer, author.seconds, author.zone) if committer else author
        idents = [who.raw().encode("utf-8", "surrogateescape") for who in (author, maker)]
        message = patch.message.encode("utf-8", "surrogateescape")
        out += b"commit %s\nmark :%d\n" % (BUILD_REF.encode(), mark)
        out += b"author %b\ncommitter %b\n" % tuple(idents)
        out += b"data %d\n%b\nfrom %b\n" % (len(message), message, parent.encode())
        # Deletions first: a file may become a folder.
        for path, file in sorted(application.changes.items(), key=lambda item: item[1] is not None):
            out += _path_command(path, file)
        parent = f":{mark}"
    for mark in range(1, len(applications) + 1):
        out += b"get-mark :%d\n" % mark
    out += b"done\n"
    return repository.fast_import(bytes(out)).decode().split()


def drop_build_ref(repository: Repository) -> None:
    """Let go of the name that kept new commits alive until a branch did."""
    common = repository.common_dir
    if (common / BUILD_REF).exists() or (common / "reftable").exists():
        repository.update_refs([(BUILD_REF, NO_COMMIT, None)], "vllm-series")


def _path_command(path: str, file: File | None) -> bytes:
    name = quote_path(path)
    if file is None:
        return b"D %b\n" % name
    return b"M %b inline %b\ndata %d\n%b\n" % (
        file.mode.encode(),
        name,
        len(file.content),
        file.content,
    )


def quote_path(path: str) -> bytes:
    """A path as ``git fast-import`` reads it."""
    raw = path.encode("utf-8", "surrogateescape")
    raw = raw.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
    return b'"%b"' % raw
