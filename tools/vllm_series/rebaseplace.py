# SPDX-License-Identifier: Apache-2.0
"""The private working tree of a rebase: a linked one of the release store, never a person's own checkout."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vllm_series.checkout import NAME_TRAILER
from vllm_series.errors import PreconditionError
from vllm_series.git import NO_COMMIT, CommitInfo, Repository
from vllm_series.rebasestate import RebaseState
from vllm_series.stack import Application
from vllm_series.store import Store

_MARKERS = re.compile(rb"^(?:<{7}|\|{7}|>{7})(?: .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class RebasePlace:
    """Where a project's rebase happens.

    Attributes:
        store: The release store.
        key: Tells projects apart.

    """

    store: Store
    key: str

    @classmethod
    def of(cls, store: Store, root: Path) -> RebasePlace:
        """The place for the project in ``root``."""
        return cls(store, f"{root.name}-{hashlib.sha256(str(root).encode()).hexdigest()[:8]}")

    @property
    def path(self) -> Path:
        """The working tree."""
        return self.store.folder / "rebase" / self.key

    def keep(self, state: RebaseState) -> None:
        """Name the commits of a rebase, so that git keeps them."""
        refs = ((self._ref("old"), state.old_tip), (self._ref("tip"), state.tip))
        self.store.repository.update_refs([(ref, commit, None) for ref, commit in refs], "vllm-series rebase")

    def _ref(self, name: str) -> str:
        return f"refs/vllm-series/rebase/{self.key}/{name}"

    def clear(self) -> None:
        """Remove the working tree and let the commits go."""
        repository = self.store.repository
        if (repository.git_dir / "HEAD").is_file():
            repository.remove_worktree(self.path)
            refs = [ref for name in ("old", "tip") if repository.find_commit(ref := self._ref(name))]
            if refs:
                repository.update_refs([(ref, NO_COMMIT, None) for ref in refs], "vllm-series rebase")

    def tree(self) -> Repository | None:
        """The working tree as it stands, None if there is none."""
        if not (self.path / ".git").exists():
            return None
        return Repository.open(self.path)

    def ensure(self, commit: str) -> Repository:
        """The working tree; a missing one is made, at the HEAD that git remembers or else at ``commit``."""
        found = self.tree()
        if found is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            head = self.store.repository.git_dir / "worktrees" / self.key / "HEAD"
            text = head.read_text().strip() if head.is_file() else ""
            known = text if re.fullmatch("[0-9a-f]{40}", text) else ""
            start = known if known and self.store.repository.find_commit(known) else commit
            self.store.repository.add_worktree(self.path, start)
            found = Repository.open(self.path)
        return found

    def prepare(self, state: RebaseState, original: CommitInfo, application: Application | None) -> list[str]:
        """Bring the working tree to the paused patch, with its conflicts; returns the paths that have some.

        Args:
            state: The rebase.
            original: The patch's commit on the old base.
            application: What is left of the patch where upstream has the rest; it is committed.

        """
        tree = self.ensure(state.tip)
        tree.reset(state.tip)
        if application is not None:
            for path, file in application.changes.items():
                tree.put_file(path, file.content if file else None, file.mode if file else "")
            tree.commit_index(original.oid, original.author)
            return []
        tree.cherry_pick(original.oid, original.author)
        return tree.unmerged()


def originals(store: Store, state: RebaseState) -> dict[str, CommitInfo]:
    """The commits of the series on the old base, by patch."""
    commits = store.repository.commits_between(state.old_base, state.old_tip)
    return {commit.trailer(NAME_TRAILER) or "": commit for commit in commits}


def stack_of(tree: Repository, state: RebaseState, order: Sequence[str]) -> list[CommitInfo]:
    """The series commits of the working tree, on top of the new base.

    Raises:
        PreconditionError: A person's git commands left something else there.

    """
    where = tree.where
    head = tree.commit("HEAD")
    hint = f"bring it back with: git -C {where} reset --hard {state.tip[:12]}"
    if not tree.is_ancestor(state.new_base, head):
        raise PreconditionError(f"HEAD of {where} is not on top of {state.ref}", hint=hint)
    commits = list(tree.commits_between(state.new_base, head))
    names = []
    for commit in commits:
        name = commit.trailer(NAME_TRAILER)
        if name is None or len(commit.parents) != 1:
            raise PreconditionError(
                f"the commit {commit.oid[:12]} {commit.subject!r} in {where} is of no patch",
                hint="squash it into the commit of its patch, or give it the patch's trailer "
                f"'{NAME_TRAILER}: NAME'",
            )
        names.append(name)
    gone = {row.name for row in state.gone}
    for name in names:
        if name not in order or name in gone:
            what = "was dropped by this rebase" if name in gone else "is no patch of the series"
            raise PreconditionError(f"{where} has a commit of {name}, which {what}", hint=hint)
        if names.count(name) > 1:
            raise PreconditionError(
                f"{where} has {names.count(name)} commits of {name}", hint="squash them into one"
            )
    if [name for name in order if name in names] != names:
        raise PreconditionError(f"{where} has the patches in another order than the series", hint=hint)
    missing = [row.name for row in state.carried if row.name not in names]
    if missing:
        raise PreconditionError(f"{where} has no commit of {missing[0]} any more", hint=hint)
    return commits


def require_resolved(tree: Repository, name: str) -> dict[str, str]:
    """The staged files; refuses what a person has not finished.

    Raises:
        PreconditionError: Unmerged entries, conflict markers, changes that are not staged.

    """
    where = tree.where
    unmerged = tree.unmerged()
    if unmerged:
        raise PreconditionError(
            f"{name}: {unmerged[0]} is not resolved",
            hint=f"edit it, then: git -C {where} add {unmerged[0]} && vllm-series rebase --continue",
            paths=unmerged,
        )
    states = tree.states()
    loose = sorted(path for path, letters in states.items() if letters[1] != " ")
    if loose:
        raise PreconditionError(
            f"{name}: {loose[0]} in {where} is not staged",
            hint=f"take it in with: git -C {where} add -A, or out with git restore or rm",
            paths=loose,
        )
    return states


def require_no_markers(tree: Repository, commit: str, base: str, name: str) -> None:
    """Raise if a commit leaves a conflict marker that ``base`` does not have."""
    paths = tree.changed_paths(base, commit)
    after, before = tree.entries(commit, paths), tree.entries(base, paths)
    contents = tree.objects({e.oid for e in (*after.values(), *before.values()) if e.kind == "blob"})
    for path, entry in after.items():
        old = contents.get(before[path].oid, b"") if path in before else b""
        if len(_MARKERS.findall(contents.get(entry.oid, b""))) > len(_MARKERS.findall(old)):
            raise PreconditionError(
                f"{name}: {path} has conflict markers left",
                hint=f"edit it in {tree.where}, then: git add it and vllm-series rebase --continue",
                paths=[path],
            )
