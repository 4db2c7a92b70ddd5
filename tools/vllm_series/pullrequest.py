# SPDX-License-Identifier: Apache-2.0
"""The text of a pull request under the headings of vLLM's own template, every sentence from what is recorded.

What only a person can say (that every line was read and can be defended) is left to the person.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_series.export import Branch, assistants
from vllm_series.statusfile import Status
from vllm_series.testtable import Selector
from vllm_series.tiers import RECORDED
from vllm_series.upstreamfacts import Facts

TEMPLATE = ".github/PULL_REQUEST_TEMPLATE.md"
_ISSUE = re.compile(r"https://github\.com/vllm-project/vllm/(?:issues|pull)/(\d+)")
#: Where the base has no template.
_OWN_CHECKLIST = """\
<details>
<summary>Checklist</summary>

- [ ] AI assistance was used during the creation of this PR.
- [ ] I have read every changed line, run the tests and can defend the change.
</details>
"""


@dataclass(frozen=True)
class Request:
    """What the text is made from.

    Attributes:
        branch: The commits.
        base: The base as people call it.
        status: What is known about the patch.
        tiers: What was run on exactly this tree, by tier.
        facts: What was found upstream.
        template: vLLM's template, empty if the base has none.

    """

    branch: Branch
    base: str
    status: Status
    tiers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    facts: Facts = field(default_factory=Facts)
    template: str = ""


def render(request: Request) -> str:
    """The body of the pull request."""
    sections = [
        ("Overview", _overview(request)),
        ("Claims", _claims(request)),
        ("Validation", _validation(request)),
        ("Details", _details(request)),
    ]
    text = "".join(f"## {title}\n\n{_joined(body)}\n\n" for title, body in sections)
    return f"{text}---\n\n{_checklist(request)}"


def _joined(lines: Iterable[str]) -> str:
    """Lines as text, without a second empty one between paragraphs."""
    kept: list[str] = []
    for line in lines:
        if line or (kept and kept[-1]):
            kept.append(line)
    return "\n".join(kept).rstrip()


def reflow(paragraph: str) -> str:
    """A paragraph as one line, since a web page breaks where a mail does; lists and code stay."""
    lines = paragraph.splitlines()
    if any(re.match(r"\s|[-*>#] |\||\d+[.)] ", line) for line in lines):
        return paragraph
    return " ".join(lines)


def prose(request: Request) -> list[str]:
    """The paragraphs of the message, without trailers."""
    patch = request.branch.patch
    paragraphs = patch.body.split("\n\n") if patch.body else []
    if patch.trailers:
        paragraphs = paragraphs[:-1]
    return [reflow(paragraph) for paragraph in paragraphs]


# -- overview and claims -----------------------------------------------------------------------------------


def _overview(request: Request) -> Iterator[str]:
    yield " ".join([f"{_plain_title(request)}.", *_links(request)])


def _links(request: Request) -> Iterator[str]:
    patch, status = request.branch.patch, request.status
    fixed = _numbers(patch.trailer("Fixes"))
    if fixed:
        yield " ".join(f"Fixes #{number}." for number in fixed)
    related = [n for n in (*_numbers(patch.trailer("Bug")), *status.issues, *status.prs) if n not in fixed]
    if related:
        yield "Related: " + ", ".join(f"#{number}" for number in dict.fromkeys(related)) + "."
    needs = request.branch.prerequisites
    if needs:
        subjects = [f"“{a.patch.subject}”" for a in request.branch.applications[:-1]]
        yield (
            f"Stacked on {len(needs)} earlier change{'s' if len(needs) > 1 else ''} ({', '.join(subjects)}): "
            "only the last commit belongs to this one."
        )


def _plain_title(request: Request) -> str:
    return re.sub(r"^(\[[^\]]*\])+ *", "", request.branch.patch.subject).rstrip(".")


def _numbers(urls: Sequence[str]) -> list[int]:
    return [int(match[1]) for url in urls if (match := _ISSUE.search(url))]


def _claims(request: Request) -> Iterator[str]:
    summary = request.status.summary or _plain_title(request)
    yield f"- {summary[:1].upper()}{summary[1:].rstrip('.')}."
    shown = [entry for entry in request.tiers.values() if _control(entry).get("outcome") == "fails"]
    count = sum(_passed(entry) for entry in shown)
    if shown:
        yield f"- {_tests(count)} with the change and {'fails' if count == 1 else 'fail'} without it."
    existing = sum(_passed(_upstream(entry)) for entry in request.tiers.values())
    if existing:
        yield f"- vLLM's tests in the touched files get no worse: {existing} pass."
    if request.tiers.get("static", {}).get("outcome") == "passed":
        worse = " no worse than before" if request.tiers["static"].get("counts", {}).get("failed") else ""
        yield f"- The changed files compile, import{worse}, and are clean under vLLM's ruff configuration."


def _tests(count: int) -> str:
    return "1 test passes" if count == 1 else f"{count} tests pass"


def _control(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    return entry.get("control") or {}


def _upstream(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"counts": (entry.get("upstream") or {}).get("patched") or {}}


def _passed(entry: Mapping[str, Any]) -> int:
    return int((entry.get("counts") or {}).get("passed", 0))


def _summary(counts: Mapping[str, int]) -> str:
    """Counts in the words of pytest's last line."""
    order = ("failed", "passed", "skipped", "error")
    return ", ".join(f"{counts[word]} {word}" for word in order if counts.get(word)) or "nothing was run"


