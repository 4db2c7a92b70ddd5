# SPDX-License-Identifier: Apache-2.0
"""What vLLM's reviewers ask of a pull request, as pure functions: one module per family.

A gate takes a :class:`~vllm_series.gates.subject.Subject` and yields findings. It reads nothing and runs
nothing; whoever makes the subject does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from vllm_series.gates import code, docs, message, policy, proof, size, tests
from vllm_series.gates.subject import Finding, Subject

#: The families, in the order in which a submitter would take them up.
FAMILIES: Mapping[str, Callable[[Subject], Iterable[Finding]]] = {
    "message": message.findings,
    "size": size.findings,
    "tests": tests.findings,
    "docs": docs.findings,
    "code": code.findings,
    "proof": proof.findings,
    "policy": policy.findings,
}


def by_family(subject: Subject) -> dict[str, tuple[Finding, ...]]:
    """The findings of every family of gates."""
    return {name: tuple(findings(subject)) for name, findings in FAMILIES.items()}


def examine(subject: Subject) -> tuple[Finding, ...]:
    """Every finding of every gate."""
    return tuple(finding for found in by_family(subject).values() for finding in found)
