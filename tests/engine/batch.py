# SPDX-License-Identifier: Apache-2.0
"""Run the scenarios, many at the same time, and write all results into one file.

``python -m engine.batch PLACE RESULTS.json`` where ``vllm-series env unpack`` has been. The results are kept
by tree and scenario, with the machine they come from, and the file is whole after every single run: what
runs out of time is missing, and nothing else. ``vllm-series test --results`` judges them.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition
from typing import Any

from vllm_series.supervise import supervise

from engine.results import OUT_OF_TIME
from engine.scenarios import SCENARIOS, SERIES, Scenario

SCHEMA = 1
HERE = Path(__file__).resolve().parent
REFERENCE = "reference"
#: Seconds for one run; for one that is there to fail, which may hang instead.
_LIMIT, _CONTROL_LIMIT = 330.0, 240.0
#: Variables of the user that no run sees. Those of NCCL and PyTorch stay: they may say how the machine's
#: GPUs must not talk to each other.
_DROPPED = ("VLLM_", "PYTHON", "TRITON_", "CUDA_VISIBLE", "HF_")
#: What a log says of the cause of a failure.
_CAUSE = re.compile(r"\b((?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception)|StopIteration)\b.*)")
_CAUSES, _CAUSE_LENGTH, _TAIL = 12, 400, 5000

_PROBE = """
import json, platform, subprocess, torch, transformers, triton
n = torch.cuda.device_count()
try:
    driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
                            capture_output=True, text=True, check=True).stdout.split()[0]
except (OSError, subprocess.CalledProcessError, IndexError):
    driver = ""
print(json.dumps({
    "gpus": n, "gpu": torch.cuda.get_device_name() if n else "",
    "capability": ".".join(map(str, torch.cuda.get_device_capability())) if n else "",
    "driver": driver, "python": platform.python_version(), "torch": torch.__version__,
    "triton": triton.__version__, "transformers": transformers.__version__,
}))
"""


@dataclass(frozen=True)
class Place:
    """Where an archive was unpacked.

    Attributes:
        folder: It.
        release: The release that the trees are made from.
        trees: Tree ids by role.

    """

    folder: Path
    release: str
    trees: Mapping[str, str]

    @classmethod
    def read(cls, folder: Path) -> Place:
        """Read what was unpacked."""
        manifest = json.loads((folder / "pack.json").read_text("utf-8"))
        return cls(folder, manifest["release"], manifest["trees"])

    def tree(self, role: str) -> Path:
        """The folder of the tree with a role."""
        return self.folder / "trees" / self.trees[role]


@dataclass
class Results:
    """The results file, written anew with each result."""

    path: Path
    document: dict[str, Any]
    _changed: Condition = field(default_factory=Condition)

    def add(self, tree: str, name: str, run: Mapping[str, Any]) -> None:
        """Add a run."""
        with self._changed:
            self.document["runs"][f"{tree}/{name}"] = run
            self.path.with_suffix(".new").write_text(json.dumps(self.document))
            self.path.with_suffix(".new").replace(self.path)


@dataclass
class Slots:
    """As many processes at a time as there are CPUs for; who asks first gets first."""

    count: int
    free: int = field(init=False)
    _queue: list[object] = field(default_factory=list)
    _changed: Condition = field(default_factory=Condition)

    def __post_init__(self) -> None:
        self.free = self.count

    def take(self, count: int, ticket: object) -> None:
        """Wait for this ticket's turn and for that many slots."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue[0] is ticket and self.free >= count)
            self._queue.pop(0)
            self.free -= count
            self._changed.notify_all()

    def enqueue(self, ticket: object) -> None:
        """Get in line."""
        with self._changed:
            self._queue.append(ticket)

    def give_back(self, count: int) -> None:
        """Give the slots back."""
        with self._changed:
            self.free += count
            self._changed.notify_all()


