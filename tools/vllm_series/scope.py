# SPDX-License-Identifier: Apache-2.0
"""Which function or class a line belongs to.

A hunk can match at an offset inside the wrong function, and every hunk "applies". The enclosing scope
tells. It is read from the indentation, which also works on files that do not parse.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from vllm_series.diff import Hunk

_SCOPE = re.compile(rb"(?:async\s+)?(?:def|class)\s+(\w+)")
#: Beginnings of lines that continue what stands above, at a smaller indentation.
_CONTINUATION = (b")", b"]", b"}", b"#", b'"', b"'")


def enclosing_scope(lines: Sequence[bytes], index: int) -> str:
    """Dotted name of the innermost function or class around ``lines[index]``, empty at module level.

    A ``def`` or ``class`` line belongs to the scope that it opens.
    """
    names: list[str] = []
    limit = None
    for line in reversed(lines[: index + 1]):
        text = line.lstrip()
        if not text.strip() or text.startswith(_CONTINUATION):
            continue
        indent = len(line) - len(text)
        if limit is not None and indent >= limit:
            continue
        match = _SCOPE.match(text)
        if match:
            names.append(match[1].decode())
        limit = indent
        if indent == 0:
            break
    return ".".join(reversed(names))


def hunk_scope(lines: Sequence[bytes], hunk: Hunk, at: int) -> str:
    """The scope that a hunk changes, with its first old line at ``lines[at]``.

    It is the scope of the last context line before the first change: where a line is inserted, that
    is the code which it continues.
    """
    index = at + max(hunk.leading - 1, 0)
    return enclosing_scope(lines, min(index, len(lines) - 1)) if lines else ""
