# SPDX-License-Identifier: Apache-2.0
"""Finding an installed vLLM."""

from __future__ import annotations

import pytest
from series_support import RELEASE_33, write
from vllm_series.errors import PreconditionError, UsageError
from vllm_series.installed import require_installed
from wheel_support import unpack, wheel


@pytest.fixture
def site(tmp_path):
    return unpack(wheel(tmp_path / "w", "0.33.0", RELEASE_33), tmp_path / "venv/lib/python3.12/site-packages")


def test_by_folder_by_environment_and_by_the_active_one(site, tmp_path, monkeypatch):
    for path in (site, tmp_path / "venv"):
        found = require_installed(path)
        assert (found.site, found.version, found.ref) == (site, "0.33.0", "v0.33.0")
        assert (found.site / found.record_path).is_file()
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "venv"))
    assert require_installed().site == site


def test_a_local_version_is_its_release(site):
    (site / "vllm-0.33.0.dist-info").rename(site / "vllm-0.33.0+cu129.dist-info")
    found = require_installed(site)
    assert (found.version, found.ref) == ("0.33.0+cu129", "v0.33.0")


def test_none_two_and_an_editable_one(site, tmp_path):
    with pytest.raises(UsageError, match="no installed vLLM") as caught:
        require_installed(tmp_path)
    assert "sysconfig" in caught.value.hint
    with pytest.raises(PreconditionError, match="is not a folder"):
        require_installed(tmp_path / "nothing")
    write(site, {"vllm-0.32.0.dist-info/RECORD": ""})
    with pytest.raises(PreconditionError, match="several vLLMs"):
        require_installed(site)
    write(tmp_path / "edit", {"vllm-0.33.0.dist-info/RECORD": ""})
    with pytest.raises(PreconditionError, match="not the package"):
        require_installed(tmp_path / "edit")


def test_other_packages_are_not_taken_for_it(tmp_path):
    write(tmp_path, {"vllm/__init__.py": "", "vllm_flash_attn-1.0.dist-info/RECORD": ""})
    with pytest.raises(UsageError, match="no installed vLLM"):
        require_installed(tmp_path)