# -- validation --------------------------------------------------------------------------------------------


def _validation(request: Request) -> Iterator[str]:
    if not request.tiers:
        yield "No run is recorded for exactly this change."
    else:
        yield from _runs(request)
    if request.status.measured:
        yield ""
        yield "\n\n".join(map(reflow, request.status.measured.strip().split("\n\n")))
    yield ""
    proven = f"Proven so far on: {request.status.proven}. " if request.status.proven else ""
    yield f"{proven}No model evaluation and no serving benchmark is recorded for this change."


def _runs(request: Request) -> Iterator[str]:
    here = {tier: entry for tier, entry in request.tiers.items() if tier not in RECORDED}
    if here:
        dates = sorted({str(entry.get("date", ""))[:10] for entry in here.values()} - {""})
        alone = "this branch" if request.branch.prerequisites else "the change alone"
        versions = _versions(next(iter(here.values())))
        yield f"Run on {request.base} with {alone}, {' and '.join(dates)}: {versions}."
        yield ""
        yield "No GPU and no network: small local configurations stand in for the models that the tests name."
    for tier, entry in here.items():
        selectors = [Selector(text) for text in entry.get("selectors", ())]
        upstream = [selector for selector in selectors if not selector.project]
        if upstream:
            yield from _red_and_green(request, entry, upstream, whole=len(upstream) == len(selectors))
        elif selectors:
            yield from _elsewhere(tier, entry)
    yield from _touched(request)
    static = request.tiers.get("static")
    if static is not None:
        counts = static.get("counts") or {}
        old = "; what fails does so without the change as well" if counts.get("failed") else ""
        yield ""
        yield (
            "Compile, import, `ruff check` and `ruff format --check` of the changed files under vLLM's "
            f"`pyproject.toml`: {_summary(counts)}{old}."
        )
    for tier, entry in request.tiers.items():
        if tier in RECORDED:
            yield from _elsewhere(tier, entry, _on_which_machine(request, entry))


def _versions(entry: Mapping[str, Any]) -> str:
    """The environment of a run as a list."""
    environment = entry.get("environment") or {}
    names = ("python", "torch", "triton", "transformers", "pytest", "driver")
    words = [f"{name} {environment[name]}" for name in names if environment.get(name)]
    return ", ".join([*words, *([environment["platform"]] if "platform" in environment else [])])


def _on_which_machine(request: Request, entry: Mapping[str, Any]) -> str:
    """Where results come from that were carried here, and what else was in the tree."""
    machine = entry.get("environment") or {}
    count = int(machine.get("gpus") or 1)
    cards = f"a machine with {count} {machine.get('gpu')}" if count > 1 else f"one {machine.get('gpu')}"
    others = set(entry.get("patches") or ()) - {request.branch.name, *request.branch.prerequisites}
    beside = f", with {len(others)} other changes in the tree" if others else ""
    return f" on {cards} ({_versions(entry)}, {str(entry.get('date', ''))[:10]}{beside})"


