# SPDX-License-Identifier: Apache-2.0
"""Where every patch and every hunk of the series stands on a base.

All patches are judged, also behind one that fails: those that need it are ``blocked``, the others are
tried on the files without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from vllm_series.dependencies import declared, textual
from vllm_series.diff import CorruptPatchError, FileChange, Hunk
from vllm_series.patchfile import Patch, paths_of
from vllm_series.place import place, split_lines
from vllm_series.plan import Target, ancestor_finder, find_present, find_retired
from vllm_series.project import Project
from vllm_series.scope import hunk_scope
from vllm_series.stack import Application, FileResult, apply_patch
from vllm_series.store import Store
from vllm_series.tree import CommitSource, Snapshot


class Verdict(StrEnum):
    """What can be said of a patch on a base."""

    CLEAN = "clean"
    OFFSET = "offset"
    CONTEXT_DRIFT = "context-drift"
    CONFLICT = "conflict"
    UPSTREAM_EXACT = "upstream-exact"
    UPSTREAM_EQUIVALENT = "upstream-equivalent"
    UPSTREAM_PARTIAL = "upstream-partial"
    RETIRED = "retired"
    TARGET_MOVED = "target-moved"
    TARGET_GONE = "target-gone"
    BLOCKED = "blocked"
    CORRUPT = "corrupt"

    @property
    def good(self) -> bool:
        """Whether ``apply`` succeeds with a patch in this state."""
        return self in GOOD


GOOD = frozenset(
    {
        Verdict.CLEAN,
        Verdict.OFFSET,
        Verdict.RETIRED,
        Verdict.UPSTREAM_EXACT,
        Verdict.UPSTREAM_EQUIVALENT,
    }
)


@dataclass(frozen=True)
class HunkVerdict:
    """Where one hunk stands.

    Attributes:
        path: The file.
        number: Position in the file's part of the patch, from 1.
        state: ``clean``, ``offset``, ``merged``, ``present`` (upstream has it) or ``conflict``.
        line: Line of the result where it landed, 0 if it did not.
        offset: Lines between that and what the patch says.
        scope: Enclosing function or class where it landed.
        scope_expected: The same on the base that the patch file is for, None if that is not known.

    """

    path: str
    number: int
    state: str
    line: int = 0
    offset: int = 0
    scope: str = ""
    scope_expected: str | None = None

    @property
    def strayed(self) -> bool:
        """Whether it landed in another function or class than it was made for."""
        return self.line > 0 and self.scope_expected is not None and self.scope != self.scope_expected


@dataclass(frozen=True)
class PatchVerdict:
    """Where one patch stands.

    Attributes:
        name: The patch.
        file: The file that serves this base, None if there is none.
        verdict: The judgement.
        evidence: What it rests on, one line.
        hunks: Per hunk, in the order of the file.
        candidates: Files that the target may have moved to.

    """

    name: str
    file: str | None
    verdict: Verdict
    evidence: str = ""
    hunks: tuple[HunkVerdict, ...] = ()
    candidates: tuple[str, ...] = ()

    @property
    def strayed(self) -> bool:
        """Whether any hunk landed in another function or class."""
        return any(hunk.strayed for hunk in self.hunks)


@dataclass(frozen=True)
class Reference:
    """The series on the base that its files are for.

    Attributes:
        scopes: Enclosing scope by patch, path and hunk number.
        needs: Textual prerequisites by patch.
        blobs: Content by blob id of every intermediate state, for three-way merges.

    """

    scopes: Mapping[tuple[str, str, int], str] = field(default_factory=dict)
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    blobs: Mapping[str, bytes] = field(default_factory=dict)


def _scopes(snapshot: Snapshot, application: Application) -> Iterable[tuple[tuple[str, str, int], str]]:
    for result in application.files:
        for number, (hunk, lines, at) in enumerate(positions(snapshot, result), 1):
            if at is not None:
                yield (
                    (application.patch.name, result.change.path, number),
                    hunk_scope(lines, hunk, at),
                )


def positions(snapshot: Snapshot, result: FileResult) -> Iterable[tuple[Hunk, list[bytes], int | None]]:
    """Per hunk: the file's lines before the patch, and where the hunk begins in them."""
    old = snapshot.get(result.change.old_path) if result.change.old_path else None
    lines = split_lines(old.content) if old else []
    shift = 0
    for hunk, landing in zip(result.change.hunks, result.landings, strict=False):
        yield hunk, lines, (landing.line - 1 - shift if landing else None)
        if landing:
            shift += len(hunk.new) - len(hunk.old)


