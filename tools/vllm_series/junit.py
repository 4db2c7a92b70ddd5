# SPDX-License-Identifier: Apache-2.0
"""Results as JUnit XML, which CI systems read."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass

from vllm_series.proof import Judgement
from vllm_series.testreport import Outcome, Test

#: Characters that XML 1.0 cannot hold.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Suite:
    """A patch in a tier on a base: its tests, and the answer as a case of its own."""

    name: str
    judgement: Judgement
    tests: Sequence[Test]
    seconds: float


def render(suites: Sequence[Suite]) -> bytes:
    """The XML document."""
    root = ET.Element("testsuites", name="vllm-series test")
    for suite in suites:
        element = ET.SubElement(root, "testsuite", name=suite.name, time=f"{suite.seconds:.3f}")
        _answer(element, suite)
        for test in suite.tests:
            _case(element, suite.name, test)
        cases = element.findall("testcase")
        for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            element.set(attribute, str(sum(case.find(tag) is not None for case in cases)))
        element.set("tests", str(len(cases)))
    ET.indent(root)
    body: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return body + b"\n"


def _answer(parent: ET.Element, suite: Suite) -> None:
    case = ET.SubElement(parent, "testcase", classname=suite.name, name="proof", time="0")
    verdict = suite.judgement.verdict
    message = clean(f"{verdict.value}: {suite.judgement.reason}")
    if verdict.is_no:
        ET.SubElement(case, "failure", message=message)
    elif verdict.unproven:
        ET.SubElement(case, "skipped", message=message)


def _case(parent: ET.Element, suite: str, test: Test) -> None:
    case = ET.SubElement(
        parent, "testcase", classname=suite, name=clean(test.node), time=f"{test.seconds:.3f}"
    )
    tag = {Outcome.FAILED: "failure", Outcome.ERROR: "error", Outcome.SKIPPED: "skipped"}.get(test.outcome)
    if tag is not None:
        ET.SubElement(case, tag, message=clean(test.reason)).text = clean(test.text)


def clean(text: str) -> str:
    """``text`` without what XML cannot hold."""
    return _FORBIDDEN.sub("\ufffd", text)
