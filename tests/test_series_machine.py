# SPDX-License-Identifier: Apache-2.0
"""Random verbs, hand-made edits and git commands, in any order, against a simple model of what must hold.

The model knows the bytes of ``series`` and ``patches/`` before and after each operation. After every step:
no verb failed in a way that it does not document; the files are what the model says; every patch is judged.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from rebase_support import CLEAN, NEW, Rebaser, with_release
from series_support import ENGINE, Result, copy_tree, engine_fix, files_of, git
from vllm_series.oplog import recorded
from vllm_series.project import Project

ENGINE_34 = ENGINE.replace("            total_3 += item * 3\n", "            total_3 += 3 * item\n")
RESOLVED = engine_fix(ENGINE)
SIGNATURE = b"-- \n2.39.5\n\n"
EXAMPLES = int(os.environ.get("VLLM_SERIES_EXAMPLES", "3"))
_template: Path | None = None


@pytest.fixture(autouse=True, scope="module")
def template(world, tmp_path_factory):
    """A project and a cache with a release that collides with the first patch."""
    global _template
    _template = tmp_path_factory.mktemp("machine")
    copy_tree(world.project, _template / "project")
    with_release(world.cache, _template / "cache", {"vllm/engine.py": ENGINE_34})
    yield
    _template = None


def without_blobs(patch: bytes) -> list[bytes]:
    return [line for line in patch.splitlines() if not line.startswith(b"index ")]


class SeriesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        assert _template is not None
        self.root = Path(tempfile.mkdtemp(prefix="series-machine-"))
        for name in ("project", "cache"):
            copy_tree(_template / name, self.root / name)
        self.tool = Rebaser(self.root / "project", self.root / "cache")
        self.files = self.state()
        self.done: list[tuple[dict, dict]] = []
        self.undone: list[tuple[dict, dict]] = []
        self.paused = False
        self.count = 0

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    # -- helpers ------------------------------------------------------------------------------------

    def state(self) -> dict:
        found = files_of(self.tool.project / "patches")
        # Folders are no state: git does not know them either.
        files = {path: row for path, row in found.items() if row[0] != "dir"}
        return {**files, "../series": ("file", (self.tool.project / "series").read_bytes())}

    def operation(self) -> None:
        """An operation has been done."""
        after = self.state()
        if after != self.files:
            self.done.append((self.files, after))
            self.undone.clear()
        self.files = after

    def expect(self, result: Result, *codes: int) -> Result:
        assert result.code in codes, result
        return result

    # -- verbs --------------------------------------------------------------------------------------

    @rule()
    def spoil_and_refresh(self) -> None:
        """A file loses its canonical form by hand, and refresh gives it back."""
        path = self.tool.project / "patches/worker-guard.patch"
        if self.paused or not path.exists():
            self.expect(self.tool.run("refresh"), 4 if self.paused else 0)
            return
        raw = path.read_bytes().removesuffix(SIGNATURE)  # An undo may have brought it back.
        path.write_bytes(raw + SIGNATURE)
        self.files = self.state()
        self.expect(self.tool.run("refresh"), 0)
        # What a rebase left alone names the blobs of the release that it was made for.
        assert without_blobs(path.read_bytes()) == without_blobs(raw)
        self.operation()

    @rule(drop=st.booleans())
    def write(self, drop: bool) -> None:
        """What the verbs on single patches do: series and patches change together."""
        if self.paused:
            return
        self.count += 1
        names = Project(self.tool.project).series.names
        with recorded(Project(self.tool.project), "drop", f"number {self.count}") as change:
            change.write("patches/note.txt", b"%d\n" % self.count)
            if drop and names[-1] == "sched-log":
                change.write("series", change.project.series.without("sched-log").render().encode())
                for file in change.project.files:
                    if file.endswith("sched-log.patch"):
                        change.remove(f"patches/{file}")
        self.operation()

    @rule(count=st.integers(1, 3))
    def undo(self, count: int) -> None:
        result = self.tool.run("undo", "-n", str(count))
        self._back(result, self.done, self.undone, count, last=1, first=0)

    @rule(count=st.integers(1, 2))
    def redo(self, count: int) -> None:
        result = self.tool.run("redo", "-n", str(count))
        self._back(result, self.undone, self.done, count, last=0, first=1)

    def _back(self, result: Result, source: list, target: list, count: int, last: int, first: int) -> None:
        if self.paused:
            self.expect(result, 4)
            return
        if count > len(source):
            self.expect(result, 2)
            return
        state = self.files
        for row in reversed(source[len(source) - count :]):
            if row[last] != state:
                # After an edit by hand back to what was before an operation, that operation looks like one
                # that was recorded and, killed, did not happen: it is not there to be undone.
                self.expect(result, *((2, 4) if row[first] == state else (4,)))
                return
            state = row[first]
        self.expect(result, 0)
        for _ in range(count):
            target.append(source.pop())
        self.files = state

    @rule()
    def edit_by_hand(self) -> None:
        self.count += 1
        with (self.tool.project / "patches/status.toml").open("a") as stream:
            stream.write(f"# {self.count}\n")
        self.files = self.state()
        if self.paused:
            self.expect(self.tool("--continue"), 4)
            path = self.tool.project / "patches/status.toml"
            path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
            self.files = self.state()

    # -- the rebase ---------------------------------------------------------------------------------

    @rule()
    def start(self) -> None:
        result = self.tool(NEW)
        if self.paused:
            self.expect(result, 4)
        elif Project(self.tool.project).pinned.ref == NEW:
            self.expect(result, 0)
        else:
            self.expect(result, 3)
            self.paused = True

    @precondition(lambda self: self.paused)
    @rule(how=st.sampled_from(["add", "git", "nothing", "delete", "stray"]))
    def go_on(self, how: str) -> None:
        tree = self.tool.tree
        if how == "delete":
            shutil.rmtree(tree)
            self.expect(self.tool("--continue"), 3)
            return
        if how == "stray":
            (tree / "stray.txt").write_text("x")
            self.expect(self.tool("--continue"), 4)
            (tree / "stray.txt").unlink()
            return
        if how == "nothing":
            self.expect(self.tool("--continue"), 4)
            return
        self.tool.put("vllm/engine.py", RESOLVED)
        if how == "git":
            git(tree, "-c", "core.editor=true", "cherry-pick", "--continue")
        self.expect(self.tool("--continue"), 0)
        self.paused = False
        assert (
            b"-            total_3 += 3 * item"
            in (self.tool.project / "patches/engine-fix.patch").read_bytes()
        )
        self.operation()

    @precondition(lambda self: self.paused)
    @rule()
    def skip(self) -> None:
        """engine-more cannot stand without engine-fix, and is asked about next."""
        self.expect(self.tool("--skip", "first"), 3)
        self.expect(self.tool("--skip", "second"), 0)
        self.paused = False
        assert not (self.tool.project / "patches/engine-fix.patch").exists()
        self.operation()

    @rule()
    def abort(self) -> None:
        self.expect(self.tool("--abort"), 0)
        self.paused = False
        assert self.tool.left() == CLEAN

    # -- what always holds --------------------------------------------------------------------------

    @invariant()
    def files_are_the_models(self) -> None:
        assert self.state() == self.files

    @invariant()
    def every_patch_is_judged(self) -> None:
        result = self.tool.run("status")
        assert result.code == 0, result
        project = Project(self.tool.project)
        for base in result.document["bases"]:
            assert [row["name"] for row in base["patches"]] == list(project.series.names)
        for name in project.series.names:
            assert project.file_for(name, project.bases[-1]), name

    @invariant()
    def nothing_is_left_behind(self) -> None:
        if not self.paused:
            assert self.tool.left() == CLEAN


TestSeriesMachine = SeriesMachine.TestCase
# A step takes a third of a second: making a failing example smaller would take longer than a test may.
TestSeriesMachine.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=12,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
)
