# SPDX-License-Identifier: Apache-2.0
"""RECORD: lines of other files stay byte for byte."""

from __future__ import annotations

from vllm_series.record import update_record
from wheel_support import record_digest

TEXT = 'a.py,sha256=old,3\n"with,comma.py",sha256=x,1\na.pyc,,\nRECORD,,\n'


def test_replaced_and_added_lines():
    new = update_record(TEXT, {"a.py": b"new!", "b,c.py": b""})
    assert new.split("\n") == [
        f"a.py,{record_digest(b'new!')},4",
        '"with,comma.py",sha256=x,1',
        "a.pyc,,",
        "RECORD,,",
        f'"b,c.py",{record_digest(b"")},0',
        "",
    ]


def test_line_ends_stay():
    assert "\n" not in update_record(TEXT.replace("\n", "\r\n"), {"x": b""}).replace("\r\n", "")


def test_a_quoted_name_is_found():
    new = update_record(TEXT, {"with,comma.py": b"1"})
    assert new.count("comma") == 1
    assert "sha256=x" not in new
