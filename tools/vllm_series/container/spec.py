# SPDX-License-Identifier: Apache-2.0
"""What the person wants to run, checked."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from vllm_series.errors import UsageError

#: Where vLLM's own image has its Python packages.
SITE = "/usr/local/lib/python3.12/dist-packages"
#: What the workers' message queues take of /dev/shm beside an offloaded KV cache, in GiB.
SHM_BESIDE = 1

_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*", re.ASCII)
_RELEASE_TAG = re.compile(r":(v\d+\.\d+\.\d+(?:\.?(?:post|rc)\d+)?)(?![\d.])[^/]*$", re.ASCII)
_CUDA_12 = re.compile(r":[^/]*cu12", re.ASCII)
_SIZE = re.compile(r"\d{1,6}(\.\d+)?", re.ASCII)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@dataclass(frozen=True)
class Container:
    """A container to be started.

    Attributes:
        image: Its image.
        site: The site-packages folder in it.
        gpus: Numbers of the GPUs, empty for all.
        arguments: What ``vllm serve`` gets after the model.
        environment: Environment variables.
        shm: Size of a /dev/shm of its own in GiB; None to share the host's.
        remove_torchcodec: Whether torchcodec is taken out before vLLM starts.

    """

    image: str
    site: str
    gpus: tuple[str, ...]
    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    shm: int | None
    remove_torchcodec: bool

    @property
    def offload(self) -> float:
        """Size of the KV cache in host memory, in GiB."""
        found = option_value(self.arguments, "--kv-offloading-size")
        if found is None:
            return 0.0
        # The start scripts compute with it as well, so it is a plain number.
        if not _SIZE.fullmatch(found):
            raise UsageError(f"--serve: --kv-offloading-size {found} is no number of GiB")
        return float(found)


def make_container(
    image: str,
    *,
    site: str = SITE,
    gpus: str = "all",
    serve: str = "",
    environment: Sequence[str] = (),
    shm: int | None = None,
    remove_torchcodec: bool | None = None,
) -> Container:
    """Check what the command line says.

    Args:
        image: Image with tag.
        site: The site-packages folder in it.
        gpus: ``all``, or numbers separated by commas.
        serve: Arguments of ``vllm serve``, as in a shell.
        environment: Variables as ``NAME=VALUE``.
        shm: Size of a /dev/shm of its own, in GiB.
        remove_torchcodec: None to do it for images with CUDA 12, for which the torchcodec that vLLM
            requires is built against CUDA 13.

    Raises:
        UsageError: Something cannot be understood, or cannot work.

    """
    if not _IMAGE.fullmatch(image):
        raise UsageError(f"{image!r} is no name of an image", hint="such as vllm/vllm-openai:v0.33.0")
    if not site.startswith("/") or "," in site or '"' in site or not site.isprintable():
        raise UsageError(f"{site!r} is no absolute path in a container without commas and quotes")
    numbers = () if gpus == "all" else tuple(gpus.split(","))
    if not all(number.isascii() and number.isdigit() for number in numbers):
        raise UsageError(f"--gpus {gpus}: neither `all` nor numbers such as 0,1,2")
    if len(set(map(int, numbers))) < len(numbers):
        raise UsageError(f"--gpus {gpus} names a card twice")
    try:
        arguments = tuple(shlex.split(serve))
    except ValueError as error:
        raise UsageError(f"--serve {serve!r}: {error}", hint="quote it as for a shell") from None
    _require_json(arguments)
    variables = []
    for row in environment:
        name, equals, value = row.partition("=")
        if not equals or not _NAME.fullmatch(name) or "\n" in value:
            raise UsageError(f"--env {row!r} is not of the form NAME=VALUE")
        variables.append((name, value))
    if remove_torchcodec is None:
        remove_torchcodec = _CUDA_12.search(image) is not None
    made = Container(image, site.rstrip("/"), numbers, arguments, tuple(variables), shm, remove_torchcodec)
    _require_room(made)
    return made


def _require_json(arguments: Sequence[str]) -> None:
    """Raise if the quotes inside a JSON value are gone: a shell takes them unless they are quoted again."""
    for argument in arguments:
        text = argument.partition("=")[2] if argument.startswith("--") else argument
        if text.startswith(("{", "[")):
            try:
                json.loads(text)
            except json.JSONDecodeError:
                example = """--serve "--engram-config '{\\"host_file_gather\\": true}'\""""
                raise UsageError(f"--serve: {text} is no JSON", hint=f"quote it twice: {example}") from None


def _require_room(container: Container) -> None:
    needed = container.offload + SHM_BESIDE
    if container.shm is not None and container.shm < needed:
        raise UsageError(
            f"--shm-size {container.shm} is too small: --kv-offloading-size {container.offload:g} lies in "
            f"/dev/shm, and the workers need {SHM_BESIDE} GiB beside it",
            hint=f"use --shm-size {int(-(-needed // 1))} or leave it out, which shares the host's /dev/shm",
        )


def option_value(arguments: Sequence[str], name: str) -> str | None:
    """The value of the last ``name VALUE`` or ``name=VALUE``, None if it is not there."""
    found = None
    for number, argument in enumerate(arguments):
        if argument == name and number + 1 < len(arguments):
            found = arguments[number + 1]
        elif argument.startswith(f"{name}="):
            found = argument.partition("=")[2]
    return found


def release_of(image: str) -> str | None:
    """The release tag that an image is named after, such as ``v0.33.0`` of ``…:v0.33.0-cu129``."""
    match = _RELEASE_TAG.search(image)
    return match[1] if match else None
