# SPDX-License-Identifier: Apache-2.0
"""Which flags the vLLM about to run knows, read from its sources, and those of a start that it does not."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from vllm_series.preflight.facts import Facts, Finding, Findings

#: A flag as the engine's parser names it, and a field of the server's arguments, which becomes one.
_LITERAL = re.compile(r'"(--[a-z][a-z0-9-]*)"')
_FIELD = re.compile(r"^    ([a-z][a-z0-9_]*):", re.MULTILINE)


def read_flags(folder: Path) -> frozenset[str]:
    """The long flags of ``vllm serve``; empty if the sources do not tell."""
    engine = folder / "vllm" / "engine" / "arg_utils.py"
    server = sorted((folder / "vllm" / "entrypoints").rglob("cli_args.py"))
    if not server or not engine.is_file():
        return frozenset()
    try:
        texts = [path.read_text(encoding="utf-8") for path in (engine, *server)]
    except (OSError, UnicodeDecodeError):
        return frozenset()
    found = {flag for text in texts for flag in _LITERAL.findall(text)}
    return frozenset(
        found | {"--" + name.replace("_", "-") for text in texts[1:] for name in _FIELD.findall(text)}
    )


def check_words(facts: Facts) -> Findings:
    """Every word is the model, a flag, or a flag's value."""
    surplus = facts.arguments.surplus
    if surplus:
        more = f", and {len(surplus) - 1} more" if len(surplus) > 1 else ""
        yield Finding(
            "arguments",
            True,
            f"{surplus[0]!r} is one word too many beside the model {facts.arguments.model}{more}",
            "vLLM serves one model, and refuses words that belong to no flag",
            "take it out, or write the flag that it belongs to; quote a value that has spaces",
        )


def check_flags(facts: Facts) -> Findings:
    """Every flag is one that this vLLM knows."""
    known = facts.engine.flags if facts.engine else frozenset()
    if not known:
        return
    for flag in (*facts.arguments.flags, *facts.arguments.nested):
        name = "--" + flag.removeprefix("--no-") if flag.startswith("--no-") else flag
        # A beginning of a flag stands for it.
        if not flag.startswith("--") or any(one.startswith((name, flag)) for one in known):
            continue
        close = difflib.get_close_matches(flag, known, n=1, cutoff=0.8)
        yield Finding(
            "arguments",
            False,
            f"{flag} is no flag of the vLLM in {facts.engine.folder if facts.engine else ''}",
            "vLLM refuses a flag that it does not know, and what it was to set was not checked",
            f"did you mean {close[0]}?" if close else "see: vllm serve --help=all",
        )