def read_reference(store: Store, base_ref: str, patches: Sequence[Patch]) -> Reference | None:
    """Apply the series on its own base; None if that release is not in the store."""
    commit = store.find(base_ref)
    if commit is None:
        return None
    base = Snapshot.at(store.repository, commit, paths_of(patches))
    needs = {patch.name: textual(base, patches, patch.name) for patch in patches}
    return replace(reference_of(base, patches), needs=needs)


def reference_of(base: Snapshot, patches: Sequence[Patch]) -> Reference:
    """The series on ``base``, without the prerequisites, which take longer to find than the rest."""
    snapshot = base
    scopes: dict[tuple[str, str, int], str] = {}
    blobs: dict[str, bytes] = {}
    for patch in patches:
        application = apply_patch(snapshot, patch)
        scopes.update(_scopes(snapshot, application))
        for change in patch.changes:
            file = snapshot.get(change.old_path) if change.old_path else None
            if change.old_id and file is not None:
                # A file may state an id that an earlier patch has made obsolete since.
                blobs[change.old_id] = file.content
        if application.ok:
            snapshot = snapshot.with_changes(application.changes)
            blobs.update((f.oid, f.content) for f in application.changes.values() if f is not None)
    return Reference(scopes, {}, blobs)


def judge(project: Project, target: Target, store: Store) -> list[PatchVerdict]:
    """Judge every patch of the series on a commit, in series order."""
    patches: dict[str, Patch] = {}
    verdicts: dict[str, PatchVerdict] = {}
    for name in project.series.names:
        file = project.file_for(name, target.serving)
        try:
            patch = project.patch(name, target.serving)
            if patch is not None and patch.changes:
                patches[name] = patch
        except CorruptPatchError as error:
            verdicts[name] = PatchVerdict(name, file, Verdict.CORRUPT, error.message)
    ordered = list(patches.values())
    base = snapshot = Snapshot.at(target.repository, target.commit, paths_of(ordered))
    reference = read_reference(store, target.serving.ref, ordered) or Reference()
    stated = declared(ordered, project.series.names)
    failed: set[str] = set()
    there: frozenset[str] | None = None
    for name in project.series.names:
        if name in verdicts:
            failed.add(name)
            continue
        if name not in patches:
            gone = find_retired(project, base, name)
            evidence = gone.reason if gone else f"no file of it serves {target.serving.ref}"
            verdicts[name] = PatchVerdict(name, None, Verdict.RETIRED, evidence)
            continue
        tried = apply_patch(snapshot, patches[name])
        if there is None and (not tried.ok or tried.empty):
            there = find_present(base, ordered)
        verdict, application = judge_one(
            project, target, store, base, snapshot, tried, reference, there or frozenset()
        )
        if not verdict.verdict.good:
            cause = [n for n in (*stated[name], *reference.needs.get(name, ())) if n in failed]
            if cause:
                verdict = PatchVerdict(
                    name, verdict.file, Verdict.BLOCKED, f"it needs {cause[0]}", verdict.hunks
                )
            failed.add(name)
        if application is not None and application.ok:
            snapshot = snapshot.with_changes(application.changes)
        verdicts[name] = verdict
    return [verdicts[name] for name in project.series.names]


def judge_one(
    project: Project,
    target: Target,
    store: Store,
    base: Snapshot,
    snapshot: Snapshot,
    application: Application,
    reference: Reference,
    there: frozenset[str],
) -> tuple[PatchVerdict, Application | None]:
    """Judge one patch.

    Args:
        project: The patch directory.
        target: The candidate.
        store: Where ancestors of merges may lie.
        base: The candidate's files.
        snapshot: The same with the patches before this one.
        application: The patch applied to ``snapshot``, without merging.
        reference: The series on its own base.
        there: Patches whose changes the candidate has, see :func:`find_present`; needed only if the
            application failed or changed nothing.

    Returns:
        The verdict, and what the patch comes to, None if that is nothing.

    """
    patch = application.patch
    file = project.file_for(patch.name, target.serving)
    gone = find_retired(project, base, patch.name)
    if gone is not None:
        return PatchVerdict(patch.name, file, Verdict.RETIRED, gone.reason), None
    if application.ok and not application.empty:
        hunks = tuple(hunk_verdicts(snapshot, application, reference))
        verdict = Verdict.OFFSET if application.offset else Verdict.CLEAN
        return PatchVerdict(patch.name, file, verdict, "", hunks), application
    if application.ok or patch.name in there:
        found = _find_upstream(target, patch)
        verdict = Verdict.UPSTREAM_EXACT if found else Verdict.UPSTREAM_EQUIVALENT
        evidence = f"commit {found[:12]} has its patch id" if found else "it can be taken back cleanly"
        hunks = tuple(
            HunkVerdict(change.path, number, "present")
            for change in patch.changes
            for number in range(1, len(change.hunks) + 1)
        )
        return PatchVerdict(patch.name, file, verdict, evidence, hunks), None
    find = ancestor_finder(target.repository, store)
    merged = apply_patch(snapshot, patch, ancestors=lambda oid: reference.blobs.get(oid) or find(oid))
    hunks = tuple(hunk_verdicts(snapshot, merged, reference))
    present = sum(hunk.state == "present" for hunk in hunks)
    if present and merged.ok:
        evidence = f"{present} of {len(hunks)} hunks are there already"
        return PatchVerdict(patch.name, file, Verdict.UPSTREAM_PARTIAL, evidence, hunks), merged
    if merged.ok:
        evidence = "a three-way merge resolves it: " + application.first_problem()
        return PatchVerdict(patch.name, file, Verdict.CONTEXT_DRIFT, evidence, hunks), merged
    return _explain_failure(target, snapshot, patch, file, application, hunks), None


