# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the measuring tests; without the packages of the ``bench`` extra they are skipped."""

from __future__ import annotations

import pytest

pytest.importorskip("httpx")
pytest.importorskip("tokenizers")

from bench.bench_support import Behaviour, Faults, fault_proxy, openai_server, write_tokenizer


@pytest.fixture
def tokenizer(tmp_path):
    """The folder of a tokenizer."""
    return write_tokenizer(tmp_path / "model")


@pytest.fixture
def behaviour(tokenizer):
    from tokenizers import Tokenizer

    return Behaviour(Tokenizer.from_file(str(tokenizer / "tokenizer.json")))


@pytest.fixture
def server(behaviour):
    with openai_server(behaviour) as url:
        yield url


@pytest.fixture
def faults():
    return Faults()


@pytest.fixture
def proxy(server, faults):
    with fault_proxy(server, faults) as url:
        yield url
