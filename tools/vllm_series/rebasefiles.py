# SPDX-License-Identifier: Apache-2.0
"""What the patch directory becomes when the series has been carried to another base.

The texts for the new base are written, those of every base supported so far stay what they were: where the
plain file changes, the old text becomes a variant.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from vllm_series.bases import Base, parse_bases, serving_file, version_of
from vllm_series.dropped import FILE, Dropped, with_dropped
from vllm_series.errors import EXIT_BUG, SeriesError
from vllm_series.git import CommitInfo
from vllm_series.patchfile import Patch, parse_patch
from vllm_series.project import Project
from vllm_series.rebasestate import Gone
from vllm_series.refresh import same_change

_BASE = re.compile(r"^\[\[base\]\]", re.MULTILINE)


@dataclass(frozen=True)
class NewFiles:
    """New content by path below ``patches/``; None removes a file."""

    files: Mapping[str, bytes | None]
    bases: tuple[Base, ...]


def base_of(ref: str, commit: CommitInfo) -> Base:
    """What ``base.toml`` says of an imported release."""
    return Base(
        ref=ref,
        version=ref.removeprefix("v"),
        commit=commit.oid,
        sdist_sha256=commit.trailer("Sdist-SHA256") or "",
        upstream=commit.trailer("Upstream-Commit") or "",
    )


def with_base(text: str, bases: Sequence[Base], new: Base) -> str:
    """The text of ``base.toml`` with one more base: first if it is the newest, else in its place."""
    block = "[[base]]\n" + "".join(f'{key} = "{value}"\n' for key, value in vars(new).items()) + "\n"
    mine = version_of(new.ref) or ()
    older = [number for number, base in enumerate(bases) if (version_of(base.ref) or ()) < mine]
    starts = [match.start() for match in _BASE.finditer(text)]
    if _is_newest(bases, new):
        at = starts[0]
    elif older and older[0] > 0:
        at = starts[older[0]]
    else:
        return text.rstrip("\n") + "\n\n" + block.rstrip("\n") + "\n"
    return text[:at] + block + text[at:]


def _is_newest(bases: Sequence[Base], new: Base) -> bool:
    return all((version_of(base.ref) or ()) < (version_of(new.ref) or ()) for base in bases)


def new_files(
    project: Project, new: Base, texts: Mapping[str, Patch], gone: Sequence[Gone], today: date
) -> NewFiles:
    """The patch directory with one more supported base.

    Args:
        project: The directory as it is.
        new: The base; it becomes the pinned one if it is the newest.
        texts: The patches for it, by name.
        gone: The patches that it does without.
        today: The date for ``dropped.toml``.

    """
    old_bases, old_files, pinned = project.bases, project.files, project.pinned
    newest = _is_newest(old_bases, new)
    files: dict[str, bytes | None] = {}
    for name in project.series.names:
        text = texts.get(name)
        plain = f"{name}.patch"
        had_plain = plain in old_files
        if not newest:
            old = project.patch(name, pinned)
            if text is not None and (old is None or not same_change(old, text)):
                files[f"{new.ref}/{plain}"] = text.raw
            continue
        if not had_plain and text is None:
            continue
        old_raw = (project.patch_dir / plain).read_bytes() if had_plain else b""
        if had_plain and text is not None and same_change(parse_patch(old_raw, text.path, name), text):
            continue
        files[plain] = text.raw if text is not None else None
        for base in old_bases:
            if had_plain and serving_file(name, base, pinned, old_files) == plain:
                files[f"{base.ref}/{plain}"] = old_raw
    base_text = (project.patch_dir / "base.toml").read_text("utf-8")
    files["base.toml"] = with_base(base_text, old_bases, new).encode()
    bases = parse_bases((files["base.toml"] or b"").decode())
    if gone:
        path = project.patch_dir / FILE
        text_before = path.read_text("utf-8") if path.exists() else ""
        rows = [Dropped(row.name, new.ref, today.isoformat(), row.verdict, row.reason) for row in gone]
        files[FILE] = with_dropped(text_before, rows).encode()
    found = NewFiles(files, bases)
    _require_support(project, found, new, texts)
    return found


def _require_support(project: Project, new: NewFiles, base: Base, texts: Mapping[str, Patch]) -> None:
    """Raise unless every old base is served by the bytes that served it, and the new one by ``texts``."""
    names = {*project.files, *(file for file, raw in new.files.items() if raw is not None)}
    names -= {file for file, raw in new.files.items() if raw is None}
    patches = frozenset(file for file in names if file.endswith(".patch"))

    def content(file: str | None) -> bytes | None:
        if file is None:
            return None
        written = new.files.get(file)
        return written if written is not None else (project.patch_dir / file).read_bytes()

    for name in project.series.names:
        for old in project.bases:
            was = project.file_for(name, old)
            now = content(serving_file(name, old, new.bases[0], patches))
            if now != ((project.patch_dir / was).read_bytes() if was else None):
                raise SupportLostError(f"{name} would be another one for {old.ref}")
        text = texts.get(name)
        now = content(serving_file(name, base, new.bases[0], patches))
        if text is not None and (now is None or not same_change(parse_patch(now, text.path, name), text)):
            raise SupportLostError(f"{name} would not be what was carried over to {base.ref}")


class SupportLostError(SeriesError):
    """The new files would not serve a base as they must."""

    exit_code = EXIT_BUG
    kind = "support-lost"
