# SPDX-License-Identifier: Apache-2.0
"""What may be asked of a container."""

from __future__ import annotations

import shlex

import pytest
from vllm_series.container.spec import make_container, option_value, release_of
from vllm_series.errors import UsageError

IMAGE = "vllm/vllm-openai:v0.33.0"


@pytest.mark.parametrize(
    ("image", "release"),
    [
        (IMAGE, "v0.33.0"),
        ("vllm/vllm-openai:v0.33.0-cu129", "v0.33.0"),
        ("localhost:5000/vllm:v0.32.0-x86_64", "v0.32.0"),
        ("vllm/vllm-openai:v0.33.0.post1", "v0.33.0.post1"),
        ("vllm/vllm-openai:latest", None),
        ("vllm/vllm-openai", None),
        ("localhost:5000/v0.33.0/vllm", None),
        ("vllm/vllm-openai@sha256:0123", None),
    ],
)
def test_the_release_of_an_image(image, release):
    assert release_of(image) == release


def test_torchcodec_goes_where_cuda_12_is():
    assert make_container(f"{IMAGE}-cu129").remove_torchcodec
    assert not make_container(IMAGE).remove_torchcodec
    assert not make_container(f"{IMAGE}-cu129", remove_torchcodec=False).remove_torchcodec
    assert make_container(IMAGE, remove_torchcodec=True).remove_torchcodec


def test_shared_memory_must_hold_the_offloaded_cache():
    with pytest.raises(UsageError, match="too small") as caught:
        make_container(IMAGE, serve="--kv-offloading-size 63.5", shm=64)
    assert "--shm-size 65" in caught.value.hint
    assert make_container(IMAGE, serve="--kv-offloading-size=63", shm=64).shm == 64
    with pytest.raises(UsageError, match="no number"):
        make_container(IMAGE, serve="--kv-offloading-size lots")


def test_json_among_the_arguments():
    serve = """--engram-config '{"host_file_gather": true}' --limit='{"image": 1}' --stop=[1]"""
    assert make_container(IMAGE, serve=serve).arguments[1] == '{"host_file_gather": true}'
    with pytest.raises(UsageError, match="is no JSON") as caught:
        make_container(IMAGE, serve='--engram-config {"host_file_gather": true}')
    # What the hint says works.
    line = caught.value.hint.partition("--serve ")[2]
    assert make_container(IMAGE, serve=shlex.split(line)[0]).arguments[1] == '{"host_file_gather": true}'


@pytest.mark.parametrize(
    "options",
    [
        {"gpus": "0;1"},
        {"gpus": ""},
        {"gpus": "0,1,0"},
        {"serve": "--kv-offloading-size nan"},
        {"serve": "--kv-offloading-size 1e2"},
        {"serve": "--kv-offloading-size=-1"},
        {"site": "/with\nline"},
        {"serve": "--a 'b"},
        {"serve": '--engram-config {"host_file_gather": true}'},
        {"serve": '--engram-config={"a":true}'},
        {"environment": ["no value"]},
        {"environment": ["A B=c"]},
        {"site": "relative"},
        {"site": "/with,comma"},
    ],
)
def test_what_cannot_be_understood(options):
    with pytest.raises(UsageError):
        make_container(IMAGE, **options)


def test_no_image_name_reaches_a_shell():
    for image in ("a b", "a;reboot", "$(x)", "-it", ""):
        with pytest.raises(UsageError):
            make_container(image)


def test_the_last_value_of_an_option_counts():
    assert option_value(["--a", "1", "--a=2", "--b", "--a"], "--a") == "2"
