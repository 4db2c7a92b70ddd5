# SPDX-License-Identifier: Apache-2.0
"""The results file of :mod:`engine.batch`, as its judges see it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA = 1
SERIES = "series"
REFERENCE = "reference"
#: The error of a run that had to end with all others. It says nothing of the tree.
OUT_OF_TIME = "out of time"


class NotRunError(Exception):
    """A run that a judge needs did not take place."""


class FailedError(Exception):
    """A run that a judge needs failed."""


@dataclass(frozen=True)
class Results:
    """The runs of one machine, and the tree that is judged.

    Attributes:
        document: The file.
        tree: Id of the tree.

    """

    document: Mapping[str, Any]
    tree: str

    @classmethod
    def read(cls, path: Path, tree: str = "") -> Results:
        """Read a file; the tree is that of the whole series unless another is named.

        Raises:
            ValueError: It is no results file.

        """
        document = json.loads(path.read_text("utf-8"))
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise ValueError(f"{path} holds no results of engine runs")
        return cls(document, tree or series_tree(document))

    def run(self, name: str, tree: str = "") -> Mapping[str, Any]:
        """A run that came to its end.

        Raises:
            NotRunError: There was none.
            FailedError: It failed; the message says of what.

        """
        found = self.raw(name, tree)
        if found["outcome"] != "finished":
            raise FailedError(f"{name} failed: {cause(found)}")
        return found

    def raw(self, name: str, tree: str = "") -> Mapping[str, Any]:
        """A run, however it ended.

        Raises:
            NotRunError: There was none.

        """
        key = f"{tree or self.tree}/{name}"
        if key not in self.document["runs"]:
            raise NotRunError(f"{name} was not run on the tree {(tree or self.tree)[:12]}")
        found: Mapping[str, Any] = self.document["runs"][key]
        if found["error"] == OUT_OF_TIME:
            raise NotRunError(f"{name} did not end in time")
        return found

    def of_series(self, name: str) -> Mapping[str, Any]:
        """A run on the whole series, which others are compared with."""
        return self.run(name, series_tree(self.document))

    @property
    def rounding(self) -> list[float]:
        """What bf16 changes, by standard prompt."""
        found: list[float] = self.of_series(REFERENCE)["reference"]["rounding"]
        return found


def series_tree(document: Mapping[str, Any]) -> str:
    """The tree of the whole series."""
    for key, run in document["runs"].items():
        if run.get("role", SERIES) == SERIES:
            return str(key.partition("/")[0])
    return ""


def cause(run: Mapping[str, Any]) -> str:
    """Why a run failed: the first exception that is not only about another one."""
    secondary = (
        "RuntimeError: Engine core initialization failed",
        "EngineDeadError",
        "EngineCore encountered",
    )
    found = [line for line in run.get("causes", ()) if not any(word in line for word in secondary)]
    return str((found or [run["error"]])[0])[:300]


def steps(run: Mapping[str, Any], kind: str, prompts: str = "standard") -> list[Mapping[str, Any]]:
    """The steps of a kind on a set of prompts, in order."""
    return [step for step in run["steps"] if step["do"] == kind and step.get("prompts") == prompts]
