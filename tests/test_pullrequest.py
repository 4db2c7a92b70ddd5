# SPDX-License-Identifier: Apache-2.0
"""The text of a pull request and the searches before it, as values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from vllm_series.export import Branch, assistants, outgoing_body
from vllm_series.git import Ident
from vllm_series.patchfile import Patch
from vllm_series.pullrequest import Request, reflow, render
from vllm_series.search import queries
from vllm_series.sendoff import find_place
from vllm_series.stack import Application
from vllm_series.statusfile import Status
from vllm_series.upstreamfacts import Facts, Search, Thread

DIFF = (
    "diff --git a/vllm/v1/engine.py b/vllm/v1/engine.py\n"
    f"index {'1' * 40}..{'2' * 40} 100644\n--- a/vllm/v1/engine.py\n+++ b/vllm/v1/engine.py\n"
    "@@ -1 +1 @@\n-a = 1\n+a = 2\n"
)
PATCH = Patch(
    "fix",
    Path("fix.patch"),
    b"",
    Ident("Ada", "ada@example.org", 1, "+0000"),
    "[Bugfix][Core] Read 8-bit caches of all the ranks in pairs",
    "It is\nbroken.\n\nPatch-Name: fix\nOrigin: own",
    DIFF,
)


def request(**values: object) -> Request:
    branch = Branch("fix", "b" * 40, (Application(PATCH, ()),), ("c" * 40,))
    return replace(Request(branch, "v0.33.0", Status()), **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("one\ntwo", "one two"),
        ("--kv-cache-dtype is\nrefused", "--kv-cache-dtype is refused"),
        ("- one\n- two", "- one\n- two"),
        ("Steps:\n1. one\n2. two", "Steps:\n1. one\n2. two"),
        ("    code\n    more", "    code\n    more"),
        ("| a |\n|---|", "| a |\n|---|"),
    ],
)
def test_paragraphs_become_lines(text, wanted):
    assert reflow(text) == wanted


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("", "Signed-off-by: A B <a@b.org>"),
        ("One.", "One.\n\nSigned-off-by: A B <a@b.org>"),
        ("One.\n\nOrigin: own", "One.\n\nSigned-off-by: A B <a@b.org>"),
        ("Origin: own\nFixes: x", "Fixes: x\nSigned-off-by: A B <a@b.org>"),
        (
            "One.\n\nSigned-off-by: A B <a@b.org>\nCo-authored-by: C <c@d.org>\norigin: own",
            "One.\n\nCo-authored-by: C <c@d.org>\nSigned-off-by: A B <a@b.org>",
        ),
        ("One: two\n\nNo trailer here", "One: two\n\nNo trailer here\n\nSigned-off-by: A B <a@b.org>"),
    ],
)
def test_what_leaves_of_a_message(body, wanted):
    assert outgoing_body(replace(PATCH, body=body), ("A B", "a@b.org")) == wanted


def test_who_helped():
    bodies = [
        "x\n\nAssisted-by: Claude\nCo-authored-by: Grace <grace@example.org>",
        "x\n\nCo-authored-by: Claude <noreply@anthropic.com>\nAssisted-by: Claude",
    ]
    assert assistants([replace(PATCH, body=body) for body in bodies]) == [
        "Claude",
        "Claude <noreply@anthropic.com>",
    ]


def test_without_a_template_there_is_a_checklist():
    text = render(request())
    assert "- [ ] I have read every changed line" in text
    assert "No run is recorded for exactly this change." in text
    assert "\n\n\n" not in render(request(status=Status(measured="One.\n\nTwo.", proven="CPU")))


def test_what_fails_on_the_base_too_is_said():
    static = {"outcome": "passed", "counts": {"passed": 35, "failed": 2}}
    text = render(request(tiers={"static": static}))
    assert "import no worse than before, and are clean" in text
    assert "2 failed, 35 passed; what fails does so without the change as well." in text
    static["counts"] = {"passed": 7}
    text = render(request(tiers={"static": static}))
    assert "compile, import, and are clean" in text
    assert "`pyproject.toml`: 7 passed.\n" in text


def test_open_work_and_the_duplicate_check():
    facts = Facts("2026-11-30", {5: Thread("open", "Theirs")}, {}, {"fix": Search(("a b", "c d"), (5, 6))})
    text = render(request(facts=facts, status=Status(prs=(5,), differs="It has a test.")))
    assert "**Other work on the same ground:** #5 (open).\nHow this one differs: It has a test." in text
    assert "**Duplicate check** (2026-11-30): open pull requests for `a b` and `c d`: #6." in text
    found = replace(facts, searches={"fix": Search(("a b",), ())})
    assert "open pull requests for `a b`: nothing else." in render(request(facts=found))


def test_tests_that_a_reviewer_cannot_run_are_said_to_be_elsewhere():
    entry = {
        "outcome": "passed",
        "selectors": ["project:tests/kernels/test_k.py"],
        "counts": {"passed": 3},
        "control": {"outcome": "fails", "reason": "x", "counts": {"failed": 2, "passed": 1}},
    }
    text = render(request(tiers={"interpret": entry}))
    assert (
        "the kernels in Triton's interpreter, with tests that are not part of this branch: 3 passed" in text
    )
    assert "and without it: 2 failed, 1 passed." in text
    assert "```console" not in text


def test_commands_of_several_selectors_and_expressions():
    selectors = ["tests/a.py::test_a[x-1]", "tests/b.py::-k one or two", "tests/c.py"]
    entry = {"outcome": "passed", "selectors": selectors, "counts": {"passed": 3, "skipped": 1}}
    text = render(request(tiers={"cpu": entry}))
    assert (
        "$ pytest \\\n    'tests/a.py::test_a[x-1]' \\\n    tests/c.py\n"
        "$ pytest tests/b.py -k 'one or two'\n3 passed, 1 skipped (all commands)\n" in text
    )


def test_searches():
    assert queries(PATCH, Status(issues=(7,))) == (
        "Read 8-bit caches ranks pairs",
        "v1 engine",
        "7 in:body",
    )


@pytest.mark.parametrize(
    ("remotes", "wanted", "place"),
    [
        ({}, "", ("YOUR-FORK", "YOU")),
        ({"origin": "https://github.com/vllm-project/vllm.git"}, "", ("YOUR-FORK", "YOU")),
        (
            {"origin": "https://github.com/vllm-project/vllm", "me": "git@github.com:ada/vllm.git"},
            "",
            ("me", "ada"),
        ),
        ({"a": "https://github.com/a/vllm", "b": "https://github.com/b/vllm"}, "b", ("b", "b")),
        ({}, "https://github.com/ada/vllm", ("https://github.com/ada/vllm", "ada")),
        ({"me": "/srv/vllm.git"}, "", ("me", "YOU")),
    ],
)
def test_where_it_is_pushed_to(remotes, wanted, place):
    found = find_place(Path("/x"), False, remotes, wanted)
    assert (found.remote, found.owner) == place


def test_what_ran_on_a_gpu_says_where_and_with_what():
    entry = {
        "outcome": "passed",
        "patches": ["other", "more", "fix"],
        "selectors": ["project:tests/engine/test_engine.py::test_stages[x]"],
        "counts": {"passed": 1},
        "control": {"outcome": "fails", "counts": {"failed": 1}},
        "environment": {"gpus": 2, "gpu": "NVIDIA H200", "torch": "2.11.0", "results": "aa"},
        "date": "2026-11-30T20:00:00Z",
    }
    text = render(request(tiers={"pp": entry}))
    assert (
        "in an engine with pipeline stages on a machine with 2 NVIDIA H200 (torch 2.11.0, 2026-11-30, "
        "with 2 other changes in the tree), with tests that are not part of this branch: 1 passed, "
        "and without it: 1 failed."
    ) in text
    assert "No GPU" not in text
