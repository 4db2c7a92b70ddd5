# SPDX-License-Identifier: Apache-2.0
"""The words behind ``vllm serve``, as far as the checks need them."""

from __future__ import annotations

import json
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


@dataclass(frozen=True)
class ServeArguments:
    """A start as it was written.

    Attributes:
        model: What is served, None if nothing is named.
        flags: The last value of each flag by its long name; empty for a switch.
        nested: Values given as ``--flag.key value``, by flag and key.
        configs: JSON values of the flags that take JSON.

    """

    model: str | None
    flags: Mapping[str, str]
    nested: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def number(self, flag: str, default: int) -> int:
        """An integer flag."""
        return int(self.flags.get(flag) or default)

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
        return int(self.config("--speculative-config").get("num_speculative_tokens") or 0)


#: Flags whose value is JSON.
_JSON = ("--engram-config", "--speculative-config", "--compilation-config", "--attention-config")


def parse_arguments(words: Sequence[str]) -> ServeArguments:
    """Read the words of a command line, with or without ``vllm serve`` before them.

    Raises:
        UsageError: A number is none, or JSON is none.

    """
    rest = list(words)
    if rest[:2] == ["vllm", "serve"]:
        rest = rest[2:]
    model: str | None = None
    flags: dict[str, str] = {}
    nested: dict[str, dict[str, str]] = {}
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or len(word) == 1:
            model = model or word
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
        if dot:
            nested.setdefault(name, {})[key] = value
        else:
            flags[name] = value
    configs = {name: _json(name, flags[name]) for name in _JSON if flags.get(name)}
    found = ServeArguments(flags.get("--model") or model, flags, nested, configs)
    for name in ("--pipeline-parallel-size", "--tensor-parallel-size", "--max-model-len", "--max-num-seqs"):
        value = flags.get(name, "0")
        if not value.isdigit() and name != "--max-model-len":
            raise UsageError(f"{name} {value} is no number")
    return found


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
