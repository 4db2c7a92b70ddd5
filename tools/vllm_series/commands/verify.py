# SPDX-License-Identifier: Apache-2.0
"""``vllm-series verify``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from vllm_series.bases import version_of
from vllm_series.checkout import interrupted, read_stack
from vllm_series.commands.fetch import bring
from vllm_series.errors import EXIT_NO, EXIT_OK, PreconditionError, UsageError
from vllm_series.git import Repository
from vllm_series.installed import Installed, find_installed
from vllm_series.output import Output, plural
from vllm_series.overlay import FOLDER
from vllm_series.places import Checkout, Folder, Package, Place
from vllm_series.plan import Target
from vllm_series.project import Project, find_project
from vllm_series.store import Store
from vllm_series.takeapart import State
from vllm_series.transaction import interrupted as half_done
from vllm_series.verify import Finding, Report
from vllm_series.verify import verify as compare

#: Lines of foreign files that people are shown; the JSON document has them all.
_SHOWN = 20


@dataclass(frozen=True)
class VerifyOptions:
    """The arguments of ``verify``, as documented on the command line."""

    path: Path
    names: tuple[str, ...] | None = None
    onto: str | None = None
    vllm: Path | None = None
    index: str = ""


def verify(out: Output, series_dir: Path | None, options: VerifyOptions) -> int:
    """Compare what lies on disk with a base plus patches."""
    project = find_project(series_dir)
    project.known(options.names)
    path = options.path.absolute()
    if not path.is_dir():
        raise PreconditionError(f"{path} is not a folder", hint="name a checkout of vLLM, or site-packages")
    place, target = _find(out, project, path, options)
    report = compare(project, target, place, options.names)
    _show(out, place, target, report)
    return out.finish(
        EXIT_OK if report.exact else EXIT_NO,
        exact=report.exact,
        path=str(place.root),
        kind=place.kind,
        base={"commit": target.commit, "release": target.release, "files": target.serving.ref},
        patches=[
            {
                "name": f.name,
                "state": f.state,
                "wanted": f.wanted,
                "good": f.good,
                "detail": f.detail,
                "files": [
                    {"path": p.path, "state": p.state, "present": p.present, "hunks": p.hunks}
                    for p in f.parts
                ],
            }
            for f in report.patches
        ],
        foreign=[{"path": f.path, "kind": f.kind, "detail": f.detail} for f in report.foreign],
        stale=[{"path": str(s.path), "reason": s.reason, "loaded": s.loaded} for s in report.stale],
    )


def _find(out: Output, project: Project, path: Path, options: VerifyOptions) -> tuple[Place, Target]:
    """The files, and the base that they are compared with."""
    installed = find_installed(path)
    if installed is not None:
        if half_done(installed.site, FOLDER):
            raise PreconditionError(
                f"an overlay of {installed.site} was interrupted",
                hint=f"let it be cleared up: vllm-series overlay --site-packages {installed.site}",
            )
        target = _base(out, project, options, installed.release or installed.commit, _whence(installed))
        entries = target.repository.all_entries(target.commit)
        return Package(installed.site, installed=installed, base=entries), target
    if (path / ".git").exists():
        repository = Repository.open(path)
        if interrupted(repository):
            raise PreconditionError(
                f"a move of {path} was interrupted",
                hint=f"let the next run clear it up: vllm-series apply --vllm {path}",
            )
        place = Checkout(path, repository=repository)
        if options.onto or options.vllm:
            if options.vllm is None and repository.find_commit(options.onto or "") is not None:
                return place, Target.of(project, repository, repository.commit(options.onto or ""))
            return place, _base(out, project, options, options.onto, f"the checkout {path}")
        return place, Target.of(project, repository, read_stack(repository, repository.commit("HEAD")).base)
    if not (path / "vllm" / "__init__.py").is_file():
        raise UsageError(
            f"{path} holds no vLLM", hint="name the top level of a checkout, site-packages, or an environment"
        )
    return Folder(path), _base(out, project, options, _release_of(path), f"the source tree {path}")


def _whence(installed: Installed) -> str:
    return f"vLLM {installed.version} in {installed.site}"


def _release_of(path: Path) -> str | None:
    """The release of an unpacked source archive."""
    try:
        match = re.search(r"^Version: (\S+)$", (path / "PKG-INFO").read_text(encoding="utf-8"), re.MULTILINE)
    except (OSError, UnicodeDecodeError):
        return None
    return f"v{match[1]}" if match else None


def _base(out: Output, project: Project, options: VerifyOptions, found: str | None, what: str) -> Target:
    ref = options.onto or found
    if ref is None:
        raise UsageError(f"{what} does not say which release it is", hint="name it with --onto v0.33.0")
    if options.vllm is not None:
        repository = Repository.open(options.vllm.absolute())
        return Target.of(project, repository, repository.commit(ref))
    if version_of(ref) is None:
        raise UsageError(
            f"{what} was built from the commit {ref}, which is no release",
            hint=f"name a clone that has it: --vllm PATH --onto {ref}",
        )
    store = Store.default()
    commit = bring(out, project, store, ref, options.index).commit
    return Target.of(project, store.repository, commit)


def _show(out: Output, place: Place, target: Target, report: Report) -> None:
    out.say(f"{place.root}: {place.kind}, compared with vLLM {target.label}")
    out.table(("patch", "state"), [(f.name, _describe(f)) for f in report.patches])
    for foreign in report.foreign[:_SHOWN]:
        out.say(f"{foreign.kind}: {foreign.path}" + (f" ({foreign.detail})" if foreign.detail else ""))
    if len(report.foreign) > _SHOWN:
        out.say(f"and {plural(len(report.foreign) - _SHOWN, 'more file')}; all are in --json")
    for stale in report.stale:
        if stale.loaded:
            out.say(f"stale bytecode: {stale.path} ({stale.reason}); remove it")
    harmless = sum(not stale.loaded for stale in report.stale)
    if harmless:
        out.note(f"{plural(harmless, 'compiled module')} will be compiled anew by the next start")
    if report.exact:
        there = sum(f.state is State.APPLIED for f in report.patches)
        out.say(f"ok: exactly the base plus {plural(there, 'patch')}")
        return
    bad = [f.name for f in report.patches if not f.good]
    parts = [f"{plural(len(bad), 'patch')} not as wanted"] if bad else []
    if report.foreign:
        parts.append(f"{plural(len(report.foreign), 'file')} with foreign changes")
    loaded = sum(stale.loaded for stale in report.stale)
    if loaded:
        parts.append(f"{plural(loaded, 'stale compiled module')}")
    out.say(f"not exact: {', '.join(parts)}")


def _describe(finding: Finding) -> str:
    if finding.state is State.APPLIED and not finding.wanted:
        return "applied, not wanted"
    if finding.state is State.MISSING and not finding.wanted:
        return "not there, not wanted"
    text = str(finding.state)
    if finding.state in (State.PARTLY, State.OBSCURED):
        broken = [p for p in finding.parts if p.state not in (State.APPLIED, State.UNSEEN)]
        words = [
            f"{p.path} {p.present} of {plural(p.hunks, 'hunk')}" if p.state is State.PARTLY
            else f"{p.path} {p.state}"
            for p in broken
        ]  # fmt: skip
        text += ": " + ", ".join(words)
    return f"{text}: {finding.detail}" if finding.detail else text
