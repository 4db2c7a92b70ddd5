# SPDX-License-Identifier: Apache-2.0
"""``SEND.md``: what stands in the way of a pull request, and the exact lines that open it as a draft."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vllm_series.export import branch_of
from vllm_series.gates.subject import Finding

UPSTREAM = "vllm-project/vllm"
_GITHUB = re.compile(r"github\.com[:/]([^/]+)/")
#: Stand for what this machine does not tell.
FORK, OWNER, CLONE = "YOUR-FORK", "YOU", "PATH-TO-YOUR-CLONE"


@dataclass(frozen=True)
class Place:
    """Where the branch is pushed from and to.

    Attributes:
        repository: The repository that has the branch.
        imported: Whether the base is an import of a release archive, without upstream's history.
        remote: Name of the remote to push to.
        owner: Owner of the fork at GitHub.

    """

    repository: Path
    imported: bool = False
    remote: str = FORK
    owner: str = OWNER


def find_place(repository: Path, imported: bool, remotes: Mapping[str, str], wanted: str) -> Place:
    """Where to push to: the remote ``wanted``, else the first that is not upstream's own."""
    forks = [name for name, url in remotes.items() if f"{UPSTREAM.split('/')[0]}/" not in url]
    remote = wanted or next(iter(forks), "")
    match = _GITHUB.search(remotes.get(remote, remote))
    return Place(repository, imported, remote or FORK, match[1] if match else OWNER)


def push_line(name: str, place: Place) -> str:
    """The command that pushes the branch."""
    where = CLONE if place.imported else shlex.quote(str(place.repository))
    return f"git -C {where} push --force-with-lease {shlex.quote(place.remote)} {branch_of(name)}"


def create_line(name: str, title: str, place: Place, body: Path) -> str:
    """The command that opens the pull request as a draft."""
    return (
        f"gh pr create --draft --repo {UPSTREAM} --base main --head {place.owner}:{branch_of(name)} "
        f"--title {shlex.quote(title)} --body-file {shlex.quote(str(body))}"
    )


def render(
    name: str,
    title: str,
    base: str,
    place: Place,
    body: Path,
    findings: Sequence[Finding],
    searches: Sequence[str],
) -> str:
    """The file's text.

    Args:
        name: The patch.
        title: Title of the pull request.
        base: The base commit.
        place: Where the branch is pushed from and to.
        body: The file with the pull request's text.
        findings: What the gates have found.
        searches: Commands of the duplicate check that was not made yet.

    """
    return "\n".join(_lines(name, title, base, place, body, findings, searches)) + "\n"


def _lines(
    name: str,
    title: str,
    base: str,
    place: Place,
    body: Path,
    findings: Sequence[Finding],
    searches: Sequence[str],
) -> Iterator[str]:
    yield f"# Sending {name}"
    yield ""
    if findings:
        yield "**Not to be sent yet:**"
        yield ""
        for finding in findings:
            yield f"- `{finding.code}`: {finding.text}. *Fix:* {finding.fix}"
    else:
        yield "No gate objects. What is left is yours:"
    yield ""
    yield "## Before"
    yield ""
    yield "Read every line, run the tests yourself, and be ready to defend the change:"
    yield ""
    yield "```bash"
    yield f"git -C {shlex.quote(str(place.repository))} log --patch {base[:12]}..{branch_of(name)}"
    yield "```"
    if searches:
        yield ""
        yield "Look for open work on the same ground. If there is any, say in `status.toml` how this one"
        yield "differs, or withdraw it:"
        yield ""
        yield "```bash"
        yield from searches
        yield "```"
    if place.imported:
        yield ""
        yield "This branch stands on an import of the release's archive, which shares no history with vLLM's"
        yield "repository. Make it again in a clone of vLLM with your fork as a remote:"
        yield ""
        yield "```bash"
        yield f"vllm-series export {name} --vllm {CLONE} --onto origin/main"
        yield "```"
    yield ""
    yield "## Send"
    yield ""
    yield "```bash"
    yield push_line(name, place)
    yield create_line(name, title, place, body)
    yield "```"
    yield ""
    yield f'Then note it in `patches/status.toml` under `[{name}]`: `pr = NUMBER` and `state = "open"`.'