def _explain_failure(
    target: Target,
    snapshot: Snapshot,
    patch: Patch,
    file: str | None,
    application: Application,
    hunks: tuple[HunkVerdict, ...],
) -> PatchVerdict:
    present = sum(hunk.state == "present" for hunk in hunks)
    failing = [hunk for hunk in hunks if hunk.state == "conflict"]
    problem = application.first_problem()
    if present and not failing and not any(r.problem for r in application.files):
        evidence = f"{present} of {len(hunks)} hunks are there already"
        return PatchVerdict(patch.name, file, Verdict.UPSTREAM_PARTIAL, evidence, hunks)
    failed = [result for result in application.files if not result.ok]
    candidates = tuple(sorted(_moved(target, failed)))
    missing = [r for r in application.files if r.problem == "it does not exist"]
    if candidates:
        return PatchVerdict(patch.name, file, Verdict.TARGET_MOVED, problem, hunks, candidates)
    if missing:
        return PatchVerdict(patch.name, file, Verdict.TARGET_GONE, problem, hunks)
    return PatchVerdict(patch.name, file, Verdict.CONFLICT, problem, hunks)


def hunk_verdicts(
    snapshot: Snapshot, application: Application, reference: Reference
) -> Iterable[HunkVerdict]:
    """Where every hunk of an application stands; ``snapshot`` holds the files before it."""
    for result in application.files:
        change = result.change
        placed = list(positions(snapshot, result))
        for number, hunk in enumerate(change.hunks, 1):
            landing = result.landings[number - 1] if number <= len(result.landings) else None
            expected = reference.scopes.get((application.patch.name, change.path, number))
            if landing is None:
                state = _absent_state(snapshot, change, hunk)
                state = "merged" if result.merged and state == "conflict" else state
                yield HunkVerdict(change.path, number, state, scope_expected=expected)
                continue
            _, lines, at = placed[number - 1]
            scope = hunk_scope(lines, hunk, at or 0)
            state = "offset" if landing.offset else "clean"
            yield HunkVerdict(change.path, number, state, landing.line, landing.offset, scope, expected)


def _absent_state(snapshot: Snapshot, change: FileChange, hunk: Hunk) -> str:
    file = snapshot.get(change.new_path or change.old_path)
    if file is None:
        return "conflict"
    _, landings = place(file.content, [hunk.reversed()])
    return "present" if landings[0] is not None else "conflict"


def _moved(target: Target, results: Sequence[FileResult]) -> Iterable[str]:
    """Files of the commit in which every hunk of one of the changes matches."""
    longest = {}
    for number, result in enumerate(results):
        lines = (line.content for h in result.change.hunks for line in h.lines if line.tag != "+")
        text = max(lines, key=len, default=b"").strip()
        if len(text) >= 16:
            longest[number] = text
    if not longest:
        return
    found = target.repository.files_with(target.commit, longest.values())
    source = CommitSource(target.repository, target.commit)
    source.load(found)
    for path in found:
        file = source.get(path)
        for number, text in longest.items():
            change = results[number].change
            if path == change.old_path or file is None or text not in file.content:
                continue
            if None not in place(file.content, change.hunks)[1]:
                yield path
                break


def _find_upstream(target: Target, patch: Patch) -> str | None:
    """The commit since the serving base that has the patch's id, if history is here."""
    if target.repository.is_partial():
        return None  # The texts of history are not here.
    wanted = target.repository.patch_id(patch.raw)
    since = target.repository.find_commit(f"refs/tags/{target.serving.ref}")
    if since is None or since == target.commit or not target.repository.share_history(since, target.commit):
        return None  # An imported release has no past: its one commit is the whole tree.
    ids = target.repository.patch_ids(since, target.commit, sorted(patch.paths))
    return ids.get(wanted)
