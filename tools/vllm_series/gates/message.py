# SPDX-License-Identifier: Apache-2.0
"""The commit message: its title, and who answers for it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vllm_series.gates.subject import Finding, Subject
from vllm_series.rules import TITLE

#: Addresses that stand for no person: reserved domains, machines, bots, and models.
_NOBODY = re.compile(
    r"@(.*\.)?(invalid|localhost|localdomain|local|example)$|^(root|noreply|no-reply|nobody)@|\[bot\]"
    r"|@(anthropic|openai)\.com$",
    re.IGNORECASE,
)
_IDENT = re.compile(r"(.*?) ?<([^<>]*)>")


def is_person(name: str, email: str) -> bool:
    """Whether a name and an address can be a person's."""
    return bool(name.strip()) and "@" in email and not _NOBODY.search(email) and "[bot]" not in name


def findings(subject: Subject) -> Iterator[Finding]:
    """Gates ``title`` and ``dco``."""
    patch = subject.patch
    if not TITLE.fullmatch(patch.subject):
        yield Finding(
            "title",
            f"{patch.subject!r} is no title like '[Bugfix][Qwen4Exp] Do this'",
            "reword the commit and take it in with: vllm-series refresh --from PATH",
        )
    if subject.signer is None:
        yield Finding(
            "dco",
            "git does not know who would sign the commits off",
            "git config --global user.name 'Your Name'; git config --global user.email you@example.org",
        )
    elif not is_person(*subject.signer):
        yield Finding(
            "dco",
            f"{subject.signer[0]} <{subject.signer[1]}> is no person who can sign off",
            "set user.name and user.email to the person's who reviews and submits it",
        )
    for value in patch.trailer("Signed-off-by"):
        match = _IDENT.fullmatch(value)
        if match is None or not is_person(match[1], match[2]):
            yield Finding(
                "dco", f"the patch is signed off by {value}, who is no person", "remove that trailer"
            )
    if not is_person(patch.author.name, patch.author.email):
        yield Finding(
            "author",
            f"the author {patch.author.name} <{patch.author.email}> cannot be reached",
            "export with --reset-author, which makes you the author",
        )
