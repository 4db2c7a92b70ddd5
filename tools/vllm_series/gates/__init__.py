# SPDX-License-Identifier: Apache-2.0
"""What vLLM's reviewers ask of a pull request, as pure functions: one module per family.

A gate takes a :class:`~vllm_series.gates.subject.Subject` and yields findings. It reads nothing and runs
nothing; whoever makes the subject does.
"""

from __future__ import annotations

from vllm_series.gates import code, docs, message, policy, proof, size, tests
from vllm_series.gates.subject import Finding, Subject

#: The families, in the order in which a submitter would take them up.
FAMILIES = (
    message.findings,
    size.findings,
    tests.findings,
    docs.findings,
    code.findings,
    proof.findings,
    policy.findings,
)


def examine(subject: Subject) -> tuple[Finding, ...]:
    """Every finding of every gate."""
    return tuple(finding for family in FAMILIES for finding in family(subject))
