# SPDX-License-Identifier: Apache-2.0
"""Many runs at once, with programs in the place of the engine."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from engine import batch
from engine.scenarios import SCENARIOS, SERIES

PROBE = 'import json; print(json.dumps({"gpus": GPUS, "gpu": "none", "capability": "9.0"}))'
RUN = """
import json, os, sys, time
from pathlib import Path
result = Path(sys.argv[-1])
scenario = json.loads(Path(sys.argv[1]).read_text()) if "KIND" == "run" else {"name": "tests"}
kept = {k: v for k, v in os.environ.items() if k.startswith(("VLLM_", "PYTHONPATH", "CUDA_VISIBLE"))}
if scenario["name"] == "int8":
    print("(EngineCore pid=1) ValueError: no such cache", flush=True)
    sys.exit(1)
if scenario["name"] == "fp8":
    time.sleep(60)
found = {"outcome": "finished", "error": "", "steps": [], "seconds": {}, "environment": kept}
result.write_text(json.dumps(found))
"""
REFERENCE = """
import json, sys
from pathlib import Path
Path(sys.argv[-1]).write_text(json.dumps({"outcome": "finished", "error": "", "steps": [], "seconds": {}}))
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    programs = tmp_path / "engine"
    programs.mkdir()
    for name in ("run", "treetests"):
        (programs / f"{name}.py").write_text(RUN.replace("KIND", name))
    (programs / "reference.py").write_text(REFERENCE)
    (programs / "checkpoint.py").write_text("import sys, pathlib; pathlib.Path(sys.argv[1]).mkdir()")
    monkeypatch.setattr(batch, "HERE", programs)
    monkeypatch.setattr(batch, "_PROBE", PROBE.replace("GPUS", "1"))
    monkeypatch.setenv("VLLM_PORT", "1")
    place = tmp_path / "place"
    trees = {SERIES: "a1", "without pp-empty-kv-group": "b2"}
    for tree in trees.values():
        (place / "trees" / tree).mkdir(parents=True)
    (place / "pack.json").write_text(json.dumps({"release": "v0.33.0", "trees": trees}))
    return place


def run(place: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> tuple[int, dict[str, Any]]:
    results = place.parent / "results.json"
    monkeypatch.setattr(sys, "argv", ["batch", str(place), str(results), *options])
    code = batch.main()
    return code, json.loads(results.read_text()) if results.is_file() else {}


def test_every_scenario_runs_that_there_is_a_tree_for(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, found = run(place, monkeypatch, "--seconds", "26", "--slots", "4")
    assert code == 0
    runs = found["runs"]
    names = {f"a1/{s.name}" for s in SCENARIOS if s.role == SERIES and not s.alone}
    names |= {"a1/reference", "b2/pp-eager"}
    # The one that hangs ends with the time, and no other waits for it but those that must be alone.
    assert set(runs) == names
    assert runs["a1/fp8"]["error"] == "out of time"
    assert runs["a1/int8"]["outcome"] == "failed"
    assert runs["a1/int8"]["causes"] == ["ValueError: no such cache"]
    assert {runs[name]["outcome"] for name in names - {"a1/fp8", "a1/int8"}} == {"finished"}
    assert found["machine"]["gpu"] == "none"


def test_two_stages_share_a_gpu_only_where_there_is_one(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--only", "eager", "pp-uneven", "--slots", "4")
    _, found = run(place, monkeypatch, *options)
    one, two = (found["runs"][f"a1/{name}"]["environment"] for name in ("eager", "pp-uneven"))
    assert two["VLLM_PP_LAYER_PARTITION"] == "6,2"
    assert two["VLLM_SERIES_ENGINE_ONE_GPU"] == two["VLLM_DISABLE_PYNCCL"] == "1"
    assert two["VLLM_SERIES_ENGINE_CAPABILITY"] == "8.6"
    assert "VLLM_SERIES_ENGINE_ONE_GPU" not in one
    assert "VLLM_PORT" not in one
    assert one["PYTHONPATH"].startswith(str(place / "trees" / "a1"))

    monkeypatch.setattr(batch, "_PROBE", PROBE.replace("GPUS", "2"))
    _, found = run(place, monkeypatch, *options)
    one, two = (found["runs"][f"a1/{name}"]["environment"] for name in ("eager", "pp-uneven"))
    assert "VLLM_SERIES_ENGINE_ONE_GPU" not in two
    assert "CUDA_VISIBLE_DEVICES" not in two
    assert one["CUDA_VISIBLE_DEVICES"] == "0"


@pytest.mark.parametrize(("options", "gpus"), [(("--only", "nothing"), "1"), ((), "0")])
def test_nothing_to_run_is_said(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    gpus: str,
) -> None:
    monkeypatch.setattr(batch, "_PROBE", PROBE.replace("GPUS", gpus))
    code, found = run(place, monkeypatch, *options)
    assert (code, found) == (1, {})
    assert "no" in capsys.readouterr().err
