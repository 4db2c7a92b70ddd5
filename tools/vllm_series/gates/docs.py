# SPDX-License-Identifier: Apache-2.0
"""What a user sees must be documented in the same pull request."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from vllm_series.gates.subject import Finding, Subject

_CONFIG = "vllm/config/"
_TITLES = ("[feature]", "[frontend]", "[new model]")


def findings(subject: Subject) -> Iterator[Finding]:
    """Gates ``docs`` and ``config-field``."""
    fields = list(new_fields(subject))
    seen = next(_user_visible(subject, [name for _, name, _ in fields]), "")
    documented = any(path.startswith("docs/") or path == "README.md" for path in subject.patch.paths)
    if seen and not documented:
        yield Finding("docs", f"{seen}, and no page of docs/ changes", "document it in the same patch")
    for path, name, lacks in fields:
        if lacks:
            yield Finding(
                "config-field",
                f"{path}: the new field {name} lacks a {' and a '.join(lacks)}",
                "give it a default, and a docstring below it that states the default",
            )


def _user_visible(subject: Subject, fields: list[str]) -> Iterator[str]:
    """Why a user would see the change."""
    yield from (f"it adds the config field {name}" for name in fields)
    for line in subject.added_in(tests=False):
        option = re.search(r"add_argument\(\s*[\"'](--[\w-]+)|^\s*[\"'](--[\w-]+)[\"'],", line.text)
        if option and not line.path.startswith("benchmarks/"):
            yield f"it adds the option {option[1] or option[2]}"
        if line.path == "vllm/envs.py" and (variable := re.search(r"VLLM_\w+", line.text)):
            yield f"it adds the environment variable {variable[0]}"
    title = next((tag for tag in _TITLES if tag in subject.patch.subject.lower()), "")
    if title:
        yield f"its title says {title}"


def new_fields(subject: Subject) -> Iterator[tuple[str, str, list[str]]]:
    """Path, ``Class.field`` and what it lacks, of every config field that the patch adds."""
    for path in sorted(subject.patch.paths):
        if path.startswith(_CONFIG) and path.endswith(".py"):
            old = {name for name, _ in _fields(subject.parsed(subject.before.get(path)))}
            for name, lacks in _fields(subject.parsed(subject.after.get(path))):
                if name not in old:
                    yield path, name, lacks


def _fields(module: ast.Module) -> Iterator[tuple[str, list[str]]]:
    for owner in (node for node in module.body if isinstance(node, ast.ClassDef)):
        for number, node in enumerate(owner.body):
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            if "ClassVar" in ast.dump(node.annotation):
                continue
            below = owner.body[number + 1] if number + 1 < len(owner.body) else None
            documented = (
                isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
                and isinstance(below.value.value, str)
            )
            lacks = [] if node.value is not None else ["default"]
            yield f"{owner.name}.{node.target.id}", lacks + ([] if documented else ["docstring"])
