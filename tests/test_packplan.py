# SPDX-License-Identifier: Apache-2.0
"""Which wheels travel to a GPU machine."""

import subprocess
from pathlib import Path

import pytest
from vllm_series import packplan
from vllm_series.errors import EnvironmentFaultError


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Stands in for pip: notes what it is asked for, and finds nothing that is not there."""
    asked: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(packplan.subprocess, "run", run)
    return asked


def test_the_wheels_of_the_list_and_no_others(tmp_path: Path, index: list[list[str]]) -> None:
    names = (
        "vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl",
        "vllm-0.32.0-cp38-abi3-manylinux_2_28_x86_64.whl",
        "lark-1.2.2-py3-none-any.whl",
        "lark-1.0.0-py3-none-any.whl",
        "torch-2.11.0-cp312-cp312-linux_x86_64.whl",
    )
    for name in names:
        (tmp_path / name).touch()
    vllm, others = packplan.wheels(tmp_path, "v0.33.0")
    assert vllm.name == names[0]
    assert [path.name for path in others] == [names[2]]
    assert [command[-1] for command in index] == [str(packplan.REQUIREMENTS), "vllm==0.33.0"]
    assert all("--no-deps" in command for command in index)


def test_a_missing_wheel_of_vllm_is_named(tmp_path: Path, index: list[list[str]]) -> None:
    with pytest.raises(EnvironmentFaultError, match=r"no wheel of vLLM 0\.33\.0"):
        packplan.wheels(tmp_path, "v0.33.0")


def test_what_the_index_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "noise\nERROR: no such thing\n")

    monkeypatch.setattr(packplan.subprocess, "run", run)
    with pytest.raises(EnvironmentFaultError, match="no such thing") as caught:
        packplan.wheels(tmp_path, "v0.33.0")
    assert str(tmp_path) in caught.value.hint


def test_every_requirement_is_pinned() -> None:
    rows = [row for row in packplan.REQUIREMENTS.read_text().splitlines() if not row.startswith("#")]
    assert len(rows) == 40
    assert all(row.count("==") == 1 for row in rows)
