# SPDX-License-Identifier: Apache-2.0
"""Keep the files beside the patches in step: ``status.toml``, ``tests.toml``, evidence, ``dropped.toml``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from vllm_series.dropped import FILE, Dropped, with_dropped
from vllm_series.oplog import PATCHES, Change
from vllm_series.restack import Restacked

STATUS = f"{PATCHES}status.toml"
TESTS = f"{PATCHES}tests.toml"
#: The verdict of a patch that a person drops, whatever the tool would say of it.
BY_HAND = "by-hand"


def write_restacked(change: Change, restacked: Restacked, series: str) -> None:
    """Take patch files and order into a change."""
    for path, content in restacked.files.items():
        if content is None:
            change.remove(f"{PATCHES}{path}")
        else:
            change.write(f"{PATCHES}{path}", content)
    if series != change.project.series.render():
        change.write("series", series.encode())


def forget(change: Change, names: Sequence[str]) -> None:
    """Take out what is known about patches that are no more: facts, tests, evidence."""
    import tomlkit

    folder = change.project.patch_dir
    for path in (STATUS, TESTS):
        file = folder / path.removeprefix(PATCHES)
        if not file.is_file():
            continue
        document = tomlkit.parse(file.read_text("utf-8"))
        known = [name for name in names if name in document]
        for name in known:
            document.pop(name)
        if known:
            # The last entry leaves the blank line that stood before it.
            rest = tomlkit.dumps(document).rstrip("\n")
            change.write(path, f"{rest}\n".encode() if rest else b"")
    for name in names:
        for file in folder.glob(f"evidence/{name}@*.json"):
            change.remove(f"{PATCHES}evidence/{file.name}")


def introduce(change: Change, names: Sequence[str]) -> None:
    """Give new patches an entry in ``status.toml``: not to be proposed until a person says so."""
    import tomlkit

    text = change.project.status.text
    for name in names:
        if name not in change.project.status.patches:
            table = tomlkit.table()
            table["intent"] = "hold"
            table["state"] = "none"
            document = tomlkit.document()
            document[name] = table
            text = (text.rstrip("\n") + "\n\n" if text.strip() else "") + tomlkit.dumps(document)
    if text != change.project.status.text:
        change.write(STATUS, text.encode())


def lay_down(change: Change, reasons: Mapping[str, str]) -> None:
    """Write into ``dropped.toml`` that a person takes patches out of the series, and why each."""
    project = change.project
    path = project.patch_dir / FILE
    text = path.read_text("utf-8") if path.is_file() else ""
    today = datetime.now(UTC).date().isoformat()
    rows = [Dropped(name, project.pinned.ref, today, BY_HAND, reason) for name, reason in reasons.items()]
    change.write(f"{PATCHES}{FILE}", with_dropped(text, rows).encode())
