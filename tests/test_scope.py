# SPDX-License-Identifier: Apache-2.0
"""Which function or class a line is in, judged from indentation alone."""

from __future__ import annotations

import ast

import pytest
from series_support import ENGINE, SCHEDULER, WORKER
from vllm_series.place import split_lines
from vllm_series.scope import enclosing_scope

CODE = b'''import os

X = [
    1,
]


class A(
    Base,
):
    """Doc.

    More.
    """

    value = 1

    @decorator
    async def method(
        self,
        argument: int,
    ) -> None:
        # comment
        if argument:
# a comment at the margin
            return (
                1
            )

        def inner():
            pass

        after = 1

    def other(self): ...


def function():
\treturn 1


if X:
    def conditional():
        pass
'''


@pytest.mark.parametrize(
    ("text", "scope"),
    [
        ("import os", ""),
        ("    1,", ""),
        ("class A(", "A"),
        ("    Base,", "A"),
        ("    value = 1", "A"),
        ("    async def method(", "A.method"),
        ("        argument: int,", "A.method"),
        ("        if argument:", "A.method"),
        ("                1", "A.method"),
        ("        def inner():", "A.method.inner"),
        ("            pass", "A.method.inner"),
        ("        after = 1", "A.method"),
        ("    def other", "A.other"),
        ("\treturn 1", "function"),
        ("if X:", ""),
        ("        pass", "conditional"),
    ],
)
def test_scopes(text, scope):
    lines = split_lines(CODE)
    index = max(i for i, line in enumerate(lines) if line.startswith(text.encode()))
    assert enclosing_scope(lines, index) == scope


@pytest.mark.parametrize("source", [ENGINE, WORKER, SCHEDULER])
def test_same_as_the_parser(source):
    lines = split_lines(source.encode())
    wanted = {}

    def walk(node, name):
        for child in ast.iter_child_nodes(node):
            inner = name
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inner = [*name, child.name]
                for number in range(child.lineno, child.end_lineno + 1):
                    wanted[number] = ".".join(inner)
            walk(child, inner)

    walk(ast.parse(source), [])
    for number, scope in wanted.items():
        if lines[number - 1].strip():
            assert enclosing_scope(lines, number - 1) == scope, number


def test_nothing_to_look_at():
    assert enclosing_scope([], 0) == ""
    assert enclosing_scope([b"\n"], 0) == ""
