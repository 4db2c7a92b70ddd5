# SPDX-License-Identifier: Apache-2.0
"""Packing an environment for a GPU machine, and unpacking it with nothing but the standard library."""

import json
import os
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from vllm_series.errors import EnvironmentFaultError, PreconditionError
from vllm_series.fatbin import containers, strip
from vllm_series.git import Repository
from vllm_series.pack import Contents, write_pack
from vllm_series.unpack import UnpackError, unpack

LIBRARIES = (
    "vllm/_C_stable_libtorch.abi3.so",
    "vllm/_moe_C_stable_libtorch.abi3.so",
    "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so",
    "vllm/cumem_allocator.abi3.so",
    "vllm/fs_io_C.abi3.so",
    "vllm/spinloop.abi3.so",
)
ELF, PTX = 2, 1


def entry(kind: int, architecture: int, payload: bytes) -> bytes:
    header = struct.pack("<HHIQ", kind, 1, 64, len(payload)).ljust(28, b"\0")
    return (header + struct.pack("<I", architecture)).ljust(64, b"\0") + payload


def library(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return b"\x7fELF host code " + struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body + b" tail"


def test_only_code_for_the_architecture_is_kept() -> None:
    whole = library(entry(ELF, 80, b"A" * 9), entry(ELF, 90, b"B" * 9), entry(PTX, 80, b"P" * 9))
    stripped = strip(whole, 90)
    assert len(stripped) == len(whole)
    assert b"B" * 9 in stripped
    assert b"A" not in stripped.replace(b"\x7fELF", b"")
    assert b"P" * 9 not in stripped
    assert stripped.startswith(b"\x7fELF host code ")
    assert stripped.endswith(b" tail")


@pytest.mark.parametrize(("architecture", "kept"), [(86, b"P"), (80, b"A"), (75, b""), (0, b""), (120, b"P")])
def test_ptx_is_kept_where_there_is_no_machine_code(architecture: int, kept: bytes) -> None:
    whole = library(entry(ELF, 80, b"A" * 9), entry(PTX, 80, b"P" * 9))
    (found,) = containers(strip(whole, architecture))
    left = [strip(whole, architecture)[e.start : e.start + e.size] for e in found]
    assert [payload for payload in left if payload.strip(b"\0")] == ([kept * 9] if kept else [])


def test_what_is_no_container_stays() -> None:
    magic = struct.pack("<I", 0xBA55ED50)
    for odd in (
        b"",
        b"x" * 99,
        b"x" + magic + b"\xff" * 60,
        magic + struct.pack("<HHQ", 1, 16, 1 << 40) + b"y" * 40,
    ):
        assert strip(odd + b" " * 16, 90) == odd + b" " * 16


@pytest.fixture
def contents(tmp_path: Path) -> Contents:
    work = tmp_path / "repository"
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", str(work)]

    def commit(files: dict[str, str | None]) -> str:
        for name, text in files.items():
            path = work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if text is None:
                path.unlink()
            else:
                path.write_text(text)
        for command in (["add", "-A"], ["commit", "-qm", "x"]):
            subprocess.run([*git, *command], check=True)
        found = subprocess.run([*git, "rev-parse", "HEAD^{tree}"], check=True, capture_output=True, text=True)
        return found.stdout.strip()

    subprocess.run(["git", "init", "-q", str(work)], check=True)
    base = commit(
        {
            "vllm/__init__.py": "value = 'base'\n",
            "vllm/same/__init__.py": "",
            "vllm/same/deep.py": "value = 1\n",
            "vllm/gone.py": "",
            "csrc/kernel.cu": "x",
            "tests/v1/worker/test_x.py": "",
        }
    )
    series = commit(
        {"vllm/__init__.py": "value = 'tree'\n", "vllm/gone.py": None, "vllm/more/new.py": "value = 2\n"}
    )
    control = commit({"vllm/__init__.py": "value = 'bare'\n"})
    wheel = tmp_path / "vllm-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in LIBRARIES:
            archive.writestr(name, library(entry(ELF, 80, b"A" * 9), entry(ELF, 90, b"B" * 9)))
        archive.writestr("vllm/__init__.py", "value = 'wheel'\n")
        archive.writestr("vllm/gone.py", "")
        archive.writestr("vllm/vllm_flash_attn/__init__.py", "value = 3\n")
        archive.writestr("vllm/big.hpp", "x")
        archive.writestr("vllm-1.0.dist-info/METADATA", "Name: vllm\nVersion: 1.0\n")
    other = tmp_path / "other-2-py3-none-any.whl"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("other.py", "value = 4\n")
        archive.writestr("other-2.data/purelib/pure.py", "value = 5\n")
        archive.writestr("other-2.data/scripts/run", "x")
    project = tmp_path / "project"
    for name in ("tests/engine/a.py", "tests/startup/b.py", "tools/vllm_series/c.py", "ci/gpu.sh"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(name)
    trees = {"series": series, "without one": control, "without two": series}
    return Contents("v1.0", Repository.open(work), base, trees, wheel, (other,), project, 90)


def imported(place: Path, tree: str, module: str, name: str = "value") -> str:
    code = f"import {module}; print({module}.{name})"
    env = {"PYTHONPATH": os.pathsep.join([str(place / "trees" / tree), str(place / "site")])}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_round_trip(contents: Contents, tmp_path: Path) -> None:
    parts = write_pack(contents, tmp_path / "pack", part_size=400, preset=1)
    assert len(parts) > 2
    assert all(path.stat().st_size <= 400 for path in parts)
    # As on a machine where nothing is installed: the program that travels with the archive.
    command = [sys.executable, "-I", tmp_path / "pack/unpack.py", tmp_path / "pack", tmp_path / "there/place"]
    subprocess.run(command, check=True)
    place = tmp_path / "there/place"

    series, control = contents.trees["series"], contents.trees["without one"]
    assert imported(place, series, "vllm") == "tree"
    assert imported(place, control, "vllm") == "bare"
    assert imported(place, series, "vllm.same.deep") == "1"
    assert imported(place, series, "vllm.more.new") == "2"
    assert imported(place, series, "vllm.vllm_flash_attn") == "3"
    assert imported(place, series, "other") == "4"
    assert imported(place, series, "pure") == "5"
    tree = place / "trees" / series
    assert not (tree / "vllm/gone.py").exists()
    assert not list((tree / "vllm/__pycache__").glob("gone.*"))
    assert (place / "base/vllm/gone.py").exists()
    assert not (tree / "vllm/big.hpp").exists()
    assert not (tree / "csrc").exists()
    assert (tree / "tests/v1/worker/test_x.py").exists()
    assert b"B" * 9 in (tree / LIBRARIES[0]).read_bytes()
    assert b"A" * 9 not in (tree / LIBRARIES[0]).read_bytes()
    assert b"B" * 9 not in (tree / LIBRARIES[2]).read_bytes()
    assert (place / "project/tests/engine/a.py").read_text() == "tests/engine/a.py"
    assert json.loads((place / "pack.json").read_text())["trees"] == dict(contents.trees)
    assert (tree / "vllm-1.0.dist-info/METADATA").is_file()


def test_the_same_content_makes_the_same_archive(contents: Contents, tmp_path: Path) -> None:
    one, other = (write_pack(contents, tmp_path / name, 1 << 20, preset=1) for name in ("one", "other"))
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in other]


def test_a_damaged_or_missing_part_leaves_nothing(contents: Contents, tmp_path: Path) -> None:
    parts = write_pack(contents, tmp_path / "pack", part_size=400, preset=1)
    content = bytearray(parts[1].read_bytes())
    content[5] ^= 1
    parts[1].write_bytes(content)
    with pytest.raises(UnpackError, match=r"\.001 is damaged"):
        unpack(tmp_path / "pack", tmp_path / "place")
    parts[1].unlink()
    with pytest.raises(UnpackError, match=r"\.001 is missing"):
        unpack(tmp_path / "pack", tmp_path / "place")
    with pytest.raises(UnpackError, match="holds no packed environment"):
        unpack(tmp_path, tmp_path / "place")
    assert not (tmp_path / "place").exists()
    assert not list(tmp_path.glob(".place*"))


def test_nothing_is_overwritten(contents: Contents, tmp_path: Path) -> None:
    write_pack(contents, tmp_path / "pack", 1 << 20, preset=1)
    with pytest.raises(PreconditionError, match="exists"):
        write_pack(contents, tmp_path / "pack", 1 << 20, preset=1)
    (tmp_path / "place").mkdir()
    (tmp_path / "place/mine").write_text("x")
    with pytest.raises(UnpackError, match="new or empty"):
        unpack(tmp_path / "pack", tmp_path / "place")
    assert (tmp_path / "place/mine").read_text() == "x"


def test_a_wheel_without_the_libraries_is_refused(contents: Contents, tmp_path: Path) -> None:
    with zipfile.ZipFile(contents.wheel, "w") as archive:
        archive.writestr("vllm/__init__.py", "")
    with pytest.raises(EnvironmentFaultError, match=r"has no vllm/_C_stable"):
        write_pack(contents, tmp_path / "pack", 1 << 20, preset=1)
    assert not (tmp_path / "pack/parts.json").exists()
