# SPDX-License-Identifier: Apache-2.0
"""Run a verb, and turn what it raises into one line and an exit code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from vllm_series.errors import EXIT_BUG, EXIT_ENVIRONMENT, EXIT_INTERRUPTED, EXIT_USAGE, SeriesError
from vllm_series.output import Output


def dispatch(verb: str, as_json: bool, body: Callable[[Output], int]) -> None:
    """Run a verb, and turn what it raises into a line and an exit code."""
    from vllm_series import git, interrupt

    interrupt.install()
    git.isolate_process()
    out = Output(verb, as_json)
    try:
        code = body(out)
    except SeriesError as error:
        out.note(f"vllm-series: error: {error.message}")
        if error.hint:
            out.note(f"  {error.hint}")
        code = out.finish(
            error.exit_code,
            error={
                "kind": error.kind,
                "message": error.message,
                "hint": error.hint,
                **error.details,
            },
        )
    except KeyboardInterrupt:
        out.note("vllm-series: interrupted, rolled back")
        code = out.finish(
            EXIT_INTERRUPTED, error={"kind": "interrupted", "message": "interrupted", "hint": ""}
        )
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        out.note(f"vllm-series: error: {name}{error.strerror or error}")
        code = out.finish(
            EXIT_ENVIRONMENT,
            error={
                "kind": "environment",
                "message": f"{name}{error.strerror or error}",
                "hint": "",
            },
        )
    except Exception as error:
        import traceback

        traceback.print_exc()
        out.note("vllm-series: this is a bug; please report it with the lines above")
        code = out.finish(EXIT_BUG, error={"kind": "bug", "message": repr(error), "hint": ""})
    raise typer.Exit(out.close(code))


def refused(error: Any) -> int:
    """Write the document of a command line that Typer has refused, and return the exit code.

    ``error`` is Typer's exception.

    Its text for people has been written already. The class of the exception moved between Typer's versions.
    """
    names: list[str] = []
    context = getattr(error, "ctx", None)
    while context is not None and context.parent is not None:
        names.insert(0, context.info_name)
        context = context.parent
    out = Output(" ".join(names), json=True)
    hint = f"see: vllm-series {' '.join((*names, '--help'))}"
    code = out.finish(EXIT_USAGE, error={"kind": "usage", "message": error.format_message(), "hint": hint})
    return out.close(code)
