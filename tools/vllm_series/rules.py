# SPDX-License-Identifier: Apache-2.0
"""What ``check`` demands of a patch's message, for the verbs that are told a part of one."""

from __future__ import annotations

import re

from vllm_series.errors import UsageError

#: Titles that vLLM's pull requests must have.
TITLE = re.compile(r"(\[[^][]+\])+ +\S.*")
ORIGIN = re.compile(r"own|backport|https?://\S+|upstream(?:, [0-9a-f]{7,40})?")


def require_title(title: str) -> None:
    """Raise if ``check`` would refuse a patch of this title."""
    if not TITLE.fullmatch(title):
        what = f"{title!r} is no title" if title.strip() else "--title is empty"
        raise UsageError(what, hint="write it as vLLM does: --title '[Bugfix][Qwen4Exp] Do this'")


def require_origin(origin: str) -> None:
    """Raise if ``check`` would refuse a patch of this origin."""
    if not ORIGIN.fullmatch(origin):
        what = f"{origin!r} is no origin" if origin.strip() else "--origin is empty"
        raise UsageError(what, hint="it can be: own, backport, a URL, or 'upstream, COMMIT'")
