# SPDX-License-Identifier: Apache-2.0
"""The code itself: form, and what vLLM's reviewers refuse unless the message says why."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vllm_series.gates.subject import AddedLine, Finding, Subject
from vllm_series.lint import patch_findings

_FIXES = {
    "spdx": "begin the file with the two SPDX lines that vLLM's other files have",
    "columns": "wrap the line; see: ruff format",
}
_VARIABLE = re.compile(r"os\.environ\b|os\.getenv\(|\benvs\.(VLLM_\w+)|^\s*\"(VLLM_\w+)\":")
_CUDA = re.compile(r"\btorch\.cuda\.\w+")
#: Calls that wait for the device, or copy from it to the host.
_WAITS = re.compile(r"\.(?:synchronize|item|tolist|cpu|nonzero)\(|\btorch\.(?:nonzero|unique)\(")
_RUNTIME = ("vllm/v1/", "vllm/models/", "vllm/model_executor/", "vllm/distributed/", "vllm/platforms/")


def findings(subject: Subject) -> Iterator[Finding]:
    """Gates ``spdx``, ``columns``, ``environment-variable``, ``torch-cuda`` and ``synchronization``."""
    for rule, text in patch_findings(subject.patch):
        if rule in _FIXES:
            yield Finding(rule, text, _FIXES[rule])
    found: dict[tuple[str, str], AddedLine] = {}
    for line in subject.added_in(tests=False):
        code = line.text.split(" # ", 1)[0]
        if code.lstrip().startswith(("#", '"""')):
            continue
        variable = _VARIABLE.search(code)
        if variable and line.path.startswith("vllm/"):
            name = variable[1] or variable[2] or "os.environ"
            if not _known_variable(subject, line.path, name) and not subject.says(name):
                found.setdefault(("environment-variable", name), line)
        cuda = _CUDA.search(code)
        if cuda and not subject.says("torch.cuda"):
            found.setdefault(("torch-cuda", cuda[0]), line)
        wait = _WAITS.search(code)
        if wait and line.path.startswith(_RUNTIME) and not subject.says("synchroni", "wait", "host"):
            found.setdefault(("synchronization", wait[0].rstrip("(")), line)
    fixes = {
        "environment-variable": "make it a config field, or say in the message why it must be a variable",
        "torch-cuda": "use torch.accelerator or current_platform, or say in the message why not",
        "synchronization": "keep it out of the steady state, or say in the message why it may wait there",
    }
    for (code_name, what), line in found.items():
        yield Finding(code_name, f"{line.path}:{line.number}: new use of {what}", fixes[code_name])


def _known_variable(subject: Subject, path: str, name: str) -> bool:
    """Whether the file has read the variable before."""
    return name in (subject.before.get(path) or "")
