# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

import pytest
from vllm_series.errors import UsageError
from vllm_series.evidence import Binding, evidence_path, parse_evidence, record, stale

BINDING = Binding("one", "aa", "v0.33.0", "c" * 40, {"zero": "bb"})


def test_evidence_for_the_same_content_holds():
    assert stale(BINDING, replace(BINDING)) == ""


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"sha256": "ab"}, "the patch has changed"),
        ({"commit": "d" * 40}, "the base was"),
        ({"prerequisites": {"zero": "bc"}}, "the prerequisite zero has changed"),
        ({"prerequisites": {}}, "the patch no longer needs zero"),
        ({"prerequisites": {"zero": "bb", "more": "dd"}}, "the patch now needs more"),
        ({"patch": "two"}, "it is about one"),
    ],
)
def test_evidence_is_stale_as_soon_as_anything_differs(change, why):
    assert why in stale(BINDING, replace(BINDING, **change))


def test_a_record_keeps_other_tiers_until_they_are_stale(tmp_path):
    path = record(tmp_path, BINDING, {"static": {"outcome": "passed"}})
    assert path == evidence_path(tmp_path, "one", "v0.33.0") == tmp_path / "evidence" / "one@v0.33.0.json"
    record(tmp_path, BINDING, {"cpu": {"outcome": "passed"}})
    found = parse_evidence(path.read_text())
    assert found.binding == BINDING
    assert list(found.tiers) == ["cpu", "static"]
    changed = replace(BINDING, sha256="ab")
    record(tmp_path, changed, {"cpu": {"outcome": "failed"}})
    found = parse_evidence(path.read_text())
    assert found.binding == changed
    assert dict(found.tiers) == {"cpu": {"outcome": "failed"}}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 2}', '{"schema": 1, "tiers": {}}'])
def test_anything_else_is_refused(text):
    with pytest.raises(UsageError):
        parse_evidence(text)
