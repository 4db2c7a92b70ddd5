# SPDX-License-Identifier: Apache-2.0
"""Reads what ptxas made of a kernel: registers, stack, and the instructions of its main loop.

Uses ``cuobjdump`` and ``nvdisasm`` from the triton wheel; needs no GPU and no CUDA toolkit.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")
_LABEL = re.compile(r"\s*(\.L_x_\d+):")
_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]+\*/\s+(.*?)\s*;")
_BRANCH = re.compile(r"\bBRA\b.*`\((\.L_x_\d+)\)")
_PREDICATE = re.compile(r"@!?U?P[\dT]+\s+")


@dataclass(frozen=True)
class Usage:
    """From ``cuobjdump -res-usage``; a stack frame of a Triton kernel holds spilled registers."""

    registers: int
    stack: int  # bytes per thread


@dataclass(frozen=True)
class LoopCounts:
    """Static instruction counts, of the loop that contains the tensor core instructions."""

    total: int
    hmma: int
    imma: int
    wide_loads: int  # global loads of 16 bytes, LDG.128 or LDGSTS.128 (cp.async)
    narrow_loads: int  # all other global loads
    sub_word_loads: int  # of these, 8 or 16 bits wide: what misaligned rows fall back to
    shared: int  # LDS, STS, LDSM
    convert: int  # format conversion and byte shuffling
    local: int  # LDL, STL: spills inside the loop


def _tool(name: str) -> Path:
    import triton

    return Path(triton.__file__).parent / "backends/nvidia/bin" / name


def _run(name: str, option: str, cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(_tool(name)), option, file.name]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def usage(cubin: bytes) -> Usage:
    found = _USAGE.search(text := _run("cuobjdump", "-res-usage", cubin))
    if found is None:
        raise ValueError(f"cuobjdump names no registers: {text[:200]!r}")
    return Usage(int(found[1]), int(found[2]))


def disassemble(cubin: bytes) -> str:
    return _run("nvdisasm", "-c", cubin)


def main_loop(sass: str) -> tuple[list[str], bool]:
    """The longest loop with a tensor core instruction, predicates removed, and True.

    A kernel whose programs have one tile each has no loop: all its instructions, and False.
    """
    instructions: list[str] = []
    labels: dict[str, int] = {}
    for line in sass.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(instructions)
        elif found := _INSTRUCTION.match(line):
            instructions.append(_PREDICATE.sub("", found[1]))
    best: list[str] = []
    for index, text in enumerate(instructions):
        branch = _BRANCH.search(text)
        start = labels.get(branch[1], len(instructions)) if branch else len(instructions)
        if start <= index:
            body = instructions[start : index + 1]
            if len(body) > len(best) and any("MMA" in item for item in body):
                best = body
    return (best, True) if best else (instructions, False)


_CONVERT = ("F2F", "F2FP", "I2F", "F2I", "I2I", "I2FP", "HADD2", "HFMA2", "PRMT", "LOP3", "SGXT")


def count(body: list[str]) -> LoopCounts:
    names = Counter[str]()
    wide = narrow = sub_word = 0
    for text in body:
        opcode = text.split()[0]
        name, *modifiers = opcode.split(".")
        names[name] += 1
        if name in ("LDG", "LDGSTS"):
            if "128" in modifiers:
                wide += 1
            else:
                narrow += 1
                sub_word += any(m in modifiers for m in ("U8", "S8", "U16", "S16"))
    return LoopCounts(
        total=len(body),
        hmma=names["HMMA"],
        imma=names["IMMA"],
        wide_loads=wide,
        narrow_loads=narrow,
        sub_word_loads=sub_word,
        shared=names["LDS"] + names["STS"] + names["LDSM"],
        convert=sum(names[name] for name in _CONVERT),
        local=names["LDL"] + names["STL"],
    )
