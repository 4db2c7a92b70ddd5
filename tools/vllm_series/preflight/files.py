# SPDX-License-Identifier: Apache-2.0
"""Checks of the checkpoint: complete, each shard of the n-gram table once, formats as the config says."""

from __future__ import annotations

import re
from collections import Counter

from vllm_series.output import plural
from vllm_series.preflight.facts import Facts, Finding, Findings
from vllm_series.sizing.checkpoint import Tensor
from vllm_series.sizing.weights import find_lacking

_SHARD = re.compile(r"\.ngram_embedding\.shard_(\d+)\.weight$")
_RENAMED = re.compile(r"\.ngram_embedding\.shards\.\d+\.weight$")
_SERVED = frozenset({"BF16", "F8_E4M3"})


def check_model(facts: Facts) -> Findings:
    """The checkpoint is a folder that can be read."""
    if facts.arguments.model is None:
        yield Finding("model", True, "no model is named", "vllm serve needs one", "vllm serve FOLDER …")
    elif facts.model_problem is not None:
        yield facts.model_problem


def check_complete(facts: Facts) -> Findings:
    """Every file is there and as long as its header says, and every tensor is there once."""
    checkpoint = facts.checkpoint
    if checkpoint is None:
        return
    for names, what, why in (
        (checkpoint.missing, "missing", "its tensors cannot be loaded"),
        (
            checkpoint.cut,
            "shorter than its header says",
            "the download broke off; loading fails in the middle",
        ),
    ):
        if names:
            yield Finding(
                "checkpoint",
                True,
                f"{names[0]} is {what}" + (f", and {len(names) - 1} more" if len(names) > 1 else ""),
                why,
                "download again; hf download resumes where it stopped",
            )
    lacking = find_lacking(facts.weights) if facts.weights and not checkpoint.missing else None
    if lacking:
        yield Finding(
            "checkpoint",
            True,
            f"no file has {lacking}",
            "the download is not whole, and without an index nothing else tells",
            "download again; hf download resumes where it stopped",
        )
    if checkpoint.unindexed:
        yield Finding(
            "checkpoint",
            True,
            f"the index names {checkpoint.unindexed[0]}, and its file has no such tensor",
            "index and files are of different revisions",
            "download the whole checkpoint of one revision",
        )
    twice = [name for name, count in Counter(t.name for t in checkpoint.tensors).items() if count > 1]
    if twice:
        yield Finding(
            "checkpoint",
            True,
            f"{twice[0]} stands in two files" + (f", and {len(twice) - 1} more" if len(twice) > 1 else ""),
            "which of them is loaded depends on the order of the files",
            "remove the file that the index does not name",
        )


def check_table_shards(facts: Facts) -> Findings:
    """The shards of the n-gram table are 0 to N-1, and as long as each other but the last."""
    if facts.model is None or facts.checkpoint is None:
        return
    if not facts.model.kv.ple_layers:
        if facts.weights is not None and facts.weights.table:
            yield _table(
                "the config names no ple_layer_ids", "the files have a table that no layer would read"
            )
        return
    renamed = [t.name for t in facts.checkpoint.tensors if _RENAMED.search(t.name)]
    if renamed:
        yield _table(
            f"{renamed[0]} is named as MLX conversions do", "vLLM knows shard_0.weight, shard_1.weight, …"
        )
        return
    shards = sorted({int(m[1]): t for t in facts.checkpoint.tensors if (m := _SHARD.search(t.name))}.items())
    parts = facts.model.table_parts
    numbers = {number for number, _ in shards}
    missing = sorted(set(range(parts)) - numbers)
    extra = sorted(numbers - set(range(parts)))
    if missing and len(missing) == parts:
        yield _table("the folder has no shard of the n-gram table", "the model cannot run without it")
    elif missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        yield _table(
            f"shard {missing[0]}{more} of {parts} of the n-gram table is missing", "its rows cannot be read"
        )
    if extra:
        yield _table(
            f"shard {extra[0]} of the n-gram table is one too many", f"the config names {parts} shards"
        )
    yield from _shapes([tensor for _, tensor in shards])


def _shapes(shards: list[Tensor]) -> Findings:
    if not shards:
        return
    first = shards[0]
    for tensor in shards[1:]:
        last = tensor is shards[-1]
        if tensor.dtype != first.dtype or tensor.shape[1:] != first.shape[1:]:
            yield _table(
                f"{tensor.name} is {tensor.dtype} {tensor.shape}", "the other shards are of another form"
            )
        elif tensor.shape[0] != first.shape[0] and not (last and tensor.shape[0] < first.shape[0]):
            yield _table(
                f"{tensor.name} has {tensor.shape[0]} rows, and the first shard {first.shape[0]}",
                "a row's place is computed from its number, so rows behind it would be other ones",
            )


