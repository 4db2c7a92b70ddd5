# SPDX-License-Identifier: Apache-2.0
"""Each gate with a patch that violates it and one that does not, and a patch that violates all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from series_support import commit, git, init, message
from vllm_series.evidence import Binding, Evidence
from vllm_series.freshness import Standing, State
from vllm_series.gates import examine
from vllm_series.gates.message import is_person
from vllm_series.gates.subject import Subject
from vllm_series.gates.tests import pipeline_steps
from vllm_series.git import Repository
from vllm_series.refresh import export
from vllm_series.stack import apply_patch
from vllm_series.statusfile import Status
from vllm_series.tree import CommitSource, Snapshot

SPDX = "# SPDX-License-Identifier: Apache-2.0\n"
PIPELINE = "steps:\n- label: Engine\n  commands:\n    - pytest -v -s engine test_top.py\n"
CONFIG = SPDX + 'class Config:\n    old: int = 1\n    """Old. Default 1."""\n'
RELEASE = {
    "vllm/v1/engine.py": SPDX + "def step():\n    return 1\n",
    "vllm/config/cache.py": CONFIG,
    "vllm/envs.py": SPDX,
    "tests/engine/test_step.py": SPDX + "def test_old():\n    assert True\n",
    "docs/page.md": "# Page\n",
}
#: A patch that no gate objects to.
CLEAN = {
    "vllm/v1/engine.py": SPDX + "def step():\n    return 2\n",
    "tests/engine/test_step.py": RELEASE["tests/engine/test_step.py"]
    + "\n\ndef test_step():\n    assert step() == 2\n",
}
TITLE = "[Bugfix][Core] Step by two"
ENTRY = {"outcome": "passed", "patches": ["fix"], "control": {"outcome": "fails"}}


def evidence(**entries: Mapping[str, object]) -> Standing:
    binding = Binding("fix", "aa", "v0.33.0", "c" * 40)
    return Standing(State.FRESH, "", Evidence(binding, entries or {"cpu": ENTRY}))


@pytest.fixture
def make(tmp_path: Path):
    def make(
        files: Mapping[str, str | None] | None = None,
        title: str = TITLE,
        body: str = "Because it is needed.",
        extra: str = "",
        **values: object,
    ) -> Subject:
        root = init(tmp_path / "vllm")
        base = commit(root, "Release", RELEASE)
        commit(root, message("fix", title, extra, body), CLEAN if files is None else files)
        repository = Repository.open(root)
        (patch,) = export(repository, base, "HEAD")
        source = CommitSource(repository, base)
        made = Subject(
            apply_patch(Snapshot(source), patch),
            before={path: _text(source, path) for path in patch.paths},
            pipeline={".buildkite/test_areas/engine.yaml": PIPELINE},
            standing=evidence(),
            base="v0.33.0",
            signer=("Grace Hopper", "grace@example.org"),
        )
        git(root, "checkout", "--quiet", "--detach", base)
        return replace(made, **values)  # type: ignore[arg-type]

    return make


def _text(source: CommitSource, path: str) -> str | None:
    file = source.get(path)
    return file.content.decode() if file else None


def codes(subject: Subject) -> set[str]:
    return {finding.code for finding in examine(subject)}


def test_a_clean_patch_has_none(make):
    assert examine(make()) == ()


def new_test(body: str, head: str = "") -> dict[str, str]:
    text = RELEASE["tests/engine/test_step.py"].replace(SPDX, SPDX + head)
    return {**CLEAN, "tests/engine/test_step.py": f"{text}\n\n{body}"}


def code(text: str, path: str = "vllm/v1/engine.py") -> dict[str, str]:
    return {**CLEAN, path: RELEASE.get(path, SPDX) + text}


BIG = "".join(f"value_{n} = {n}\n" for n in range(600))
FIELD = "    new: bool = False\n"
DOC = '    """New. Default False."""\n'
#: What violates a gate, what is the same and does not: arguments of ``make``.
PAIRS: dict[str, tuple[str, dict, dict]] = {
    "title": ("title", {"title": "Fix it"}, {"title": "[Kernel] Fix it"}),
    "nobody signs": ("dco", {"signer": None}, {}),
    "a machine signs": (
        "dco",
        {"signer": ("root", "root@localhost")},
        {"signer": ("Li", "li@users.noreply.github.com")},
    ),
    "a model signed": (
        "dco",
        {"extra": "Signed-off-by: Claude <noreply@anthropic.com>\n"},
        {"extra": "Co-authored-by: Claude <noreply@anthropic.com>\n"},
    ),
    "a long fix": ("size", {"files": code(BIG[:8000])}, {"files": code(BIG[:2000])}),
    "a long feature is no long fix": ("rfc", {"files": code(BIG)}, {"files": code(BIG[:6000])}),
    "rfc noted": (
        "rfc",
        {"files": code(BIG), "status": Status(note="753 lines: an RFC first.")},
        {"files": code(BIG), "status": Status(note="RFC: #12345")},
    ),
    "kernels need no rfc": (
        "rfc",
        {"files": code(BIG, "vllm/model.py")},
        {"files": code(BIG, "vllm/models/ops/kernel.py")},
    ),
    "tests": ("tests", {"files": {"vllm/v1/engine.py": CLEAN["vllm/v1/engine.py"]}}, {}),
    "pipeline": (
        "pipeline",
        {"files": {**CLEAN, "tests/other/test_new.py": SPDX + "def test_x():\n    pass\n"}},
        {"files": {**CLEAN, "tests/test_top.py": SPDX + "def test_x():\n    pass\n"}},
    ),
    "mock": (
        "mock",
        {"files": new_test("def test_m():\n    MagicMock()\n", "from unittest.mock import MagicMock\n")},
        {"files": new_test("def test_m(monkeypatch):\n    monkeypatch.setenv('A', 'b')\n")},
    ),
    "namespace": (
        "mock",
        {"files": new_test("def test_m():\n    types.SimpleNamespace(a=1)\n")},
        {"files": new_test("def test_m():\n    dict(SimpleNamespace=1)\n")},
    ),
    "private": (
        "private",
        {"files": new_test("def test_p():\n    assert engine._step\n")},
        {"files": new_test("class A:\n    def test_p(self):\n        assert self._own.__dict__\n")},
    ),
    "skip": (
        "skip",
        {"files": new_test("@pytest.mark.xfail\ndef test_s():\n    pass\n")},
        {"files": new_test("@pytest.mark.skipif(NO_GPU, reason='')\ndef test_s():\n    pass\n")},
    ),
    "docs": (
        "docs",
        {"files": code(FIELD + DOC, "vllm/config/cache.py")},
        {"files": {**code(FIELD + DOC, "vllm/config/cache.py"), "docs/page.md": "# Page\n\nNew.\n"}},
    ),
    "an option": (
        "docs",
        {"files": code("p.add_argument('--fast')\n", "vllm/args.py")},
        {"files": code("p.add_argument(name)\n", "vllm/args.py")},
    ),
    "no docstring": (
        "config-field",
        {"files": code(FIELD, "vllm/config/cache.py")},
        {"files": code(FIELD + DOC, "vllm/config/cache.py")},
    ),
    "no default": (
        "config-field",
        {"files": code("    new: bool\n" + DOC, "vllm/config/cache.py")},
        {"files": code("    new = False\n", "vllm/config/cache.py")},
    ),
    "spdx": (
        "spdx",
        {"files": {**CLEAN, "vllm/new.py": "A = 1\n"}},
        {"files": {**CLEAN, "vllm/new.py": SPDX + "A = 1\n"}},
    ),
    "columns": (
        "columns",
        {"files": code(f"A = '{'x' * 84}'\n")},
        {"files": code(f"A = '{'x' * 82}'\n")},
    ),
    "variable": (
        "environment-variable",
        {"files": code("A = os.environ['VLLM_A']\n")},
        {"files": code("A = os.environ['VLLM_A']\n"), "body": "os.environ: it is read before the config."},
    ),
    "variable of vllm": (
        "environment-variable",
        {"files": code("A = envs.VLLM_NEW\n")},
        {"files": code("A = envs.VLLM_NEW\n"), "body": "VLLM_NEW is a variable, since workers inherit it."},
    ),
    "cuda": (
        "torch-cuda",
        {"files": code("torch.cuda.empty_cache()\n")},
        {"files": code("torch.accelerator.empty_cache()\n")},
    ),
    "cuda with a reason": (
        "torch-cuda",
        {"files": code("torch.cuda.empty_cache()\n")},
        {"files": code("torch.cuda.empty_cache()\n"), "body": "torch.cuda: the CPU backend has none."},
    ),
    "synchronization": (
        "synchronization",
        {"files": code("n = lengths.item()\n")},
        {"files": code("n = lengths.item()\n", "vllm/tools.py")},
    ),
    "no evidence": ("evidence", {"standing": Standing(State.NONE)}, {}),
    "stale": ("evidence", {"standing": replace(evidence(), state=State.STALE, reason="it changed")}, {}),
    "failed": ("evidence", {"standing": evidence(cpu={**ENTRY, "outcome": "failed"})}, {}),
    "not alone": (
        "evidence",
        {"standing": evidence(cpu={**ENTRY, "patches": ["first", "fix"]})},
        {
            "standing": evidence(cpu={**ENTRY, "patches": ["first", "fix"]}),
            "prerequisites": {"first": Status(state="merged")},
        },
    ),
    "a GPU run among others": (
        "evidence",
        {"standing": evidence(cpu={**ENTRY, "patches": ["first", "fix"]})},
        {"standing": evidence(cpu=ENTRY, gpu={**ENTRY, "patches": ["first", "fix"]})},
    ),
    "a GPU run and nothing else": (
        "evidence",
        {"standing": evidence(gpu={**ENTRY, "patches": ["first", "fix"]})},
        {"standing": evidence(static=ENTRY, gpu={**ENTRY, "patches": ["first", "fix"]})},
    ),
    "not load-bearing": (
        "load-bearing",
        {"standing": evidence(cpu={**ENTRY, "outcome": "not-load-bearing"})},
        {},
    ),
    "no control": ("load-bearing", {"standing": evidence(static={"outcome": "passed"})}, {}),
    "no test named": ("load-bearing", {"has_tests": False}, {}),
    "hold": ("intent", {"status": Status(intent="hold")}, {"status": Status(intent="upstream")}),
    "never": ("intent", {"status": Status(intent="never")}, {}),
    "duplicate": (
        "duplicate",
        {"status": Status(prs=(1,))},
        {"status": Status(prs=(1,), differs="This one has a test.")},
    ),
    "order": (
        "prerequisite",
        {"prerequisites": {"first": Status()}},
        {
            "prerequisites": {"first": Status(state="merged")},
            "standing": evidence(cpu={**ENTRY, "patches": ["first", "fix"]}),
        },
    ),
    "open at once": (
        "open-limit",
        {"open_requests": (1, 2, 3, 4, 5, 6)},
        {"open_requests": (1, 2, 3, 4, 5)},
    ),
    "one of the open": (
        "open-limit",
        {"open_requests": (1, 2, 3, 4, 5, 6)},
        {"open_requests": (1, 2, 3, 4, 5, 6), "status": Status(pr=6, state="open")},
    ),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_each_gate(make, pair):
    wanted, bad, good = PAIRS[pair]
    found = examine(make(**bad))
    assert wanted in {finding.code for finding in found}
    assert all(finding.text and finding.fix and "\n" not in finding.text for finding in found)
    assert wanted not in codes(make(**good))


def test_the_author_must_be_reachable(make):
    subject = make()
    patch = subject.patch
    nobody = replace(patch, author=replace(patch.author, email="maintainers@project.invalid"))
    assert codes(replace(subject, application=replace(subject.application, patch=nobody))) == {"author"}


def test_a_patch_that_violates_all_gets_all_at_once(make):
    test = (
        "from unittest.mock import Mock\n\n\n@pytest.mark.xfail\ndef test_x():\n    assert Mock()._private\n"
    )
    files = {
        "vllm/v1/engine.py": RELEASE["vllm/v1/engine.py"]
        + BIG
        + f"A = os.environ['A']\ntorch.cuda.empty_cache()\nn = a.item()\nB = '{'x' * 90}'\n",
        "vllm/v1/new.py": "C = 1\n",
        "vllm/config/cache.py": CONFIG + "    new: bool\n",
        "tests/nowhere/test_new.py": SPDX + test,
    }
    subject = make(
        files,
        title="[bugfix]",
        signer=None,
        standing=replace(evidence(), state=State.STALE, reason="it changed"),
        has_tests=False,
        status=Status(intent="never", prs=(1,)),
        prerequisites={"first": Status()},
        open_requests=(1, 2, 3, 4, 5, 6),
    )
    nobody = replace(subject.patch, author=replace(subject.patch.author, email="x@y.invalid"))
    subject = replace(subject, application=replace(subject.application, patch=nobody))
    every = {wanted for wanted, _, _ in PAIRS.values()} | {"author"}
    assert codes(subject) == every - {"tests"}
    # Without a test there is none to object to.
    alone = make({"vllm/v1/engine.py": CLEAN["vllm/v1/engine.py"]})
    assert codes(alone) == {"tests"}


def test_moved_lines_are_not_new(make):
    moved = {"vllm/v1/engine.py": SPDX, "vllm/v1/step.py": RELEASE["vllm/v1/engine.py"] + "A = 1\n"}
    assert [line.text for line in make(moved).added] == [SPDX.strip(), "A = 1"]


def test_a_reworded_line_of_an_old_test_is_not_new(make):
    path = "tests/engine/test_step.py"
    subject = make(new_test("def test_m():\n    SimpleNamespace(a=x)._b = 1\n"))
    old = "def test_m():\n    SimpleNamespace(a=0)._b = 1\n"
    assert codes(subject) == {"mock", "private"}
    assert codes(replace(subject, before={**subject.before, path: old})) == set()
    twice = new_test("def test_m():\n    SimpleNamespace(a=x)\n    SimpleNamespace()\n")
    assert codes(replace(make(twice), before={path: old})) == {"mock"}


def test_line_numbers_are_those_of_the_result(make):
    (line,) = [line for line in make().added if "step() == 2" in line.text]
    text = make().after[line.path]
    assert text is not None
    assert text.splitlines()[line.number - 1] == line.text


@pytest.mark.parametrize(
    ("command", "path", "text", "selected"),
    [
        ("pytest -v engine", "tests/engine/test_a.py", "", True),
        ("pytest -v engine", "tests/engines/test_a.py", "", False),
        ("pytest -v tests/engine/test_a.py::test_b", "tests/engine/test_a.py", "", True),
        ("pytest engine --ignore=engine/test_a.py", "tests/engine/test_a.py", "", False),
        ("A=1 pytest -m 'cpu_test' engine", "tests/engine/test_a.py", "", False),
        (
            "A=1 pytest -m cpu_test engine",
            "tests/engine/test_a.py",
            "pytestmark = pytest.mark.cpu_test",
            True,
        ),
        ("pytest -m 'not cpu_test' engine", "tests/engine/test_a.py", "", True),
        ("pytest -v engine/test_*.py", "tests/engine/test_a.py", "", True),
        ("cd x && pytest engine", "tests/engine/test_a.py", "", True),
        ("pytest -k engine other", "tests/engine/test_a.py", "", False),
    ],
)
def test_what_a_step_selects(command, path, text, selected):
    steps = pipeline_steps({"a.yaml": f"steps:\n- commands:\n  - {command}\n"})
    assert any(step.selects(path, text) for step in steps) is selected


def test_steps_that_are_commented_out_do_not_count():
    assert pipeline_steps({"a.yaml": "#   - pytest engine\n  # - pytest core\n"}) == []
    joined = pipeline_steps({"a.yaml": "  - pytest -v \\\n      engine \\\n      core\n"})
    assert [step.paths for step in joined] == [("tests/engine", "tests/core")]


@pytest.mark.parametrize(
    ("name", "email", "person"),
    [
        ("Ada", "ada@example.org", True),
        ("Ada", "12+ada@users.noreply.github.com", True),
        ("Ada", "ada@box.local", False),
        ("Ada", "ada", False),
        ("", "ada@example.org", False),
        ("dependabot[bot]", "x@github.com", False),
        ("Claude", "noreply@anthropic.com", False),
        ("x", "maintainers@project.invalid", False),
    ],
)
def test_who_is_a_person(name, email, person):
    assert is_person(name, email) is person
