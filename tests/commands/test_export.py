# SPDX-License-Identifier: Apache-2.0
"""``vllm-series export``: a branch that stands alone, a folder that a reviewer can read, and nothing sent."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from series_support import clean_env, commit, die_at, files_of, git, message, run_here, sdist

SPDX = "# SPDX-License-Identifier: Apache-2.0\n"
ENGINE = SPDX + "\n\ndef answer():\n    return 41\n\n\ndef other():\n    return 1\n"
FIXED = ENGINE.replace("41", "42")
TESTS = (
    SPDX + "from vllm import engine\n\n\ndef test_number():\n    assert isinstance(engine.answer(), int)\n"
)
OWN = "\n\ndef test_answer():\n    assert engine.answer() == 42\n"
MORE = "\n\ndef test_more():\n    assert engine.answer() == 43\n"
TEMPLATE = (
    "<!-- comment -->\n\n## Overview\n\n---\n\n- [ ] Checked.\n"
    "- [ ] AI assistance was used during the creation of this PR.\n"
)
RELEASE: dict[str, bytes | str] = {
    "README.md": "# vLLM\n",
    "pyproject.toml": '[project]\nname = "vllm"\n\n[tool.ruff.lint]\nselect = ["E", "F"]\n',
    "vllm/__init__.py": "",
    "vllm/engine.py": ENGINE,
    "tests/test_engine.py": TESTS,
    ".buildkite/test_areas/engine.yaml": "steps:\n- commands:\n  - pytest -v -s test_engine.py\n",
    ".github/PULL_REQUEST_TEMPLATE.md": TEMPLATE,
}
FIX = {"vllm/engine.py": FIXED, "tests/test_engine.py": TESTS + OWN}
FURTHER = {"vllm/engine.py": FIXED.replace("42", "43"), "tests/test_engine.py": TESTS + MORE}
BODY = "The answer is wrong for\nevery question.\n\nReturn the right one."
PERSON = ("Maria Maintainer", "maria@example.org")


@dataclass
class Lab:
    """A project on one small release, a home with an identity, and the command on both."""

    root: Path
    messages: dict[str, str] = field(default_factory=dict)

    @property
    def project(self) -> Path:
        return self.root / "project"

    @property
    def store(self) -> Path:
        return self.root / "cache" / "vllm.git"

    @property
    def out(self) -> Path:
        return self.root / "export"

    def who(self, name: str = PERSON[0], email: str = PERSON[1]) -> None:
        home = self.root / "home"
        home.mkdir(exist_ok=True)
        (home / ".gitconfig").write_text(f"[user]\nname = {name}\nemail = {email}\n")

    def series(self, tests: str, status: str = "", /, **patches: Mapping[str, str | None]) -> None:
        """One patch per keyword, ``tests.toml``, and ``status.toml``."""
        from vllm_series.git import Repository
        from vllm_series.refresh import export

        tree = self.root / "tree"
        if not tree.exists():
            git(self.root, "clone", "--quiet", "--branch", "v0.33.0", str(self.store), str(tree))
        git(tree, "checkout", "--quiet", "--detach", "v0.33.0")
        base = git(tree, "rev-parse", "HEAD")
        for name, files in patches.items():
            extra = self.messages.get(name, "")
            text = message(name, f"[Bugfix] Answer {name}", extra, BODY)
            commit(tree, text.replace("Signed-off-by: Ada Lovelace <ada@example.org>\n", ""), files)
        folder = self.project / "patches"
        for old in folder.glob("*.patch"):
            old.unlink()
        for patch in export(Repository(tree / ".git", tree / ".git", tree), base, "HEAD"):
            (folder / f"{patch.name}.patch").write_bytes(patch.raw)
        (self.project / "series").write_text("".join(f"{name}.patch\n" for name in patches))
        (folder / "tests.toml").write_text(tests)
        (folder / "status.toml").write_text(status)

    def __call__(self, *args: str | Path, verb: str = "export", **env: str):
        options = ["--into", self.out] if verb == "export" else []
        return run_here(
            verb,
            *args,
            *options,
            cwd=self.root,
            env={**self.env, **env},
        )

    @property
    def env(self) -> dict[str, str]:
        return {
            "VLLM_SERIES_CACHE": str(self.root / "cache"),
            "VLLM_SERIES_DIR": str(self.project),
            "VLLM_SERIES_INDEX": "http://127.0.0.1:9/simple/",
            "VLLM_SERIES_ENV": sys.prefix,
            "HOME": str(self.root / "home"),
            "XDG_CONFIG_HOME": str(self.root / "home"),
        }

    def text(self, name: str, file: str = "PULL_REQUEST.md") -> str:
        return (self.out / name / file).read_text()


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    from vllm_series import releases
    from vllm_series.store import Store

    made = Lab(tmp_path / "lab")
    (made.project / "patches").mkdir(parents=True)
    store = Store(made.root / "cache")
    store.ensure()
    archive = sdist(tmp_path / "vllm-0.33.0.tar.gz", "0.33.0", RELEASE)
    found = releases.import_archive(store.repository, "v0.33.0", archive)
    (made.project / "patches" / "base.toml").write_text(
        f'[[base]]\nref = "v0.33.0"\nversion = "0.33.0"\ncommit = "{found}"\nsdist_sha256 = "aa"\n'
    )
    made.who()
    return made


TABLE = '[fix]\ncpu = ["tests/test_engine.py::test_answer"]\n'
TWO = TABLE + '[further]\ncpu = ["tests/test_engine.py::test_more"]\n'


def log(repository: Path, form: str, *args: str) -> str:
    return git(repository, "log", f"--format={form}", *args)


# -- the branch --------------------------------------------------------------------------------------------


def test_the_closure_alone_one_commit_per_patch(lab):
    unrelated = {"README.md": "# vLLM\n\nMore.\n"}
    lab.series(TWO, "", other=unrelated, fix=FIX, further=FURTHER)
    result = lab("further", "--no-test", "--json")
    assert result.code == 1  # No evidence.
    assert result.document["patches"][0]["closure"] == ["fix", "further"]
    assert log(lab.store, "%s", "v0.33.0..pr/further").splitlines() == [
        "[Bugfix] Answer further",
        "[Bugfix] Answer fix",
    ]
    assert git(lab.store, "show", "pr/further:README.md") == "# vLLM"
    assert "prerequisite" in {finding["code"] for finding in result.document["patches"][0]["findings"]}


def test_messages_leave_local_trailers_here(lab):
    lab.messages["fix"] = (
        "Fixes: https://github.com/vllm-project/vllm/issues/7\n"
        "Bug: https://github.com/vllm-project/vllm/issues/8\n"
        "Co-authored-by: Grace Hopper <grace@example.org>\n"
        "Assisted-by: Claude\n"
    )
    lab.series(TABLE, "", fix=FIX)
    lab("fix", "--no-test")
    assert log(lab.store, "%B", "-1", "pr/fix").strip() == (
        f"[Bugfix] Answer fix\n\n{BODY}\n\n"
        "Fixes: https://github.com/vllm-project/vllm/issues/7\n"
        "Co-authored-by: Grace Hopper <grace@example.org>\n"
        "Assisted-by: Claude\n"
        "Signed-off-by: Maria Maintainer <maria@example.org>"
    )
    assert log(lab.store, "%an %cn %at %ct", "-1", "pr/fix") == (
        "Ada Lovelace Maria Maintainer 1700000000 1700000000"
    )


def test_the_submitter_can_be_the_author(lab):
    lab.series(TABLE, "", fix=FIX)
    lab("fix", "--no-test", "--reset-author")
    assert log(lab.store, "%an <%ae>", "-1", "pr/fix") == "Maria Maintainer <maria@example.org>"


def test_another_person_signs_with_another_name(lab):
    lab.series(TABLE, "", fix=FIX)
    lab("fix", "--no-test")
    first = git(lab.store, "rev-parse", "pr/fix")
    lab.who("Chen Contributor", "chen@example.org")
    lab("fix", "--no-test")
    assert log(lab.store, "%cn|%an|%(trailers:key=Signed-off-by,valueonly)", "-1", "pr/fix").strip() == (
        "Chen Contributor|Ada Lovelace|Chen Contributor <chen@example.org>"
    )
    lab.who()
    lab("fix", "--no-test")
    assert git(lab.store, "rev-parse", "pr/fix") == first


@pytest.mark.parametrize("email", ["", "root@localhost", "noreply@anthropic.com"])
def test_no_machine_signs(lab, email):
    lab.series(TABLE, "", fix=FIX)
    lab.who("Robot", email)
    result = lab("fix", "--no-test")
    assert result.code == 4
    assert "git config --global user.name" in result.err
    assert not lab.out.exists()
    assert git(lab.store, "branch", "--list") == ""


def test_git_am_of_the_branch_gives_the_same_tree(lab, tmp_path):
    lab.series(TWO, "", fix=FIX, further=FURTHER)
    lab("further", "--no-test")
    mailbox = subprocess.run(
        ["git", "-C", lab.store, "format-patch", "--stdout", "v0.33.0..pr/further"],
        capture_output=True,
        check=True,
        env=clean_env(),
    ).stdout
    fresh = tmp_path / "fresh"
    git(tmp_path, "clone", "--quiet", "--branch", "v0.33.0", str(lab.store), str(fresh))
    git(fresh, "am", "--quiet", data=mailbox)
    assert git(fresh, "rev-parse", "HEAD^{tree}") == git(lab.store, "rev-parse", "pr/further^{tree}")


def test_commits_made_by_hand_are_not_lost(lab, tmp_path):
    lab.series(TABLE, "", fix=FIX)
    lab("fix", "--no-test")
    work = tmp_path / "work"
    git(tmp_path, "clone", "--quiet", "--branch", "pr/fix", str(lab.store), str(work))
    commit(work, "By hand", {"README.md": "mine\n"})
    git(work, "push", "--quiet", "origin", "pr/fix")
    before = files_of(lab.out)
    result = lab("fix", "--no-test")
    assert result.code == 4
    assert "has commits that no export made" in result.err
    assert git(lab.store, "rev-parse", "pr/fix") == git(work, "rev-parse", "HEAD")
    assert files_of(lab.out) == before


# -- the proof ---------------------------------------------------------------------------------------------


def test_a_patch_that_nothing_stands_against(lab):
    lab.messages["fix"] = "Assisted-by: Claude\n"
    facts = (
        'summary = "the answer is right"\nissues = [5]\nproven = "CPU"\nmeasured = "A table.\\n\\n| a |\\n"\n'
    )
    lab.series(TABLE, f"[fix]\n{facts}", fix=FIX)
    result = lab("fix", "--json")
    assert result.code == 0, result
    assert result.document["patches"][0]["findings"] == []
    text = lab.text("fix")
    assert text.startswith("## Overview\n\nAnswer fix. Related: #5.\n\n## Claims")
    assert "\n## Details\n\nThe answer is wrong for every question.\n\nReturn the right one." in text
    assert "A table.\n\n| a |\n\nProven so far on: CPU. No model evaluation" in text
    assert "- The answer is right.\n- 1 test passes with the change and fails without it.\n" in text
    assert "$ pytest tests/test_engine.py::test_answer\n1 passed\n" in text
    assert "$ git restore --source=v0.33.0 -- ':(top,exclude)tests'\n" in text
    assert "FAILED tests/test_engine.py::test_answer - " in text
    assert "41 == 42" in text
    assert "made with the help of Claude" in text
    assert "- [ ] Checked.\n- [x] AI assistance was used" in text
    assert "{" not in text
    assert "No gate objects." in lab.text("fix", "SEND.md")
    found = json.loads(lab.text("fix", "evidence.json"))
    assert found["tiers"]["cpu"]["control"]["outcome"] == "fails"
    assert found["tiers"]["cpu"]["tree"] == found["tree"] == git(lab.store, "rev-parse", "pr/fix^{tree}")


def test_the_red_command_turns_the_test_red(lab, tmp_path):
    lab.series(TABLE, "", fix=FIX)
    lab("fix")
    fresh = tmp_path / "fresh"
    git(tmp_path, "clone", "--quiet", "--branch", "pr/fix", str(lab.store), str(fresh))
    line = next(x for x in lab.text("fix").splitlines() if x.startswith("$ git restore"))
    env = clean_env(PYTHONPATH=str(fresh), PYTHONDONTWRITEBYTECODE="1")
    test = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/test_engine.py::test_answer",
    ]
    assert subprocess.run(test, cwd=fresh, env=env, check=False, capture_output=True).returncode == 0
    subprocess.run(line.removeprefix("$ "), shell=True, cwd=fresh, env=env, check=True)
    assert subprocess.run(test, cwd=fresh, env=env, check=False, capture_output=True).returncode == 1


def test_a_test_that_passes_without_the_patch_is_a_finding(lab):
    lab.series('[fix]\ncpu = ["tests/test_engine.py::test_number"]\n', "", fix=FIX)
    result = lab("fix", "--json")
    assert result.code == 1
    assert {f["code"] for f in result.document["patches"][0]["findings"]} == {"load-bearing"}
    assert "`load-bearing`" in lab.text("fix", "SEND.md")


def test_recorded_evidence_of_the_same_tree_counts(lab):
    lab.series(TABLE, "", fix=FIX)
    assert lab("fix", "--each", "--record", "--tier", "cpu", verb="test").code == 0
    assert lab("fix", "--no-test").code == 0
    # A changed patch has none.
    lab.series(TABLE, "", fix={**FIX, "vllm/engine.py": FIXED.replace("return 1", "return 2")})
    result = lab("fix", "--no-test", "--json")
    assert [f["code"] for f in result.document["patches"][0]["findings"]] == ["evidence"]
    assert "No run is recorded for exactly this change." in lab.text("fix")


def test_evidence_of_another_tree_does_not_count(lab):
    lab.series(TABLE, "", other={"README.md": "# vLLM\n\nMore.\n"}, fix=FIX)
    assert lab("fix", "--record", "--tier", "cpu", verb="test").code == 0
    result = lab("fix", "--no-test", "--json")
    (finding,) = result.document["patches"][0]["findings"]
    assert finding["text"] == "what is recorded was run among other patches or on another base"


# -- the folder --------------------------------------------------------------------------------------------


def test_the_difference_to_the_last_export(lab):
    lab.series(TABLE, "", fix=FIX)
    lab("fix", "--no-test")
    assert not (lab.out / "fix/range-diff.txt").exists()
    lab("fix", "--no-test")
    assert " = " in lab.text("fix", "range-diff.txt").splitlines()[0]
    lab.series(TABLE, "", fix={**FIX, "vllm/engine.py": FIXED.replace("return 1", "return 2")})
    lab("fix", "--no-test")
    text = lab.text("fix", "range-diff.txt")
    assert " ! " in text.splitlines()[0]
    assert "+    return 2" in text


def test_a_text_that_was_edited_is_not_overwritten(lab):
    lab.series(TABLE, "", fix=FIX)
    lab("fix", "--no-test")
    (lab.out / "fix/notes.txt").write_text("mine")
    lab("fix", "--no-test")
    assert lab.text("fix", "notes.txt") == "mine"
    with (lab.out / "fix/PULL_REQUEST.md").open("a") as stream:
        stream.write("By hand.\n")
    before = files_of(lab.out)
    result = lab("fix", "--no-test")
    assert result.code == 4
    assert "was edited by hand" in result.err
    assert files_of(lab.out) == before


def test_a_kill_leaves_the_old_folder_or_the_new_one(lab):
    lab.series(TABLE, "", fix=FIX)
    lab("fix", "--no-test")
    old = files_of(lab.out / "fix")
    tip = git(lab.store, "rev-parse", "pr/fix")
    lab.series(TABLE, "", fix={**FIX, "vllm/engine.py": FIXED.replace("return 1", "return 2")})
    seen = set()
    for number in range(1, 200):
        ended = die_at(
            number, "export", "fix", "--no-test", "--into", lab.out, cwd=lab.root, env=lab.env, after=True
        )
        found = files_of(lab.out / "fix")
        assert found == old or "range-diff.txt" in found
        now = git(lab.store, "rev-parse", "pr/fix")
        assert now == tip or found != old
        seen.add((found == old, now == tip))
        if ended is not None:
            break
    # Old, then the folder, then the branch as well.
    assert seen == {(True, True), (False, True), (False, False)}
    assert ended is not None
    assert ended.code == 1


def test_the_lines_that_send_it(lab, tmp_path):
    lab.series(TABLE, "", fix=FIX)
    document = lab("fix", "--no-test", "--json").document["patches"][0]
    assert document["push"] == "git -C PATH-TO-YOUR-CLONE push --force-with-lease YOUR-FORK pr/fix"
    assert "vllm-series export fix --vllm PATH-TO-YOUR-CLONE --onto origin/main" in lab.text("fix", "SEND.md")
    clone = clone_of_upstream(tmp_path)
    git(clone, "remote", "add", "mine", "git@github.com:maria/vllm.git")
    document = lab("fix", "--no-test", "--vllm", clone, "--json").document["patches"][0]
    assert document["push"] == f"git -C {clone} push --force-with-lease mine pr/fix"
    assert document["create"] == (
        "gh pr create --draft --repo vllm-project/vllm --base main --head maria:pr/fix "
        f"--title '[Bugfix] Answer fix' --body-file {lab.out}/fix/PULL_REQUEST.md"
    )
    text = lab.text("fix", "SEND.md")
    assert document["push"] in text
    assert document["create"] in text
    assert "YOUR" not in text


def test_every_patch_at_once_and_what_is_not_needed(lab):
    lab.series(
        TABLE,
        '[fix]\nretire = { path = "vllm/engine.py", pattern = "def other" }\n',
        fix=FIX,
        more=MORE_ALONE,
    )
    result = lab("--no-test")
    assert result.code == 1
    assert result.out.splitlines()[1].split(None, 1) == ["fix", "not needed  v0.33.0 has it"]
    assert sorted(path.name for path in lab.out.iterdir()) == ["more"]


MORE_ALONE = {"README.md": "# vLLM\n\nMore.\n"}


# -- the user's own clone, and pushing ----------------------------------------------------------------------


def clone_of_upstream(tmp_path: Path) -> Path:
    """A clone whose origin has work after the release."""
    upstream = tmp_path / "vllm-project" / "vllm"
    upstream.mkdir(parents=True)
    git(upstream, "init", "--quiet", "--initial-branch=main")
    commit(upstream, "Release", RELEASE)
    git(upstream, "tag", "v0.33.0")
    commit(upstream, "Work", {"NEWS.md": "News.\n"})
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(upstream), str(clone))
    return clone


def test_a_clone_takes_the_branch_on_its_newest_upstream(lab, tmp_path):
    lab.series(TABLE, "", fix=FIX)
    clone = clone_of_upstream(tmp_path)
    head = git(clone, "rev-parse", "HEAD")
    result = lab("fix", "--vllm", clone, "--json")
    assert result.code == 0, result
    assert git(clone, "rev-parse", "pr/fix^") == git(clone, "rev-parse", "origin/main")
    assert git(clone, "status", "--porcelain") == ""
    assert git(clone, "rev-parse", "HEAD") == head
    assert result.document["base"]["ref"] == "origin/main"


def test_an_import_is_not_ready_and_cannot_be_pushed(lab):
    lab.series(TABLE, "", fix=FIX)
    result = lab("fix", "--push", "origin")
    assert result.code == 4, result
    assert "shares no history with vLLM" in result.err
    assert git(lab.store, "branch", "--list", "pr/*") == ""
    result = lab("fix")
    assert result.code == 0, result
    assert result.out.endswith("ready to be sent: 0, since v0.33.0 came from the package index\n")


def test_push_is_explicit_and_has_a_lease(lab, tmp_path):
    lab.series(TABLE, "", fix=FIX)
    clone = clone_of_upstream(tmp_path)
    fork = tmp_path / "fork.git"
    git(tmp_path, "init", "--quiet", "--bare", str(fork))
    git(clone, "remote", "add", "fork", str(fork))
    lab("fix", "--vllm", clone)
    assert git(fork, "branch", "--list") == ""
    result = lab("fix", "--vllm", clone, "--push", "fork", "--json")
    assert result.document["patches"][0]["pushed"] is True
    assert git(fork, "rev-parse", "pr/fix") == git(clone, "rev-parse", "pr/fix")
    # Somebody else pushes there; a changed patch must not run over it.
    other = tmp_path / "other"
    git(tmp_path, "clone", "--quiet", "--branch", "pr/fix", str(fork), str(other))
    theirs = commit(other, "Theirs", {"README.md": "theirs\n"})
    git(other, "push", "--quiet", "origin", "pr/fix")
    lab.series(TABLE, "", fix={**FIX, "vllm/engine.py": FIXED.replace("return 1", "return 2")})
    result = lab("fix", "--vllm", clone, "--push", "fork")
    assert result.code == 4
    assert "pr/fix was not pushed to fork" in result.err
    assert git(fork, "rev-parse", "pr/fix") == theirs


def test_nothing_is_pushed_that_a_gate_objects_to(lab, tmp_path):
    lab.series(TABLE, '[fix]\nintent = "hold"\n', fix=FIX)
    clone = clone_of_upstream(tmp_path)
    fork = tmp_path / "fork.git"
    git(tmp_path, "init", "--quiet", "--bare", str(fork))
    git(clone, "remote", "add", "fork", str(fork))
    result = lab("fix", "--vllm", clone, "--push", "fork", "--json")
    assert result.code == 1
    assert result.document["patches"][0]["pushed"] is False
    assert "pr/fix was not pushed: intent" in result.document["warnings"]
    assert git(fork, "branch", "--list") == ""


def test_a_branch_that_is_checked_out_is_left_alone(lab, tmp_path):
    lab.series(TABLE, "", fix=FIX)
    clone = clone_of_upstream(tmp_path)
    lab("fix", "--vllm", clone, "--no-test")
    git(clone, "switch", "--quiet", "pr/fix")
    result = lab("fix", "--vllm", clone, "--no-test")
    assert result.code == 4
    assert "is checked out in" in result.err


# -- the gates alone ---------------------------------------------------------------------------------------


def test_check_writes_nothing(lab):
    lab.series(TWO, '[fix]\nintent = "hold"\n', fix=FIX, further=FURTHER)
    before = files_of(lab.root, skip=(".git", "home"))
    result = lab("--check")
    assert result.code == 1
    assert result.out.splitlines()[0].split() == [
        "patch", "message", "size", "tests", "docs", "code", "proof", "policy",
    ]  # fmt: skip
    assert "fix: [intent] its intent is hold" in result.out
    assert files_of(lab.root, skip=(".git", "home")) == before
    document = lab("further", "--check", "--json").document
    assert [row["name"] for row in document["patches"]] == ["further"]


def test_check_without_findings(lab):
    lab.series(TABLE, "", fix=FIX)
    assert lab("fix", "--each", "--record", "--tier", "cpu", verb="test").code == 0
    result = lab("--check")
    assert result.code == 0
    assert result.out.endswith("1 patch looked at; ready to be sent: 1\n")


def test_the_hint_names_only_options_that_the_verb_has(lab, tmp_path):
    lab.series(TABLE, "", fix=FIX)
    path = lab.project / "patches/fix.patch"
    path.write_text(path.read_text().replace("41", "40"))
    for verb in ("export", "test", "apply"):
        result = lab("fix", verb=verb)
        assert result.code == 3, result
        assert "fix does not apply to v0.33.0" in result.out + result.err
        assert "see where it stands: vllm-series status --onto v0.33.0\n" in result.err
        assert ("--3way" in result.err) == (verb == "apply")
    clone = clone_of_upstream(tmp_path)
    result = lab("fix", "--vllm", clone)
    assert (
        f"vllm-series status --vllm {clone} --onto {git(clone, 'rev-parse', 'origin/main')[:12]}"
        in result.err
    )


@pytest.mark.parametrize(
    ("args", "code", "what"),
    [
        (("nobody",), 2, "the series has no patch nobody"),
        (("--check", "--push", "x"), 2, "--check looks only"),
        (("fix", "--vllm", "."), 4, "is not a git repository"),
    ],
)
def test_bad_arguments(lab, args, code, what):
    lab.series(TABLE, "", fix=FIX)
    result = lab(*args)
    assert result.code == code
    assert what in result.err