def _table(what: str, why: str) -> Finding:
    return Finding("n-gram table", True, what, why, "download the original checkpoint's shards")


def check_table_format(facts: Facts) -> Findings:
    """The config says which format the table has, and FP8 brings its scale."""
    if facts.model is None or facts.weights is None or facts.weights.table_dtype is None:
        return
    dtype, declared = facts.weights.table_dtype, facts.model.table_dtype
    if dtype == "F8_E4M3" and declared != "float8_e4m3fn":
        yield Finding(
            "n-gram table",
            True,
            f"the table is FP8, and ple_embedding_dtype in the config is {declared or 'not set'}",
            "rows would be taken for bf16 without their scale: fluent, wrong text, or a refusal",
            'set "ple_embedding_dtype": "float8_e4m3fn" inside text_config',
        )
    if dtype == "BF16" and declared == "float8_e4m3fn":
        yield Finding(
            "n-gram table",
            True,
            "the table is bf16, and the config says FP8",
            "its rows would be read with half their length",
            "take ple_embedding_dtype out of the config",
        )
    if dtype == "F8_E4M3" and facts.checkpoint is not None:
        scales = [t for t in facts.checkpoint.tensors if t.name.endswith(".ngram_embedding.weight_scale")]
        if not scales:
            yield Finding(
                "n-gram table",
                True,
                "the FP8 table has no weight_scale",
                "its rows cannot be scaled back",
                "download the file that holds it",
            )
    if dtype not in _SERVED and facts.arguments.table_on_disk:
        yield Finding(
            "n-gram table",
            True,
            f"the table is {dtype}, and host_file_gather reads bf16 and FP8 rows",
            "the start is refused after the weights were loaded",
            "leave host_file_gather out for this checkpoint",
        )


def check_quantization(facts: Facts) -> Findings:
    """The flag and the config name the same method, and nothing in it is unsupported."""
    given = facts.arguments.flags.get("--quantization")
    quantization = facts.model.quantization if facts.model else None
    if (
        given
        and facts.model is not None
        and (quantization is None or quantization.method not in (given, "unknown"))
    ):
        method = quantization.method if quantization else "none"
        if not (given.startswith(method) or method.startswith(given)):
            yield Finding(
                "quantization",
                True,
                f"--quantization {given}, and the checkpoint's own method is {method}",
                "vLLM refuses another method than the config's",
                "leave the flag out; vLLM reads the config",
            )
    if quantization is None:
        return
    if quantization.act_order:
        yield Finding(
            "quantization",
            True,
            "the checkpoint was quantized with desc_act and groups",
            "vLLM refuses the experts of such a checkpoint",
            "take one that was quantized with desc_act false",
        )
    if quantization.head:
        yield Finding(
            "quantization",
            True,
            "the checkpoint's LM head is quantized",
            "vLLM builds this model's head without quantization; lm_head.qweight is unexpected",
            "take a checkpoint with lm_head false",
        )
    drafted = (
        facts.arguments.draft_tokens > 0 and facts.weights is not None and not facts.weights.quantized_draft
    )
    if drafted and quantization.method == "gptq" and not quantization.excludes_draft:
        yield Finding(
            "quantization",
            True,
            "a GPTQ body with an unquantized MTP head, and no dynamic rule for it",
            "vLLM takes all experts of a GPTQ checkpoint for quantized, and cannot load the head's",
            'add "dynamic": {"-:.*mtp.*": {}} to quantization_config, or start without --speculative-config',
        )


def check_head(facts: Facts) -> Findings:
    """The MTP head is there if it is to be used."""
    if facts.arguments.draft_tokens and facts.model is not None and facts.weights is not None:
        has = facts.model.kv.draft_layers and facts.weights.draft.on_card(1)
        if not has:
            yield Finding(
                "MTP head",
                True,
                "--speculative-config wants an MTP head, and the checkpoint has none",
                "the draft model cannot be loaded",
                "leave --speculative-config out",
            )


def check_unknown(facts: Facts) -> Findings:
    """Nothing in the files is unknown to vLLM."""
    if facts.weights is not None and facts.weights.unknown:
        names = facts.weights.unknown
        yield Finding(
            "checkpoint",
            False,
            f"{plural(len(names), 'tensor')} of an unknown name, first {names[0]}",
            "vLLM refuses tensors that it cannot place",
            "see whether the checkpoint is for another engine",
        )