@dataclass(frozen=True)
class Batch:
    """Everything that the runs share."""

    place: Place
    machine: Mapping[str, Any]
    work: Path
    checkpoint: Path
    results: Results
    slots: Slots
    deadline: float

    def variables(self, role: str, number: int, scenario: Scenario | None = None) -> dict[str, str]:
        """The environment of a run."""
        tree = self.place.tree(role)
        paths = [tree, self.place.folder / "site", HERE / "plugin", HERE.parent]
        values = {k: v for k, v in os.environ.items() if not k.startswith(_DROPPED)}
        values |= {
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_USE_FLASHINFER_SAMPLER": "0",
            "VLLM_CACHE_ROOT": str(self.work / f"cache-{tree.name}"),
            "VLLM_CONFIG_ROOT": str(self.work / "config"),
            "TRITON_CACHE_DIR": str(self.work / "triton"),
            "OMP_NUM_THREADS": "1",
        }
        if int(str(self.machine["capability"]).split(".")[0]) > 8:
            values["VLLM_SERIES_ENGINE_CAPABILITY"] = "8.6"
            values["VLLM_SERIES_ENGINE_FA"] = "2"
        gpus = int(self.machine["gpus"])
        if scenario is not None and scenario.stages > 1:
            if scenario.partition:
                values["VLLM_PP_LAYER_PARTITION"] = scenario.partition
            if scenario.relay or gpus < scenario.stages:
                values |= {"VLLM_SERIES_ENGINE_ONE_GPU": "1", "VLLM_DISABLE_PYNCCL": "1"}
        elif gpus > 1:
            values["CUDA_VISIBLE_DEVICES"] = str(number % gpus)
        return values

    def command(
        self, name: str, command: Sequence[str], env: Mapping[str, str], limit: float
    ) -> dict[str, Any]:
        """Run a command that writes a result file; the result, with what the log says."""
        folder = self.work / "runs" / name
        folder.mkdir(parents=True, exist_ok=True)
        result, log = folder / "result.json", folder / "log.txt"
        own_end = time.monotonic() + limit

        def watch() -> str:
            now = time.monotonic()
            return OUT_OF_TIME if now > self.deadline else "time limit" if now > own_end else ""

        ended = supervise(
            [*command, str(result)],
            cwd=folder,
            env=env,
            log=log,
            watch=watch,
        )
        found: dict[str, Any] = {"outcome": "failed", "error": "", "steps": [], "seconds": {}}
        if result.is_file():
            found = json.loads(result.read_text("utf-8"))
        if ended.stopped or (ended.returncode != 0 and found["outcome"] == "finished"):
            found["outcome"] = "failed"
            found["error"] = ended.stopped or f"exit status {ended.returncode} after the last step"
        text = log.read_text("utf-8", "replace")
        found["causes"] = causes(text)
        found["log"] = text[-_TAIL:] if found["outcome"] == "failed" else ""
        found["seconds"]["whole"] = round(ended.seconds, 1)
        return found

    def scenario(self, number: int, scenario: Scenario) -> None:
        """Run a scenario as soon as it is its turn, and keep the result."""
        count = self.slots.count if scenario.alone else scenario.stages
        self.slots.take(count, scenario)
        try:
            if time.monotonic() > self.deadline - 20:
                return
            file = self.work / f"{scenario.key}.json"
            file.write_text(json.dumps(scenario.document()))
            limit = _CONTROL_LIMIT if scenario.fails else _LIMIT
            command = [*_program("run"), str(file), str(self.checkpoint)]
            if scenario.tests:
                tree = str(self.place.tree(scenario.role))
                command = [*_program("treetests"), tree, *scenario.tests]
            run = self.command(scenario.key, command, self.variables(scenario.role, number, scenario), limit)
            tree = self.place.trees[scenario.role]
            run |= {"role": scenario.role, "relay": self._relayed(scenario)}
            self.results.add(tree, scenario.name, run)
            say(f"{scenario.key}: {run['outcome']}", run)
        finally:
            self.slots.give_back(count)

    def _relayed(self, scenario: Scenario) -> bool:
        return scenario.stages > 1 and (scenario.relay or int(self.machine["gpus"]) < scenario.stages)

    def reference(self) -> None:
        """Have Hugging Face's implementation compute the reference."""
        command = [*_program("reference"), str(self.checkpoint)]
        run = self.command(REFERENCE, command, self.variables(SERIES, 0), _LIMIT)
        self.results.add(self.place.trees[SERIES], REFERENCE, run)
        say(f"{REFERENCE}: {run['outcome']}", run)


def _program(name: str) -> list[str]:
    """A module of this folder as a command. As a script, its folder would hide packages of other names."""
    return [sys.executable, "-m", f"{HERE.name}.{name}"]


def causes(log: str) -> list[str]:
    """The lines of a log that name an exception, each once."""
    found = dict.fromkeys(match[1][:_CAUSE_LENGTH] for match in map(_CAUSE.search, log.splitlines()) if match)
    return list(found)[:_CAUSES]


def say(text: str, run: Mapping[str, Any]) -> None:
    """Report a run as soon as it has ended."""
    error = "" if run["outcome"] == "finished" else f"  {run['error'][:150]}"
    print(f"[{run['seconds']['whole']:6.1f} s] {text}{error}", flush=True)


def main() -> int:
    """Run them; exit 1 if there is nothing to run them with."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("place", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="scenarios to run; default: all")
    parser.add_argument("--seconds", type=float, default=480.0, help="time for everything")
    parser.add_argument("--slots", type=int, default=max(2, os.cpu_count() or 2))
    args = parser.parse_args()
    deadline = time.monotonic() + args.seconds
    place = Place.read(args.place.absolute())
    chosen = [s for s in SCENARIOS if s.role in place.trees and (not args.only or s.name in args.only)]
    if not chosen:
        print("nothing to run: no scenario of that name, or no tree for it", file=sys.stderr)
        return 1
    work = place.folder / "work"
    work.mkdir(exist_ok=True)
    checkpoint = work / "checkpoint"
    writing = None
    if not checkpoint.exists():
        env = {**os.environ, "PYTHONPATH": str(HERE.parent)}
        writing = subprocess.Popen([*_program("checkpoint"), str(checkpoint)], env=env)
    probe = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, check=False)
    if probe.returncode != 0 or (writing is not None and writing.wait() != 0):
        print(f"this machine cannot run them: {probe.stderr.strip()[-500:]}", file=sys.stderr)
        return 1
    machine = json.loads(probe.stdout.splitlines()[-1])
    if not machine["gpus"]:
        print("there is no GPU that PyTorch can use", file=sys.stderr)
        return 1
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    document = {"schema": SCHEMA, "date": date, "release": place.release, "machine": machine, "runs": {}}
    print(json.dumps(machine), flush=True)
    results = Results(args.results.absolute(), document)
    batch = Batch(place, machine, work, checkpoint, results, Slots(args.slots), deadline)
    for scenario in chosen:
        batch.slots.enqueue(scenario)
    with ThreadPoolExecutor(len(chosen) + 1) as threads:
        waiting = [threads.submit(batch.reference)] if not args.only else []
        waiting += [threads.submit(batch.scenario, i, s) for i, s in enumerate(chosen)]
        for future in waiting:
            future.result()
    return 0


if __name__ == "__main__":
    sys.exit(main())
