# SPDX-License-Identifier: Apache-2.0
"""Run tests and checks on a tree in an environment, and remember what came of them.

A result is bound to the tree's content, the tier, the environment and the tests, so it can be had again
without running. Only whole runs are remembered: none that was stopped, had a test beyond its time or left
processes behind.

Runs go on at the same time. Each has a session, a working folder, a home of caches and a report of its own.
They share the tree, which they must not write to, and what vLLM and Triton remember, which these write in
one step. What two patches ask for is run once.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from threading import Lock

from vllm_series.environment import FILES, MODELS, PYTHON_PATH, Environment
from vllm_series.errors import UsageError
from vllm_series.recorded import Results
from vllm_series.staticrun import find_ruff, lint
from vllm_series.supervise import Ended, supervise
from vllm_series.swap import write_file
from vllm_series.testreport import TestRun, from_document, merge, read_events, read_tests
from vllm_series.testtable import Selector
from vllm_series.tiers import Tier
from vllm_series.trees import Trees
from vllm_series.workers import Workers

#: Seconds beyond that until a test which does not answer is ended from outside.
_GRACE = 15.0
#: Seconds that collecting may take: it imports torch and vllm, maybe for the first time.
_COLLECTING = 600.0
#: Variables of the user that no test sees: they choose backends, options and modules.
_DROPPED = ("VLLM_", "PYTEST_", "PYTHON", "TRITON_", "TORCH_", "CUDA_", "HF_", "GIT_", "NCCL_")
#: A test run's seed of hashes, so that the order of sets does not change from run to run.
_HASH_SEED = "0"

#: Hears of the begin of a run (an empty text), and of every test: node id, number, how many there are.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Place:
    """Where something is run.

    Attributes:
        trees: The folders of trees.
        tree_id: The tree's id, which stands for its content.
        base: Id of a tree that differs little.
        tier: The tier.
        project: This project's folder, for its own tests.
        version: vLLM's version.

    """

    trees: Trees
    tree_id: str
    base: str
    tier: Tier
    project: Path
    version: str

    @property
    def tree(self) -> Path:
        """The tree's folder, made when it is used."""
        return self.trees.folder / self.tree_id

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


def merged(answers: Sequence[Answer]) -> tuple[TestRun, bool]:
    """The results of several requests as one run, and whether nothing had to be run."""
    return merge([answer.run for answer in answers]), all(answer.remembered for answer in answers)


#: A run, and whether it was known.
_Known = tuple[TestRun, bool]


@dataclass(frozen=True)
class Request:
    """A request that is being worked on: one pytest run for each part."""

    parts: tuple[tuple[Sequence[Selector], Future[_Known]], ...]

    def answer(self) -> Answer:
        """Wait for the result."""
        runs: list[TestRun] = []
        by_selector: dict[Selector, TestRun] = {}
        remembered = True
        for selectors, future in self.parts:
            run, known = future.result()
            remembered &= known
            runs.append(run)
            by_selector.update(covering(run, selectors))
        return Answer(merge(runs), by_selector, remembered)


@dataclass(frozen=True)
class Runner:
    """Runs requests in one environment.

    Attributes:
        environment: The environment.
        cache: The cache folder.
        workers: Who waits for the runs.
        limit: Seconds that one phase of a test may take; None for the tier's.
        fresh: Whether to run what is known already.
        keep: Whether to leave the working folder of each run, with its log.
        results: What ran on a GPU machine, for the tiers that judge that.

    """

    environment: Environment
    cache: Path
    workers: Workers
    limit: float | None = None
    fresh: bool = False
    keep: bool = False
    results: Results | None = None
    _kept: list[Path] = field(default_factory=list)
    _begun: dict[tuple[str, bool], Future[_Known]] = field(default_factory=dict)
    _beginning: Lock = field(default_factory=Lock)

    @property
    def kept(self) -> tuple[Path, ...]:
        """The working folders that were left."""
        return tuple(sorted(self._kept))

    def tests(
        self,
        place: Place,
        selectors: Sequence[Selector],
        progress: Progress,
        *,
        good: Callable[[TestRun], bool],
        again: bool = False,
    ) -> Request:
        """Run tests.

        Args:
            place: Where.
            selectors: The tests.
            progress: Hears of every test that begins.
            good: Whether a result is what one hopes for. A remembered one that is not is run again.
            again: Whether it is a second try, which the first one's result is no answer to.

        Returns:
            What gives the result. Each pytest run of it is remembered on its own.

        Raises:
            UsageError: A test file does not exist.

        """
        _require_files(place, selectors)
        parts = []
        for part in _parts(selectors):
            texts = sorted(selector.text for selector in part)
            own = _folder_digest(place.project / "tests") if part[0].project else ""

            def run_part(part: Sequence[Selector] = part) -> TestRun:
                return self._supervise(place, self._command(place, part), progress)

            parts.append((part, self._begin(self._key(place, texts, own), good, run_part, again)))
        return Request(tuple(parts))

    def static(
        self, place: Place, paths: Sequence[str], progress: Progress, *, good: Callable[[TestRun], bool]
    ) -> Request:
        """Byte-compile, import and lint Python files of a tree; every step is a test of the result."""
        there = sorted(place.trees.repository.entries(place.tree_id, paths))
        ruff = find_ruff(self.environment.interpreter)
        command = [str(self.environment.interpreter), "-m", "vllm_series_import", *there]

        def run_steps() -> TestRun:
            imported = self._supervise(place, command, progress)
            with place.trees.use(place.tree_id, place.base) as tree:
                return merge([imported, TestRun(tuple(lint(ruff, tree, there)))])

        key = self._key(place, there, f"{ruff.stat().st_size} {ruff.stat().st_mtime_ns}")
        return Request((((), self._begin(key, good, run_steps)),))

    def _begin(
        self,
        key: str,
        good: Callable[[TestRun], bool],
        produce: Callable[[], TestRun],
        again: bool = False,
    ) -> Future[_Known]:
        memory = self.cache / "results" / f"{key}.json"

        def work() -> _Known:
            self.workers.check()
            run = produce()
            _remember(memory, run)
            return run, False

        with self._beginning:
            future = self._begun.get((key, again))
            if future is None:
                known = None if self.fresh else _recall(memory)
                if known is not None and good(known):
                    future = Future()
                    future.set_result((known, True))
                    return future  # For another request it may be no good.
                self._begun[key, again] = future = self.workers.submit(work)
            return future

    def _limit(self, place: Place) -> float:
        return place.tier.limit if self.limit is None else self.limit

    def _key(self, place: Place, what: Sequence[str], extra: str) -> str:
        values = [
            place.tree_id,
            place.version,
            place.tier.name,
            sorted(place.tier.variables.items()),
            self.environment.digest,
            self.results.digest if self.results is not None and place.tier.recorded else "",
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
            with place.trees.use(place.tree_id, place.base):
                progress("", 0, 0)
                watcher = Watcher(work / "report.jsonl", self._limit(place), progress)

                def watch() -> str:
                    self.workers.check()
                    return watcher.look()

                ended = supervise(
                    command,
                    cwd=work / "cwd",
                    env=self._variables(place, work),
                    log=work / "log.txt",
                    watch=watch,
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
            **(self.results.variables(place.tree_id) if self.results and place.tier.recorded else {}),
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
    files = [selector.file for selector in selectors if not selector.project]
    there = place.trees.repository.entries(place.tree_id, files)
    for selector in selectors:
        known = (place.project / selector.file).exists() if selector.project else selector.file in there
        if not known:
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
