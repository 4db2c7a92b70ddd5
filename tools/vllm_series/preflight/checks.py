# SPDX-License-Identifier: Apache-2.0
"""All checks, in the order in which people would look."""

from __future__ import annotations

from collections.abc import Callable

from vllm_series.preflight import engine, files, flags, machine, settings
from vllm_series.preflight.facts import Facts, Finding, Findings

CHECKS: tuple[Callable[[Facts], Findings], ...] = (
    machine.check_driver,
    machine.check_cards,
    machine.check_card_memory,
    machine.check_host_memory,
    machine.check_shared_memory,
    machine.check_disk,
    machine.check_containers,
    files.check_model,
    files.check_complete,
    files.check_table_shards,
    files.check_table_format,
    files.check_quantization,
    files.check_head,
    files.check_unknown,
    settings.check_partition,
    settings.check_variables,
    settings.check_compilation,
    settings.check_batched_tokens,
    settings.check_scheduling,
    settings.check_table_settings,
    settings.check_kv_cache,
    settings.check_context,
    settings.check_speculation,
    settings.check_parallelism,
    settings.check_config_file,
    flags.check_words,
    flags.check_flags,
    engine.check_shadow,
    engine.check_engine,
    engine.check_patches,
    engine.check_fit,
)


def examine(facts: Facts) -> list[Finding]:
    """Every finding of every check."""
    return [finding for check in CHECKS for finding in check(facts)]
