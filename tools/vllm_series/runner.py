# SPDX-License-Identifier: Apache-2.0
"""Run tests and checks on a tree in an environment, and remember what came of them.

A result is bound to the tree's content, the tier, the environment and the tests, so it can be had again
without running. Only whole runs are remembered: none that was stopped, had a test beyond its time or left
processes behind.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from vllm_series.environment import FILES, MODELS, PYTHON_PATH, Environment
from vllm_series.errors import UsageError
from vllm_series.staticrun import find_ruff, lint
from vllm_series.supervise import Ended, supervise
from vllm_series.swap import write_file
from vllm_series.testreport import TestRun, from_document, merge, read_events, read_tests
from vllm_series.testtable import Selector
from vllm_series.tiers import Tier

#: Seconds beyond that until a test which does not answer is ended from outside.
_GRACE = 15.0
#: Seconds that collecting may take: it imports torch and vllm, maybe for the first time.
_COLLECTING = 600.0
#: Variables of the user that no test sees: they choose backends, options and modules.
_DROPPED = ("VLLM_", "PYTEST_", "PYTHON", "TRITON_", "TORCH_", "CUDA_", "HF_", "GIT_", "NCCL_")
#: A test run's seed of hashes, so that the order of sets does not change from run to run.
_HASH_SEED = "0"

#: Hears of every test that begins: node id, number, how many there are.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Place:
    """Where something is run.

    Attributes:
        tree: Folder of the tree.
        tree_id: Its id, which stands for its content.
        tier: The tier.
        project: This project's folder, for its own tests.
        version: vLLM's version.

    """

    tree: Path
    tree_id: str
    tier: Tier
    project: Path
    version: str

    @property
    def vllm_cache(self) -> Path:
        """What vLLM itself remembers, of model classes for one; never shared with another tree."""
        return self.tree.with_name(f"{self.tree_id}.cache")


@dataclass(frozen=True)
class Answer:
    """The result of a request.

    Attributes:
        run: All of it.
        by_selector: The tests of each selector.
        remembered: Whether nothing had to be run.

    """

    run: TestRun
    by_selector: Mapping[Selector, TestRun]
    remembered: bool


@dataclass(frozen=True)
class Runner:
    """Runs requests in one environment.

    Attributes:
        environment: The environment.
        cache: The cache folder.
        limit: Seconds that one phase of a test may take; None for the tier's.
        fresh: Whether to run what is known already.
        keep: Whether to leave the working folder of each run, with its log.

    """

    environment: Environment
    cache: Path
    limit: float | None = None
    fresh: bool = False
    keep: bool = False
    _kept: list[Path] = field(default_factory=list)

    @property
    def kept(self) -> tuple[Path, ...]:
        """The working folders that were left."""
        return tuple(self._kept)

    def tests(
        self,
        place: Place,
        selectors: Sequence[Selector],
        progress: Progress,
        *,
        good: Callable[[TestRun], bool],
    ) -> Answer:
        """Run tests.

        Args:
            place: Where.
            selectors: The tests.
            progress: Hears of every test that begins.
            good: Whether a result is what one hopes for. A remembered one that is not is run again.

        Returns:
            The result. Each pytest run of it is remembered on its own.

        Raises:
            UsageError: A test file does not exist.

        """
        _require_files(place, selectors)
        runs: list[TestRun] = []
        by_selector: dict[Selector, TestRun] = {}
        remembered = True
        for part in _parts(selectors):
            texts = sorted(selector.text for selector in part)
            own = _folder_digest(place.project / "tests") if part[0].project else ""

            def run_part(part: Sequence[Selector] = part) -> TestRun:
                return self._supervise(place, self._command(place, part), progress)

            run, known = self._recall_or(self._key(place, texts, own), good, run_part)
            remembered &= known
            runs.append(run)
            by_selector.update(covering(run, part))
        return Answer(merge(runs), by_selector, remembered)

    def static(self, place: Place, paths: Sequence[str], *, good: Callable[[TestRun], bool]) -> Answer:
        """Byte-compile, import and lint Python files of a tree; every step is a test of the result."""
        there = [path for path in sorted(paths) if (place.tree / path).is_file()]
        ruff = find_ruff(self.environment.interpreter)
        command = [str(self.environment.interpreter), "-m", "vllm_series_import", *there]

        def run_steps() -> TestRun:
            imported = self._supervise(place, command, lambda *_: None)
            return merge([imported, TestRun(tuple(lint(ruff, place.tree, there)))])

        key = self._key(place, there, f"{ruff.stat().st_size} {ruff.stat().st_mtime_ns}")
        run, known = self._recall_or(key, good, run_steps)
        return Answer(run, {}, known)

    def _recall_or(
        self, key: str, good: Callable[[TestRun], bool], produce: Callable[[], TestRun]
    ) -> tuple[TestRun, bool]:
        memory = self.cache / "results" / f"{key}.json"
        known = None if self.fresh else _recall(memory)
        if known is not None and good(known):
            return known, True
        run = produce()
        _remember(memory, run)
        return run, False

    def _limit(self, place: Place) -> float:
        return place.tier.limit if self.limit is None else self.limit

    def _key(self, place: Place, what: Sequence[str], extra: str) -> str:
        values = [
            place.tree_id,
            place.version,
            place.tier.name,
            sorted(place.tier.variables.items()),
            self.environment.digest,
            _support_digest(),
            list(what),
            extra,
        ]
        return hashlib.sha256(json.dumps(values).encode()).hexdigest()

    def _supervise(self, place: Place, command: Sequence[str], progress: Progress) -> TestRun:
        work = Path(tempfile.mkdtemp(prefix="vllm-series-test-"))
        try:
            shutil.copytree(MODELS, work / "cwd")
            (work / "tmp").mkdir()
            _write_metadata(work / "metadata", place.version)
            watcher = Watcher(work / "report.jsonl", self._limit(place), progress)
            ended = supervise(
                command,
                cwd=work / "cwd",
                env=self._variables(place, work),
                log=work / "log.txt",
                watch=watcher.look,
            )
            watcher.look()
            run = _result(ended, watcher.events, work)
            named = {self.environment.folder: "ENV/", work: "WORK/", place.project: "PROJECT/"}
            return _without_folders(run, {place.tree: "", **named})
        finally:
            if self.keep:
                self._kept.append(work)
            else:
                shutil.rmtree(work, ignore_errors=True)

    def _command(self, place: Place, selectors: Sequence[Selector]) -> list[str]:
        root = place.project if selectors[0].project else place.tree
        config = root / "pyproject.toml"
        return [
            str(self.environment.interpreter), "-m", "pytest", "-p", "vllm_series_report",
            "-p", "no:cacheprovider", "--rootdir", str(root), "--tb=short", "-ra", "--color=no",
            *(["-c", str(config)] if config.is_file() else []),
            *(["-k", selectors[0].expression] if selectors[0].expression else []),
            *(str(root / selector.node) for selector in selectors),
        ]  # fmt: skip

    def _variables(self, place: Place, work: Path) -> dict[str, str]:
        return {
            **{k: v for k, v in os.environ.items() if not k.startswith(_DROPPED)},
            "PYTHONPATH": os.pathsep.join(map(str, (place.tree, PYTHON_PATH, work / "metadata"))),
            "PYTHONNOUSERSITE": "1",
            "PYTHONHASHSEED": _HASH_SEED,
            "TMPDIR": str(work / "tmp"),
            "XDG_CACHE_HOME": str(work / "cache"),
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(work / "cache" / "huggingface"),
            "VLLM_CACHE_ROOT": str(place.vllm_cache),
            "VLLM_CONFIG_ROOT": str(work / "config"),
            "VLLM_NO_USAGE_STATS": "1",
            "TRITON_CACHE_DIR": str(self.cache / "triton"),
            "VLLM_TREE": str(place.tree),
            "VLLM_SERIES_TREE": str(place.tree),
            "VLLM_SERIES_REPORT": str(work / "report.jsonl"),
            "VLLM_SERIES_FOREIGN": str(work / "foreign.txt"),
            "VLLM_SERIES_LIMIT": str(self._limit(place)),
            **place.tier.variables,
        }


@dataclass
class Watcher:
    """Follows a report while it is written.

    Attributes:
        report: The file.
        limit: Seconds that one phase of a test may take.
        progress: Hears of every test that begins.
        events: What was reported so far.

    """

    report: Path
    limit: float
    progress: Progress
    events: list[dict[str, object]] = field(default_factory=list)
    _position: int = 0
    _deadline: float | None = None
    _total: int = 0
    _number: int = 0
    _current: str = ""

    def look(self) -> str:
        """Read what is new; returns why the run must be stopped, or an empty text."""
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + _COLLECTING
        for event in self._new():
            self.events.append(event)
            self._deadline = now + (_COLLECTING if not self._total else self.limit + _GRACE)
            if event["event"] == "collected":
                self._total = len(event["nodes"])  # type: ignore[arg-type]
            elif event["event"] == "test":
                self._number += 1
                self._current = str(event["node"])
                self.progress(self._current, self._number, self._total)
        if now <= self._deadline:
            return ""
        if not self._total:
            return f"time limit: collecting the tests took longer than {_COLLECTING:g} s"
        return f"time limit: {self._current} took longer than {self.limit:g} s and did not answer"

    def _new(self) -> list[dict[str, object]]:
        if not self.report.exists():
            return []
        with self.report.open("rb") as stream:
            stream.seek(self._position)
            data = stream.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        return read_events(whole.decode("utf-8", "replace").splitlines())


def _write_metadata(folder: Path, version: str) -> None:
    """Make vLLM an installed distribution: it asks for its version, and without an answer goes wrong ways.

    So Triton is switched off where a tree alone stands in the path.
    """
    information = folder / f"vllm-{version}.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")


def _recall(memory: Path) -> TestRun | None:
    try:
        return from_document(json.loads(memory.read_text()))
    except (OSError, ValueError, UsageError):
        return None


def _remember(memory: Path, run: TestRun) -> None:
    late = any("time limit: " in test.reason for test in run.bad)  # That says something of this machine.
    if not (run.stopped or run.leftovers or run.problem or late):
        memory.parent.mkdir(parents=True, exist_ok=True)
        write_file(memory, json.dumps(run.document()).encode())


def _parts(selectors: Sequence[Selector]) -> list[list[Selector]]:
    """The selectors by pytest run: an expression counts for a whole run, and so does the root folder."""
    parts: dict[tuple[bool, str], list[Selector]] = {}
    for selector in selectors:
        own = selector.text if selector.expression else ""
        parts.setdefault((selector.project, own), []).append(selector)
    return list(parts.values())


def _require_files(place: Place, selectors: Sequence[Selector]) -> None:
    for selector in selectors:
        root = place.project if selector.project else place.tree
        if not (root / selector.file).exists():
            where = "this project" if selector.project else "the tree"
            raise UsageError(
                f"tests.toml names {selector.text}, and {where} has no {selector.file}",
                hint='correct the selector; files that differ between bases go under [NAME.base."REF"]',
            )


def _result(ended: Ended, events: list[dict[str, object]], work: Path) -> TestRun:
    finished = any(event["event"] == "finish" for event in events)
    stopped = ended.stopped
    if not finished and not stopped:
        stopped = f"pytest died ({_status(ended.returncode)})"
    tests = read_tests(events, stopped)
    foreign = work / "foreign.txt"
    owner = {pid: event["node"] for event in reversed(events) if event["event"] == "children"
             for pid in event["pids"]}  # type: ignore[attr-defined]  # fmt: skip
    problem = ""
    log = (work / "log.txt").read_text("utf-8", "replace")
    if not tests and ended.returncode not in (0, 5):
        problem = _problem(log) or f"pytest ended with {_status(ended.returncode)}"
    return TestRun(
        tests,
        ended.seconds,
        stopped if finished or ended.stopped or tests else "",
        tuple(foreign.read_text().splitlines()) if foreign.is_file() else (),
        tuple(
            f"process {left.pid} ({left.command})" + (f" of {owner[left.pid]}" if left.pid in owner else "")
            for left in ended.leftovers
        ),
        problem,
    )


def _without_folders(run: TestRun, names: Mapping[Path, str]) -> TestRun:
    """The run with folders of this machine left out of its texts, so that it reads the same anywhere."""

    def clean(text: str) -> str:
        for folder, name in names.items():
            text = text.replace(f"{folder}/", name)
        return text

    tests = tuple(
        replace(test, reason=clean(test.reason), place=clean(test.place), text=clean(test.text))
        for test in run.tests
    )
    return replace(run, tests=tests, problem=clean(run.problem))


def _status(returncode: int) -> str:
    return f"signal {-returncode}" if returncode < 0 else f"exit status {returncode}"


def _problem(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [
        line for line in lines if line.startswith(("ERROR:", "E  ", "INTERNALERROR>")) or "Error" in line
    ]
    return (errors[-1:] or lines[-1:] or [""])[0][:300]


@cache
def _support_digest() -> str:
    """SHA-256 over what vllm-series itself puts into a run."""
    return _folder_digest(FILES)


def _folder_digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(folder)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def covering(run: TestRun, selectors: Sequence[Selector]) -> dict[Selector, TestRun]:
    """The tests of one pytest run by selector.

    A file that could not be collected counts for all of its tests.
    """
    return {
        selector: TestRun(
            tuple(
                test
                for test in run.tests
                if selector.covers(test.node) or (not test.collected and selector.file == test.node)
            )
        )
        for selector in selectors
    }
