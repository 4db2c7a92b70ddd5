# SPDX-License-Identifier: Apache-2.0
"""The words behind ``vllm serve``, as far as the checks need them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_series.errors import UsageError

#: Short forms that vLLM's parser knows.
_SHORT = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-ep": "--enable-expert-parallel",
    "-q": "--quantization",
    "-sc": "--speculative-config",
    "-cc": "--compilation-config",
    "-ac": "--attention-config",
    "-n": "--nnodes",
    "-r": "--node-rank",
}
#: Flags without a value that could swallow the word behind them.
_SWITCHES = frozenset(
    {
        "--enable-expert-parallel", "--enforce-eager", "--trust-remote-code", "--headless",
        "--enable-prefix-caching", "--enable-chunked-prefill", "--async-scheduling", "--language-model-only",
        "--enable-auto-tool-choice", "--disable-custom-all-reduce", "--skip-tokenizer-init",
    }
)  # fmt: skip
#: Flags that take every word up to the next flag.
_SEVERAL = frozenset(
    {
        "--served-model-name", "--api-key", "--lora-modules", "--lora-target-modules", "--logits-processors",
        "--cudagraph-capture-sizes", "--decoder-replay-cudagraph-capture-sizes", "--numa-bind-nodes",
        "--numa-bind-cpus", "--device-ids", "--cpu-offload-params", "--offload-params", "--ignore-patterns",
        "--kv-cache-dtype-skip-layers", "--allowed-media-domains", "--collect-detailed-traces",
        "--sleep-preserve-parameter-names",
    }
)  # fmt: skip


@dataclass(frozen=True)
class ServeArguments:
    """A start as it was written.

    Attributes:
        model: What is served, None if nothing is named.
        flags: The last value of each flag by its long name; empty for a switch.
        nested: Values given as ``--flag.key value``, by flag and key.
        configs: JSON values of the flags that take JSON.
        surplus: Words that belong to no flag, and are not the model.

    """

    model: str | None
    flags: Mapping[str, str]
    nested: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    surplus: tuple[str, ...] = ()

    def number(self, flag: str, default: int) -> int:
        """A flag that takes an integer."""
        return _integer(flag, self.flags[flag]) if self.flags.get(flag) else default

    def share(self, flag: str, default: float) -> float:
        """A flag that takes a number with a fraction."""
        return _fraction(flag, self.flags[flag]) if self.flags.get(flag) else default

    @property
    def context(self) -> int | None:
        """Tokens per request; None if vLLM is to decide."""
        text = self.flags.get("--max-model-len", "")
        return None if text in ("", "auto", "-1") else _integer("--max-model-len", text)

    def config(self, flag: str) -> dict[str, Any]:
        """A JSON flag, with what was given key by key on top."""
        return {**self.configs.get(flag, {}), **self.nested.get(flag, {})}

    def is_on(self, switch: str) -> bool | None:
        """Whether a switch was set: None if neither it nor its ``--no-`` form was given."""
        if "--no-" + switch.removeprefix("--") in self.flags:
            return False
        return True if switch in self.flags else None

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return self.number("--pipeline-parallel-size", 1)

    @property
    def tensor_parallel(self) -> int:
        """Cards per stage."""
        return self.number("--tensor-parallel-size", 1)

    @property
    def kv_cache_dtype(self) -> str:
        """Format of keys and values."""
        return self.flags.get("--kv-cache-dtype", "auto")

    @property
    def table_on_disk(self) -> bool:
        """Whether the n-gram table stays in the files."""
        return _truth(self.config("--engram-config").get("host_file_gather"))

    @property
    def draft_tokens(self) -> int:
        """Tokens that the MTP head proposes."""
        count = self.config("--speculative-config").get("num_speculative_tokens", 0)
        return _integer("num_speculative_tokens", str(count))


_NUMBER = re.compile(r"(\d+(?:\.\d+)?(?=[kmgt])|\d+)([kKmMgGtT]?)")
_UNITS = {"": 1} | {
    unit: base**power
    for power, letter in enumerate("kmgt", 1)
    for unit, base in ((letter, 1000), (letter.upper(), 1024))
}
_INTEGERS = (
    "--pipeline-parallel-size",
    "--tensor-parallel-size",
    "--data-parallel-size",
    "--max-num-seqs",
    "--max-num-batched-tokens",
    "--nnodes",
)
#: Flags that take a number with a fraction, and the largest that makes sense.
_FRACTIONS = {"--gpu-memory-utilization": 1.0, "--kv-offloading-size": 1e6}
#: Flags whose value is JSON.
_JSON = ("--engram-config", "--speculative-config", "--compilation-config", "--attention-config")


_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.ASCII | re.DOTALL)


def split_variables(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The variables that stand before a command, as ``plan`` prints it, and the command."""
    variables: dict[str, str] = {}
    rest = list(words)
    while rest and (match := _VARIABLE.fullmatch(rest[0])):
        variables[match[1]] = match[2]
        del rest[0]
    return variables, rest


def parse_arguments(words: Sequence[str]) -> ServeArguments:
    """Read the words of a command line, with or without ``vllm serve`` before them.

    Raises:
        UsageError: A number is none, or JSON is none.

    """
    rest = list(words)
    if rest[1:2] == ["serve"] and rest[0].rpartition("/")[2] == "vllm":
        rest = rest[2:]
    places: list[str] = []
    flags: dict[str, str] = {}
    nested: dict[str, dict[str, str]] = {}
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or len(word) == 1:
            places.append(word)
            continue
        if word.startswith("-O") and word[2:3].isdigit():
            flags["-O"] = word[2:]
            continue
        name, given, value = word.partition("=")
        name, dot, key = name.partition(".")
        name = _SHORT.get(
            name, "--" + name.removeprefix("--").replace("_", "-") if name[:2] == "--" else name
        )
        if not given and rest and name not in _SWITCHES and not _is_flag(rest[0]):
            value = rest.pop(0)
            while rest and name in _SEVERAL and not rest[0].startswith("-"):
                rest.pop(0)
        if dot:
            nested.setdefault(name, {})[key] = value
        else:
            flags[name] = value
    configs = {name: _json(name, flags[name]) for name in _JSON if flags.get(name)}
    model = flags.get("--model") or next(iter(places), None)
    found = ServeArguments(model, flags, nested, configs, tuple(places[1:]))
    # A value that is no number is named now, not by the check that first needs it.
    for name in _INTEGERS:
        if found.number(name, 1) < 1:
            raise UsageError(f"{name} {flags[name]} is no number from 1 on")
    for name, most in _FRACTIONS.items():
        if not 0 <= found.share(name, 0) <= most:
            raise UsageError(f"{name} {flags[name]} is no number from 0 to {most:g}")
    context, _ = found.context, found.draft_tokens
    if context == 0:
        raise UsageError("--max-model-len 0 is no number of tokens")
    return found


def _integer(flag: str, text: str) -> int:
    """A number as vLLM reads it: ``2k`` are 2000, ``2K`` are 2048."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise UsageError(f"{flag} {text} is no number")
    return int(float(match[1]) * _UNITS[match[2] or ""])


def _fraction(flag: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{flag} {text} is no number") from None


def _is_flag(word: str) -> bool:
    return word.startswith("--") or word.partition(".")[0].partition("=")[0] in _SHORT


def _json(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{name} {text} is no JSON: {error}", hint="quote it for the shell with '…'"
        ) from None
    if isinstance(value, dict):
        return value
    return {"mode": value}


def _truth(value: object) -> bool:
    return value is True or (isinstance(value, str) and value.lower() == "true")
