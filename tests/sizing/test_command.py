# SPDX-License-Identifier: Apache-2.0
"""The start that a plan gives, and what the docs say of it."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import flash_next
import pytest
from vllm_series.preflight.arguments import parse_arguments
from vllm_series.sizing.advice import refusal
from vllm_series.sizing.cards import parse_cards
from vllm_series.sizing.checkpoint import read_checkpoint
from vllm_series.sizing.command import start
from vllm_series.sizing.host import TablePlace
from vllm_series.sizing.kvcache import KvDtype
from vllm_series.sizing.layout import Request, choose_layout
from vllm_series.sizing.model import read_model
from vllm_series.sizing.weights import sort_weights

DOCS = Path(__file__).parents[2] / "docs"
BOXES = ("3x24", "4x24", "5x24", "6x24", "8x24", "3x32", "4x32", "2x48")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    found = {}
    for form in ("gptq", "mixed"):
        folder = flash_next.write_checkpoint(tmp_path_factory.mktemp("command") / form, form)
        model = read_model(folder)
        found[form] = (model, sort_weights(read_checkpoint(folder).tensors, model.layers))
    return found


def made(models, form, gpus, place=TablePlace.DISK, **values):
    model, weights = models[form]
    layout = choose_layout(model, weights, Request(parse_cards(gpus), **values))
    return start(model, weights, layout, Path("/path/to/my checkpoint"), place), layout


def test_a_shell_reads_the_text_as_the_words(models):
    command, _ = made(models, "gptq", "6x24", draft_tokens=2)
    script = f'vllm() {{ printf "%s\\n" "$VLLM_PP_LAYER_PARTITION" vllm "$@"; }}\n{command.text()}'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [command.environment[0].value, *command.words()]
    assert "/path/to/my checkpoint" in command.words()


def test_doctor_reads_what_plan_writes(models):
    command, layout = made(models, "mixed", "8x24", tensor_parallel=2, draft_tokens=3, kv=KvDtype.FP8)
    found = parse_arguments(command.words())
    assert (found.stages, found.tensor_parallel, found.draft_tokens) == (4, 2, 3)
    assert found.kv_cache_dtype == layout.request.kv.argument
    assert found.table_on_disk
    assert "--enable-expert-parallel" in found.flags


def test_every_setting_is_explained_in_the_docs(models):
    """And the docs explain none that is never given."""
    starts = [
        made(models, "gptq", "6x24")[0],
        made(models, "mixed", "4x24", TablePlace.MEMORY, tensor_parallel=2, draft_tokens=1, vision=False)[0],
        made(models, "gptq", "6x24", prefix_caching=False, kv=KvDtype.BF16)[0],
    ]
    given = {setting.name for command in starts for setting in (*command.environment, *command.flags)}
    table = (DOCS / "serving.md").read_text().partition("| setting | why | effect |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)) == given


def test_the_command_in_the_docs(models):
    command, _ = made(models, "gptq", "6x24")
    text = (DOCS / "serving.md").read_text()
    assert replace(command, model=Path("/path/to/checkpoint")).text() in text


@pytest.mark.parametrize("gpus", BOXES)
def test_table_of_boxes_in_the_docs(models, gpus):
    (row,) = [
        line for line in (DOCS / "hardware.md").read_text().splitlines() if line.startswith(f"| {gpus} |")
    ]
    cells = [cell.strip() for cell in row.strip("|").split("|")[1:]]
    for cell, (form, kv) in zip(
        cells, [(form, kv) for form in ("gptq", "mixed") for kv in (KvDtype.INT8, KvDtype.BF16)], strict=True
    ):
        _, layout = made(models, form, gpus, kv=kv, tensor_parallel=1)
        if layout.fits:
            assert cell == f"{layout.tokens / 1000:.0f}, {layout.contexts}"
            continue
        error = refusal(*models[form], layout)
        if cell.startswith("contexts up to "):
            longest = cell.removeprefix("contexts up to ").replace(" ", "")
            assert f"--context {longest} fits" in error.details["remedies"]
        else:
            assert cell.startswith("no")
            lacks = re.search(r"(\d+\.\d+) GiB", cell)
            assert (
                lacks is None or f"{float(lacks[1]):.1f}" == f"{error.details['missing_bytes'] / 2**30:.1f}"
            )
