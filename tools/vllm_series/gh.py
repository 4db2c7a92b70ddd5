# SPDX-License-Identifier: Apache-2.0
"""GitHub's command-line client, for what is asked of vLLM's repository. Reads only."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

from vllm_series.errors import EnvironmentFaultError
from vllm_series.search import search_arguments
from vllm_series.sendoff import UPSTREAM
from vllm_series.upstreamfacts import Thread

#: Seconds that one question may take.
_LIMIT = 60.0


@dataclass(frozen=True)
class Gh:
    """The client.

    Attributes:
        program: Where it lies.

    """

    program: str

    @classmethod
    def find(cls, otherwise: str) -> Gh:
        """The installed client.

        Args:
            otherwise: What to do by hand where there is none.

        Raises:
            EnvironmentFaultError: It is not installed, or has no token.

        """
        program = shutil.which("gh")
        if program is None:
            raise EnvironmentFaultError(
                "gh, GitHub's client, is not installed",
                hint=f"install it and run: gh auth login && vllm-series upstream sync; {otherwise}",
            )
        found = cls(program)
        if found._run("auth", "status").returncode != 0:
            raise EnvironmentFaultError(
                "gh has no token for github.com", hint=f"run gh auth login, or set GH_TOKEN; {otherwise}"
            )
        return found

    def pull_request(self, number: int) -> Thread:
        """The state and title of a pull request."""
        return self._thread("pr", number)

    def issue(self, number: int) -> Thread:
        """The state and title of an issue."""
        return self._thread("issue", number)

    def open_pull_requests(self, query: str) -> dict[int, str]:
        """Titles of the open pull requests that a search finds, by number."""
        rows = self._ask(*search_arguments(query))
        try:
            return {int(row["number"]): str(row["title"]) for row in rows}
        except (KeyError, TypeError, ValueError):
            raise _other_answer("gh pr list") from None

    def _thread(self, kind: str, number: int) -> Thread:
        row = self._ask(kind, "view", str(number), "--repo", UPSTREAM, "--json", "number,state,title")
        try:
            return Thread(str(row["state"]).lower(), str(row["title"]))
        except (KeyError, TypeError):
            raise _other_answer(f"gh {kind} view {number}") from None

    def _ask(self, *arguments: str) -> Any:
        result = self._run(*arguments)
        line = " ".join(["gh", *arguments[:3]])
        if result.returncode != 0:
            lines = result.stderr.strip().splitlines() or ["no message"]
            raise EnvironmentFaultError(
                f"{line} failed: {lines[0]}", hint="nothing was changed; run the command again"
            )
        try:
            return json.loads(result.stdout)
        except ValueError:
            raise EnvironmentFaultError(f"{line} gave no JSON", hint="is gh up to date?") from None

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "GH_PROMPT_DISABLED": "1", "NO_COLOR": "1", "GH_NO_UPDATE_NOTIFIER": "1"}
        try:
            return subprocess.run(
                [self.program, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                env=environment,
                timeout=_LIMIT,
            )
        except subprocess.TimeoutExpired:
            line = " ".join(["gh", *arguments[:3]])
            raise EnvironmentFaultError(
                f"{line} did not answer in {_LIMIT:.0f} s", hint="check the network and run it again"
            ) from None


def _other_answer(line: str) -> EnvironmentFaultError:
    return EnvironmentFaultError(f"{line} gave another answer than was asked for", hint="is gh up to date?")