def _red_and_green(
    request: Request, entry: Mapping[str, Any], selectors: Sequence[Selector], whole: bool
) -> Iterator[str]:
    """The two runs. Counts are those of all selectors, so they are left out if some are not vLLM's."""
    commands = _commands(selectors)
    together = " (all commands)" if len(commands) > 1 else ""
    control = _control(entry)
    yield ""
    yield "With the change:"
    yield ""
    yield from _console(*commands, _summary(entry.get("counts") or {}) + together if whole else "")
    if not control:
        return
    yield ""
    yield "The same tests without it (everything outside `tests/` as on the base):"
    yield ""
    restore = f"$ git restore --source={shlex.quote(request.base)} -- ':(top,exclude)tests'"
    failure = f"FAILED {_one_line(str(control.get('reason', '')))}"
    counts = _summary(control.get("counts") or {}) + together if whole else ""
    yield from _console(restore, *commands, failure, counts)


def _commands(selectors: Sequence[Selector]) -> list[str]:
    """One command for all node ids, and one for each ``-k``, which would hold for every file beside it."""
    nodes = [selector for selector in selectors if not selector.expression]
    groups = [nodes] if nodes else []
    groups += [[selector] for selector in selectors if selector.expression]
    found = []
    for group in groups:
        arguments = [_arguments(selector) for selector in group]
        found.append("$ " + (" " if len(group) == 1 else " \\\n    ").join(["pytest", *arguments]))
    return found


def _console(*lines: str) -> list[str]:
    return ["```console", *(line for line in lines if line), "```"]


def _one_line(text: str) -> str:
    node, found, reason = text.partition(": ")
    return f"{node} - {reason}" if found else text


def _arguments(selector: Selector) -> str:
    if selector.expression:
        return f"{selector.file} -k {shlex.quote(selector.expression)}"
    return shlex.quote(selector.node) if "[" in selector.node else selector.node


def _elsewhere(tier: str, entry: Mapping[str, Any], where: str = "") -> Iterator[str]:
    """Tests that are not vLLM's: said, but a reviewer cannot run them from the branch."""
    control = _control(entry)
    without = f", and without it: {_summary(control.get('counts') or {})}" if control else ""
    kind = {
        "interpret": "the kernels in Triton's interpreter",
        "compile": "the kernels compiled ahead of time",
        "gpu": "the kernels",
        "engine": "a small random model of the same architecture in an engine",
        "pp": "a small random model of the same architecture in an engine with pipeline stages",
    }.get(tier, "further checks")
    yield ""
    yield (
        f"Outside vLLM's own suite, {kind}{where}, with tests that are not part of this branch: "
        f"{_summary(entry.get('counts') or {})}{without}."
    )


def _touched(request: Request) -> Iterator[str]:
    for entry in request.tiers.values():
        upstream = entry.get("upstream")
        if upstream and upstream.get("patched"):
            before = upstream.get("base")
            compared = f"; on the base: {_summary(before)}" if before else ""
            yield ""
            result = _summary(upstream["patched"])
            yield f"vLLM's tests in the touched files, with the change: {result}{compared}."


# -- details and checklist ---------------------------------------------------------------------------------


def _details(request: Request) -> Iterator[str]:
    for paragraph in prose(request):
        yield paragraph
        yield ""
    yield from _open_work(request)
    helped = assistants([application.patch for application in request.branch.applications])
    if helped:
        yield f"**AI assistance:** this change was made with the help of {', '.join(helped)}."
        yield ""


def _open_work(request: Request) -> Iterator[str]:
    status, found = request.status, request.facts.searches.get(request.branch.name)
    if status.prs:
        rows = ", ".join(request.facts.describe_pr(number) for number in status.prs)
        yield f"**Other work on the same ground:** {rows}."
        if status.differs:
            yield f"How this one differs: {status.differs}"
        yield ""
    if found is not None:
        others = [n for n in found.numbers if n not in (*status.prs, status.pr)]
        result = ", ".join(f"#{n}" for n in others) if others else "nothing else"
        queries = " and ".join(f"`{query}`" for query in found.queries)
        yield f"**Duplicate check** ({request.facts.date}): open pull requests for {queries}: {result}."
        yield ""


def _checklist(request: Request) -> str:
    _, found, rest = request.template.partition("\n---\n")
    text = rest.lstrip("\n") if found else _OWN_CHECKLIST
    if assistants([application.patch for application in request.branch.applications]):
        text = re.sub(r"- \[ \] (AI assistance was used)", r"- [x] \1", text)
    return text if text.endswith("\n") else text + "\n"
