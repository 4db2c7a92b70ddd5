# SPDX-License-Identifier: Apache-2.0
"""Which base serves a commit, and which file serves a base."""

from __future__ import annotations

import pytest
from vllm_series.bases import as_tag, parse_bases, serving_base, serving_file, version_of
from vllm_series.errors import UsageError

ROW = '[[base]]\nref = "v{0}"\nversion = "{0}"\ncommit = "{1}"\nsdist_sha256 = "{1}"\n'
BASES = parse_bases("".join(ROW.format(v, "1" * 40) for v in ("0.33.0", "0.31.0", "0.32.0")))


@pytest.mark.parametrize(
    ("release", "serving"),
    [
        ("v0.33.0", "v0.33.0"),
        ("v0.33.1", "v0.33.0"),
        ("v0.34.0", "v0.33.0"),
        ("v0.32.0", "v0.32.0"),
        ("v0.32.9", "v0.32.0"),
        ("v0.31.0", "v0.31.0"),
        ("v0.30.0", "v0.31.0"),
        ("v0.100.0", "v0.33.0"),
        (None, "v0.33.0"),
        ("my-tag", "v0.33.0"),
        ("v0.33.0-local", "v0.33.0"),
        ("v0.32.0rc1", "v0.32.0"),
        ("v0.32.0.post1", "v0.32.0"),
    ],
)
def test_the_base_that_serves(release, serving):
    assert serving_base(BASES, release).ref == serving


def test_versions_are_numbers():
    assert version_of("v0.10.0") > version_of("v0.9.0")
    for text in (None, "", "0.33.0", "v0.33", "v0.33.0x", "main", "v0.33.0/.."):
        assert version_of(text) is None


def test_a_version_stands_for_its_tag():
    assert [as_tag(text) for text in ("0.33.0", "0.34.0rc1", "v0.33.0")] == [
        "v0.33.0",
        "v0.34.0rc1",
        "v0.33.0",
    ]
    for text in ("", "main", "0.33", "v0.33.0/..", "deadbeef", "origin/main"):
        assert as_tag(text) == text


def test_the_file_that_serves():
    new, _, old = BASES
    files = {"a.patch", "b.patch", "v0.32.0/b.patch", "v0.32.0/c.patch"}
    assert serving_file("a", new, new, files) == "a.patch"
    assert serving_file("a", old, new, files) == "a.patch"
    assert serving_file("b", old, new, files) == "v0.32.0/b.patch"
    assert serving_file("b", new, new, files) == "b.patch"
    assert serving_file("c", new, new, files) is None
    assert serving_file("c", old, new, files) == "v0.32.0/c.patch"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "[[base]]\n",
        ROW.format("x", "1"),
        ROW.format("0.33.0", "1") + "more = 1\n",
        'base = "x"\n',
        "base = [1]\n",
        ROW.format("0.33.0", "1").replace('"0.33.0"', "33"),
    ],
)
def test_bad_files(text):
    with pytest.raises(UsageError, match=r"base\.toml"):
        parse_bases(text)


def test_no_base_twice():
    with pytest.raises(UsageError, match="twice"):
        parse_bases(ROW.format("0.33.0", "1") * 2)
