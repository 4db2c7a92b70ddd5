# SPDX-License-Identifier: Apache-2.0
"""RECORD: the list by which an installer later finds the files of a package, with their digests.

What an overlay adds must stand there, or an upgrade would leave it behind in the new version. Lines of
other files stay as they are, byte for byte.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections.abc import Mapping


def update_record(text: str, files: Mapping[str, bytes]) -> str:
    """The text of a RECORD in which the lines of ``files`` state their new content.

    Args:
        text: The installer's RECORD.
        files: Content by path relative to the site-packages folder.

    """
    end = "\r\n" if "\r\n" in text else "\n"
    rest = dict(files)
    lines = []
    for line in text.splitlines():
        row = next(csv.reader([line]), [])
        content = rest.pop(row[0], None) if row else None
        lines.append(line if content is None else _line(row[0], content))
    lines += [_line(path, content) for path, content in sorted(rest.items())]
    return "".join(line + end for line in lines)


def _line(path: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow([path, f"sha256={digest}", len(content)])
    return out.getvalue()
