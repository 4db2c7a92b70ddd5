# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from vllm_series.errors import UsageError
from vllm_series.testtable import Selector, parse_tests

TIERS = ("cpu", "interpret")
TEXT = """
[one]
cpu = ["tests/a/test_b.py::test_c[x-1]", "tests/a/test_b.py::-k one or two"]
interpret = ["project:tests/kernels/test_k.py"]

[one.base."v0.32.0"]
cpu = ["tests/old/test_b.py"]

[two]
upstream = []
"""


def test_keys_of_a_base_replace_the_plain_ones():
    table = parse_tests(TEXT, TIERS)
    new, old = table.of("one", "v0.33.0"), table.of("one", "v0.32.0")
    assert [s.text for s in new.tiers["cpu"]] == [
        "tests/a/test_b.py::test_c[x-1]",
        "tests/a/test_b.py::-k one or two",
    ]
    assert [s.text for s in old.tiers["cpu"]] == ["tests/old/test_b.py"]
    assert old.tiers["interpret"] == new.tiers["interpret"]


def test_what_needs_the_series_is_left_out_alone():
    text = """
    [one]
    cpu = ["tests/a.py", "project:tests/b.py"]
    interpret = ["project:tests/c.py"]
    series = ["project:tests/b.py"]
    [one.base."v0.32.0"]
    series = ["project:tests/c.py"]
    """
    table = parse_tests(text, TIERS)
    new, old = table.of("one", "v0.33.0"), table.of("one", "v0.32.0")
    assert [s.text for s in new.tiers["cpu"]] == ["tests/a.py", "project:tests/b.py"]
    assert [s.text for s in new.alone().tiers["cpu"]] == ["tests/a.py"]
    assert new.alone().tiers["interpret"] == new.tiers["interpret"]
    assert old.alone().tiers == {**old.tiers, "interpret": ()}


def test_no_list_of_upstream_tests_is_another_thing_than_an_empty_one():
    table = parse_tests(TEXT, TIERS)
    assert table.of("one", "v0.33.0").upstream is None
    assert table.of("two", "v0.33.0").upstream == ()
    assert table.of("unknown", "v0.33.0").tiers == {}


@pytest.mark.parametrize(
    ("text", "file", "node", "expression", "project"),
    [
        ("tests/a.py", "tests/a.py", "tests/a.py", "", False),
        ("tests/a.py::T::t[x y]", "tests/a.py", "tests/a.py::T::t[x y]", "", False),
        ("tests/a.py::-k a and not b", "tests/a.py", "tests/a.py", "a and not b", False),
        ("project:tests/k/a.py::t", "tests/k/a.py", "tests/k/a.py::t", "", True),
    ],
)
def test_parts_of_a_selector(text, file, node, expression, project):
    selector = Selector(text)
    assert (selector.file, selector.node, selector.expression, selector.project) == (
        file,
        node,
        expression,
        project,
    )


def test_a_selector_covers_its_parameters_and_not_its_namesakes():
    selector = Selector("tests/a.py::test_b")
    assert selector.covers("tests/a.py::test_b")
    assert selector.covers("tests/a.py::test_b[1]")
    assert not selector.covers("tests/a.py::test_bc")
    assert Selector("tests/a").covers("tests/a/test_c.py::t")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("one = 1", "no table"),
        ("[one", "tests.toml"),
        ("[one]\ngpu = ['tests/a.py']", "unknown key 'gpu' (known: cpu, interpret, upstream, series)"),
        ("[one]\ncpu = 'tests/a.py'", "no list of strings"),
        ("[one]\ncpu = ['tests/a.py', 'tests/a.py']", "twice"),
        ("[one]\ncpu = ['/etc/a.py']", "no selector"),
        ("[one]\ncpu = ['tests/../a.py']", "no selector"),
        ("[one]\ncpu = ['-p tests/a.py']", "no selector"),
        ("[one]\ncpu = ['vllm/a.py']", "no selector"),
        ("[one]\nbase = 1", "base is no table"),
        ("[one]\ncpu = ['tests/a.py']\nseries = ['tests/b.py']", "names 'tests/b.py', which is in no tier"),
        ("[one]\ncpu = ['tests/a.py']\n[one.base.'v1']\nseries = ['tests/b.py']", "which is in no tier"),
    ],
)
def test_what_cannot_be_meant_is_refused(text, said):
    with pytest.raises(UsageError) as caught:
        parse_tests(text, TIERS)
    assert said in caught.value.message
