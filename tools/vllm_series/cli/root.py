# SPDX-License-Identifier: Apache-2.0
"""The command line's own errors as a JSON document: an unknown option never reaches the verb."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import typer
from typer.core import TyperGroup

from vllm_series.errors import EXIT_USAGE
from vllm_series.output import Output

#: What the parser raises. Newer releases of typer have the class in a private module, older ones in click.
_USAGE: type[BaseException] = typer.BadParameter.__mro__[1]


class RootGroup(TyperGroup):
    """All verbs."""

    _words: Sequence[str] = ()

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **options: Any) -> Any:
        """Read the options before the verb."""
        self._words = tuple(args)
        with _document(self._words):
            return super().make_context(info_name, args, *rest, **options)

    def invoke(self, ctx: Any) -> Any:
        """Read the verb's options, and run it."""
        with _document(self._words):
            return super().invoke(ctx)


@contextmanager
def _document(words: Sequence[str]) -> Iterator[None]:
    """Write the document of a usage error if a program reads; the text for people comes after it."""
    try:
        yield
    except _USAGE as error:
        if "--json" in words:
            out = Output(_verb(getattr(error, "ctx", None)), json=True)
            message = error.format_message()  # type: ignore[attr-defined]
            out.finish(EXIT_USAGE, error={"kind": "usage", "message": message, "hint": ""})
            with suppress(OSError):
                out.close()
        raise


def _verb(context: Any) -> str:
    """``bench compare``; empty if no verb was reached."""
    names: list[str] = []
    while context is not None and context.parent is not None:
        names.insert(0, str(context.info_name))
        context = context.parent
    return " ".join(names)
