# SPDX-License-Identifier: Apache-2.0
"""The series inside an installed vLLM: what lies there, putting it in, taking it out.

The folder ``vllm-series-overlay`` beside the package holds the manifest and every file that was there
before, bytecode included. All of it stands in the installer's RECORD, so that an upgrade or removal of vLLM
takes the overlay with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vllm_series import __version__
from vllm_series.errors import PreconditionError
from vllm_series.installed import Installed
from vllm_series.payload import Payload
from vllm_series.record import update_record
from vllm_series.transaction import Changes, Put, digest_of

#: Beside ``vllm/``; the hyphens keep Python from importing it.
FOLDER = "vllm-series-overlay"
MANIFEST = f"{FOLDER}/manifest.json"
SCHEMA = 1


@dataclass(frozen=True)
class FileRecord:
    """SHA-256 of a file in the release (None: it has none) and in the overlay."""

    base: str | None
    overlay: str


@dataclass(frozen=True)
class Manifest:
    """What an overlay consists of.

    Attributes:
        base_ref: Tag of the release.
        base_version: Its version.
        base_commit: The commit that it imports as.
        distribution: The ``.dist-info`` folder that it was put into.
        patches: Name and digest of each patch.
        files: The replaced and added files.
        kept: Where each file that was there before lies now.

    """

    base_ref: str
    base_version: str
    base_commit: str
    distribution: str
    patches: tuple[tuple[str, str], ...]
    files: Mapping[str, FileRecord]
    kept: Mapping[str, str]

    def document(self) -> dict[str, object]:
        """As JSON."""
        return {
            "schema": SCHEMA,
            "tool": __version__,
            "base": {"ref": self.base_ref, "version": self.base_version, "commit": self.base_commit},
            "distribution": self.distribution,
            "patches": [{"name": name, "sha256": digest} for name, digest in self.patches],
            "files": {path: {"base": f.base, "overlay": f.overlay} for path, f in self.files.items()},
            "kept": dict(self.kept),
        }


def read_manifest(site: Path) -> Manifest | None:
    """The manifest of the overlay in a site-packages folder, None if there is no overlay.

    Raises:
        PreconditionError: It cannot be read.

    """
    path = site / MANIFEST
    try:
        row = json.loads(path.read_bytes())
        if row["schema"] != SCHEMA:
            raise PreconditionError(
                f"{path} was written by vllm-series {row['tool']}, in another form",
                hint="use that version to take the overlay out",
            )
        return Manifest(
            base_ref=row["base"]["ref"],
            base_version=row["base"]["version"],
            base_commit=row["base"]["commit"],
            distribution=row["distribution"],
            patches=tuple((p["name"], p["sha256"]) for p in row["patches"]),
            files={p: FileRecord(f["base"], f["overlay"]) for p, f in row["files"].items()},
            kept=row["kept"],
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise PreconditionError(
            f"{path} is damaged",
            hint=f"remove {path.parent} and reinstall: pip install --force-reinstall --no-deps vllm==VERSION",
        ) from None


def edited(site: Path, manifest: Manifest) -> list[str]:
    """The files of an overlay that are neither as it put them nor as they were before."""
    return [
        path
        for path, file in manifest.files.items()
        if digest_of(site / path) not in (file.overlay, file.base, None)
    ]


def intact(site: Path, manifest: Manifest) -> bool:
    """Whether every file is as the overlay put it."""
    return all(digest_of(site / path) == file.overlay for path, file in manifest.files.items())


def plan_removal(installed: Installed, manifest: Manifest) -> Changes:
    """What takes an overlay out and leaves the installed files as they were.

    Raises:
        PreconditionError: A file was edited since.

    """
    site = installed.site
    if manifest.distribution != installed.distribution:
        return _plan_cleanup(installed, manifest)
    _refuse_edited(site, edited(site, manifest))
    changes: dict[str, Put | None] = dict.fromkeys(_own_files(site))
    for path, file in manifest.files.items():
        if file.base is None:
            changes[path] = None
        changes.update((found, None) for found in _bytecode(site, path))
    for path, home in manifest.kept.items():
        if not (site / home).is_file():
            raise PreconditionError(
                f"{site / home} is gone, and {path} cannot be restored",
                hint=f"reinstall: pip install --force-reinstall --no-deps vllm=={manifest.base_version}",
            )
        changes[path] = Put(source=home)
    return changes


def _plan_cleanup(installed: Installed, manifest: Manifest) -> Changes:
    """What is left of an overlay after another vLLM was put over it."""
    site = installed.site
    record = site / installed.record_path
    lines = record.read_text("utf-8").splitlines() if record.is_file() else []
    theirs = {line.partition(",")[0] for line in lines}
    changes: dict[str, Put | None] = dict.fromkeys(_own_files(site))
    for path, file in manifest.files.items():
        if path not in theirs and digest_of(site / path) == file.overlay:
            changes[path] = None
            changes.update((found, None) for found in _bytecode(site, path))
    return changes


def plan_overlay(
    installed: Installed, manifest: Manifest | None, payload: Payload
) -> tuple[Manifest, Changes]:
    """What puts a payload into an installed vLLM, in place of the overlay that is there.

    Args:
        installed: The vLLM.
        manifest: The overlay that is there, of any version.
        payload: The files.

    Returns:
        The new manifest, and the changes; none if everything is there already.

    Raises:
        PreconditionError: A file to replace is not the release's. Nothing has been changed.

    """
    site = installed.site
    changes: dict[str, Put | None] = {}
    before: Mapping[str, str] = {}
    ours: Mapping[str, FileRecord] = {}
    if manifest is not None:
        changes.update(plan_removal(installed, manifest))
        if manifest.distribution == installed.distribution:
            before, ours = manifest.kept, manifest.files
    foreign = [p for p, f in payload.files.items() if _digest_after(site, changes, p) != f.old_digest]
    if foreign:
        shown = ", ".join(foreign[:3]) + (f" and {len(foreign) - 3} more" if len(foreign) > 3 else "")
        raise PreconditionError(
            f"{site}: {shown} {'is' if len(foreign) == 1 else 'are'} not as in vLLM {payload.base.ref}",
            hint="reinstall the release first: pip install --force-reinstall --no-deps "
            f"vllm=={payload.base.version}",
            files=foreign,
        )
    keep = [path for path, file in payload.files.items() if file.old is not None]
    for path in payload.files:
        if path in ours:
            keep += [p for p in before if p.endswith(".pyc") and _module_of(p) == path]
        else:
            keep += [p for p in _bytecode(site, path) if p not in changes]
    has_record = (site / installed.record_path).is_file()
    if has_record:
        keep.append(installed.record_path)
    kept = {path: f"{FOLDER}/base/{path}" for path in sorted(keep)}
    for path, home in kept.items():
        if path in before:
            changes.pop(home, None)
        else:
            changes[home] = Put(source=path)
        if path.endswith(".pyc"):
            changes[path] = None
    made = Manifest(
        payload.base.ref,
        payload.base.version,
        payload.base.commit,
        installed.distribution,
        payload.patches,
        {path: FileRecord(f.old_digest, f.new_digest) for path, f in payload.files.items()},
        kept,
    )
    if manifest == made and intact(site, made):
        return made, {}
    text = json.dumps(made.document(), indent=1).encode() + b"\n"
    changes[MANIFEST] = Put(text)
    changes.update((path, Put(file.new)) for path, file in payload.files.items())
    if has_record:
        added = {path: file.new for path, file in payload.files.items()}
        added[MANIFEST] = text
        for path, home in kept.items():
            added[home] = (site / before.get(path, path)).read_bytes()
        lines = (site / before.get(installed.record_path, installed.record_path)).read_bytes().decode("utf-8")
        changes[installed.record_path] = Put(update_record(lines, added).encode())
    return made, changes


def _digest_after(site: Path, changes: Changes, path: str) -> str | None:
    """SHA-256 of a file once an earlier overlay is out."""
    put = changes.get(path, Put(source=path))
    return None if put is None else digest_of(site / put.source)


def _refuse_edited(site: Path, paths: list[str]) -> None:
    if paths:
        raise PreconditionError(
            f"{site / paths[0]} was edited since the overlay was put there",
            hint="save your edit elsewhere and reinstall vLLM, which takes the overlay out as well",
            files=paths,
        )


def _own_files(site: Path) -> list[str]:
    return [p.relative_to(site).as_posix() for p in (site / FOLDER).rglob("*") if not p.is_dir()]


def _bytecode(site: Path, path: str) -> list[str]:
    """The compiled forms of a module that are there."""
    module = site / path
    found = (module.parent / "__pycache__").glob(f"{module.stem}.*.pyc")
    return sorted(
        p.relative_to(site).as_posix() for p in found if _module_of(p.as_posix()) == module.as_posix()
    )


def _module_of(bytecode: str) -> str:
    """The source of a file in ``__pycache__``: ``a/__pycache__/b.cpython-312.opt-1.pyc`` is of ``a/b.py``."""
    folder, _, name = bytecode.rpartition("/__pycache__/")
    return f"{folder}/{name.partition('.')[0]}.py"
