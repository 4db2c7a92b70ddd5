# SPDX-License-Identifier: Apache-2.0
"""Run in the container: are the overlay's files where Python finds them, over the right release?

    python3 /overlay/verify.py             with the files mounted: each is the overlay's; what is beneath is
                                           told by the list of digests that came with the installed wheel
    python3 /overlay/verify.py --beneath   without mounts: each is the release's, new ones are not there
    python3 /overlay/verify.py --replaced  in an image built with the files: each is the overlay's

Needs nothing but Python; vLLM itself is not imported. Exit 0: all as it must be; 1: something is not, and
every such thing is named.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any


def main(arguments: list[str]) -> int:
    """Check, print, and return the exit code."""
    mode = arguments[0] if arguments else "--mounted"
    if mode not in ("--mounted", "--beneath", "--replaced") or len(arguments) > 1:
        print(__doc__)
        return 2
    manifest = json.loads((Path(__file__).resolve().parent / "manifest.json").read_text())
    site = find_site()
    if site is None:
        print("error: this Python has no vllm")
        return 1
    problems = []
    if str(site) != manifest["site"]:
        problems.append(
            f"vllm lies in {site}, and the files are meant for {manifest['site']}: "
            f"write the folder anew with --container-site {site}"
        )
    for path, expected in manifest["files"].items():
        now = digest(site / path)
        wanted = expected["base" if mode == "--beneath" else "overlay"]
        if now != wanted:
            problems.append(f"{path}: {describe(now, expected)}")
    if mode == "--mounted":
        problems += beneath(site, manifest)
    if mode != "--beneath":
        problems += stale_bytecode(site, manifest)
    for problem in problems:
        print(f"error: {problem}")
    if problems:
        return 1
    count = len(manifest["files"])
    state = {
        "--mounted": f"{count} files of the overlay are mounted over vLLM {manifest['base']['version']}",
        "--beneath": f"the image has vLLM {manifest['base']['version']} in all {count} places",
        "--replaced": f"{count} files of the overlay are in place",
    }[mode]
    print(f"ok: {state} in {site}")
    return 0


def find_site() -> Path | None:
    """The folder that holds the package that Python would import."""
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        return None
    return Path(next(iter(found.submodule_search_locations))).parent


def digest(path: Path) -> str | None:
    """SHA-256 of a file, None if there is none; a folder is named as one."""
    if path.is_dir():
        return "a folder"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


def describe(now: str | None, expected: dict[str, str | None]) -> str:
    """What lies at a path instead of what should."""
    if now is None:
        return "is not there"
    if now == "a folder":
        return "is a folder: its source was missing on the host when it was mounted"
    if now == expected["overlay"]:
        return "is the overlay's file already"
    if now == expected["base"]:
        return "is the release's file: it is not mounted"
    return f"is another file (sha256 {now[:16]})"


def beneath(site: Path, manifest: dict[str, Any]) -> list[str]:
    """Problems with what is under the mounts, as far as the wheel's RECORD tells."""
    version = manifest["base"]["version"]
    records = sorted(site.glob("vllm-*.dist-info/RECORD"))
    if len(records) != 1:
        return [f"{len(records)} lists of vLLM's files (vllm-*.dist-info/RECORD) in {site}, not one"]
    name = records[0].parent.name
    if name.split("-")[1].replace(".dist", "").split("+")[0] != version:
        return [f"the image has {name.removesuffix('.dist-info')}, and the overlay was made for {version}"]
    with records[0].open(newline="") as stream:
        stated = {row[0]: row[1] for row in csv.reader(stream) if len(row) == 3}
    problems = []
    for path, expected in manifest["files"].items():
        base = expected["base"] and recorded(expected["base"])
        if stated.get(path) != base:
            problems.append(f"{path}: beneath the mount lies another file than vLLM {version}'s")
    return problems


def recorded(hexadecimal: str) -> str:
    """A digest as RECORD writes it."""
    raw = base64.urlsafe_b64encode(bytes.fromhex(hexadecimal)).decode().rstrip("=")
    return f"sha256={raw}"


def stale_bytecode(site: Path, manifest: dict[str, Any]) -> list[str]:
    """Compiled files that Python would use without looking at the source."""
    problems = []
    for path in manifest["files"]:
        module = site / path
        for compiled in module.parent.glob(f"__pycache__/{module.stem}.*.pyc"):
            flags = int.from_bytes(compiled.read_bytes()[4:8], "little")
            if flags == 0b01:  # By hash, unchecked.
                problems.append(f"{compiled}: old bytecode that Python never compares with its source")
    return problems


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
