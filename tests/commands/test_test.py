# SPDX-License-Identifier: Apache-2.0
"""``vllm-series test`` on a small vLLM, in the interpreter that runs these tests."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from series_support import clean_env, commit, digest, git, message, run_here, sdist

ENGINE = "# SPDX-License-Identifier: Apache-2.0\n\n\ndef answer():\n    return 41\n"
FIXED = ENGINE.replace("41", "42")
TESTS = (
    "# SPDX-License-Identifier: Apache-2.0\nfrom vllm import engine\n\n\n"
    "def test_number():\n    assert isinstance(engine.answer(), int)\n\n\n"
    "def test_odd_or_fixed():\n    assert engine.answer() in (41, 42)\n"
)
OWN = "\n\ndef test_answer():\n    assert engine.answer() == 42\n"
OTHER = "def test_other():\n    assert vllm.other.other() == 7\n"
RELEASE: dict[str, bytes | str] = {
    "README.md": "# vLLM\n",
    "pyproject.toml": '[project]\nname = "vllm"\n\n[tool.ruff.lint]\nselect = ["E", "F"]\n',
    "vllm/__init__.py": "",
    "vllm/engine.py": ENGINE,
    "vllm/other.py": "def other():\n    return 1\n",
    "tests/test_engine.py": TESTS,
    "tests/test_other.py": "import vllm.other\n\n\n" + OTHER,
}
TABLE = '[fix]\ncpu = ["tests/test_engine.py::test_answer"]\n'


@dataclass
class Lab:
    """A project whose series can be set, a cache with one release, and the command on both."""

    root: Path

    @property
    def project(self) -> Path:
        return self.root / "project"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    def series(self, table: str, /, **patches: Mapping[str, str | None]) -> None:
        """Make one patch per keyword from changed files, and ``tests.toml``."""
        from vllm_series.git import Repository
        from vllm_series.refresh import export

        tree = self.root / "tree"
        if not tree.exists():
            git(self.root, "clone", "--quiet", "--branch", "v0.33.0", str(self.cache / "vllm.git"), str(tree))
        git(tree, "checkout", "--quiet", "--detach", "v0.33.0")
        base = git(tree, "rev-parse", "HEAD")
        for name, files in patches.items():
            files = dict(files)
            needs = files.pop("needs", None)
            commit(tree, message(name, "[Bugfix] Do it", f"Depends-on: {needs}\n" if needs else ""), files)
        for old in (self.project / "patches").glob("*.patch"):
            old.unlink()
        for patch in export(Repository(tree / ".git", tree / ".git", tree), base, "HEAD"):
            (self.project / "patches" / f"{patch.name}.patch").write_bytes(patch.raw)
        (self.project / "series").write_text("".join(f"{name}.patch\n" for name in patches))
        (self.project / "patches" / "tests.toml").write_text(table)

    def __call__(self, *args: str | Path, **env: str):
        """Run ``vllm-series test`` in this process."""
        return run_here(
            "test",
            *args,
            cwd=self.root,
            env={
                "VLLM_SERIES_CACHE": str(self.cache),
                "VLLM_SERIES_DIR": str(self.project),
                "VLLM_SERIES_INDEX": "http://127.0.0.1:9/simple/",
                "VLLM_SERIES_ENV": sys.prefix,
                **env,
            },
        )

    def cpu(self, *args: str | Path, **env: str):
        """Run the CPU tier; returns the result and the document of the first patch's proof."""
        result = self("--tier", "cpu", "--json", *args, **env)
        assert result.code in (0, 1, 6), result
        return result, result.document["patches"][0]["tiers"][0]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    from vllm_series import releases
    from vllm_series.store import Store

    made = Lab(tmp_path / "lab")
    (made.project / "patches").mkdir(parents=True)
    store = Store(made.cache)
    store.ensure()
    archive = sdist(tmp_path / "vllm-0.33.0.tar.gz", "0.33.0", RELEASE)
    found = releases.import_archive(store.repository, "v0.33.0", archive)
    (made.project / "patches" / "base.toml").write_text(
        f'[[base]]\nref = "v0.33.0"\nversion = "0.33.0"\ncommit = "{found}"\n'
        f'sdist_sha256 = "{digest(archive)}"\n'
    )
    return made


GOOD = {"vllm/engine.py": FIXED, "tests/test_engine.py": TESTS + OWN}


def own_test(body: str, imports: str = "") -> dict[str, str]:
    """The good patch with a test of its own in a file of its own."""
    text = f"# SPDX-License-Identifier: Apache-2.0\n{imports}\n\ndef test_answer():\n{body}"
    return {"vllm/engine.py": FIXED, "tests/test_own.py": text}


OWN_TABLE = '[fix]\ncpu = ["tests/test_own.py::test_answer"]\n'


# -- proven ------------------------------------------------------------------------------------------------


def test_a_good_patch_is_proven(lab):
    lab.series(TABLE, fix=GOOD)
    result = lab("--json")
    assert result.code == 0, result
    row = result.document["patches"][0]
    proofs = {proof["tier"]: proof for proof in row["tiers"]}
    assert proofs["static"]["outcome"] == proofs["cpu"]["outcome"] == "passed"
    assert proofs["interpret"]["outcome"] == proofs["compile"]["outcome"] == "no-tests"
    cpu = proofs["cpu"]
    assert cpu["patched"]["counts"] == {"passed": 1}
    assert cpu["control"]["outcome"] == "fails"
    assert "assert 41 == 42" in cpu["control"]["reason"]
    assert cpu["upstream"]["patched"]["counts"] == {"passed": 3}
    assert len(set(row["trees"].values())) == 3


def test_people_get_a_table(lab):
    lab.series(TABLE, fix=GOOD)
    result = lab("--tier", "static", "--tier", "cpu")
    assert result.code == 0
    head, row, last = result.out.splitlines()
    assert head.split("  ")[0] == "patch"
    assert row.startswith("fix    passed 7/7")
    assert "fails: test_answer: " in row
    assert last == "ok: 1 patch proven on v0.33.0"


def test_a_second_run_runs_nothing(lab, monkeypatch):
    lab.series(TABLE, fix=GOOD)
    assert lab("--tier", "static", "--tier", "cpu").code == 0
    from vllm_series import runner

    def never(*_: object, **__: object) -> None:
        raise AssertionError("it ran")

    monkeypatch.setattr(runner, "supervise", never)
    result = lab("--tier", "static", "--tier", "cpu", "--json")
    assert result.code == 0, result
    assert [proof["remembered"] for proof in result.document["patches"][0]["tiers"]] == [True, True]


@pytest.mark.parametrize("how", ["patch", "fresh"])
def test_what_changed_is_run_again(lab, how):
    lab.series(TABLE, fix=GOOD)
    assert lab("--tier", "cpu").code == 0
    if how == "patch":
        lab.series(TABLE, fix={**GOOD, "vllm/engine.py": FIXED + "# More.\n"})
    _, proof = lab.cpu(*(["--fresh"] if how == "fresh" else []))
    assert proof["remembered"] is False


def test_a_bad_answer_is_run_again(lab):
    lab.series(TABLE, fix={**GOOD, "vllm/engine.py": ENGINE.replace("41", "43")})
    assert lab("--tier", "cpu").code == 1
    assert lab.cpu()[1]["remembered"] is False


def test_a_new_name_that_the_control_cannot_import_is_a_good_control(lab):
    imports = "from vllm.engine import question\n"
    files = own_test("    assert question() == 42\n", imports)
    files["vllm/engine.py"] = FIXED + "\n\ndef question():\n    return 42\n"
    lab.series(OWN_TABLE, fix=files)
    result, proof = lab.cpu()
    assert result.code == 0, result
    assert "cannot import name 'question'" in proof["control"]["reason"]


def test_an_expression_selects_within_a_file(lab):
    table = '[fix]\ncpu = ["tests/test_engine.py::-k answer and not odd"]\n'
    lab.series(table, fix=GOOD)
    result, proof = lab.cpu()
    assert result.code == 0, result
    assert [test["node"] for test in proof["patched"]["tests"]] == ["tests/test_engine.py::test_answer"]


def test_a_test_of_this_project_finds_the_tree(lab):
    (lab.project / "tests" / "kernels").mkdir(parents=True)
    (lab.project / "tests" / "kernels" / "test_k.py").write_text(
        "import os, pathlib, vllm.engine\n\ndef test_k():\n"
        "    assert pathlib.Path(vllm.engine.__file__).parents[1] == pathlib.Path(os.environ['VLLM_TREE'])\n"
        "    assert os.environ['TRITON_INTERPRET'] == '1'\n"
        "    assert vllm.engine.answer() == 42\n"
    )
    lab.series('[fix]\ninterpret = ["project:tests/kernels/test_k.py"]\n', fix=GOOD)
    result = lab("--tier", "interpret", "--json")
    assert result.code == 0, result
    # A changed test of this project is run again.
    with (lab.project / "tests" / "kernels" / "test_k.py").open("a") as stream:
        stream.write("\n\ndef test_more():\n    assert vllm.engine.answer() == 42\n")
    again = lab("--tier", "interpret", "--json").document["patches"][0]["tiers"][0]
    assert (again["remembered"], again["patched"]["counts"]) == (False, {"passed": 2})


def test_the_run_has_model_configurations_and_a_version(lab):
    body = (
        "    import importlib.metadata, pathlib\n"
        "    assert pathlib.Path('Qwen/Qwen3-0.6B/config.json').is_file()\n"
        "    assert importlib.metadata.version('vllm') == '0.33.0'\n"
        "    assert engine.answer() == 42\n"
    )
    lab.series(OWN_TABLE, fix=own_test(body, "from vllm import engine\n"))
    result, _ = lab.cpu()
    assert result.code == 0, result


# -- not proven --------------------------------------------------------------------------------------------


def test_a_patch_whose_test_passes_without_it_is_caught(lab):
    lab.series('[fix]\ncpu = ["tests/test_engine.py::test_number"]\n', fix=GOOD)
    result, proof = lab.cpu()
    assert result.code == 1
    assert proof["outcome"] == "not-load-bearing"
    assert "not-load-bearing" in result.err


def test_a_failing_test_is_shown(lab):
    lab.series(TABLE, fix={**GOOD, "vllm/engine.py": ENGINE.replace("41", "43")})
    result, proof = lab.cpu()
    assert (result.code, proof["outcome"]) == (1, "failed")
    assert "assert 43 == 42" in result.err


def test_a_test_that_only_skips_is_no_pass(lab):
    body = "    pytest.skip('no GPU')\n"
    lab.series(OWN_TABLE, fix=own_test(body, "import pytest\n"))
    result, proof = lab.cpu()
    assert (result.code, proof["outcome"]) == (6, "skipped")
    assert "no GPU" in proof["reason"]


def test_a_control_that_skips_is_no_control(lab):
    body = (
        "    if engine.answer() == 41:\n        pytest.skip('not on this vLLM')\n    assert engine.answer()\n"
    )
    lab.series(OWN_TABLE, fix=own_test(body, "import pytest\n\nfrom vllm import engine\n"))
    result, proof = lab.cpu()
    assert (result.code, proof["outcome"]) == (6, "skipped")


def test_a_test_of_vllm_that_gets_worse_is_caught(lab):
    worse = FIXED.replace("return 42", "return 42.0")
    lab.series(TABLE, fix={**GOOD, "vllm/engine.py": worse})
    result, proof = lab.cpu()
    assert (result.code, proof["outcome"]) == (1, "newly-failing")
    assert "test_number" in proof["reason"]
    assert proof["upstream"]["base"]["counts"] == {"passed": 2}


def test_a_test_of_vllm_that_passes_in_a_second_try_is_named(lab):
    flag = lab.root / "flag"
    tests = TESTS.replace(
        "    assert isinstance(engine.answer(), int)\n",
        "    import pathlib\n\n"
        f"    flag = pathlib.Path({str(flag)!r})\n"
        "    first = not flag.exists()\n    flag.touch()\n    assert not first, 'too slow'\n",
    )
    lab.series(TABLE, fix={"vllm/engine.py": FIXED, "tests/test_engine.py": tests + OWN})
    result, proof = lab.cpu()
    assert (result.code, proof["outcome"]) == (0, "passed"), result
    assert "test_number failed first and passed in a second try: AssertionError: too slow" in result.err
    assert lab.cpu()[1]["remembered"] is True


def test_a_test_of_vllm_that_fails_before_and_after_is_no_new_one(lab):
    own = {"vllm/engine.py": FIXED, "tests/test_other.py": "import vllm.other\n\n\n" + OTHER + "# Touched.\n"}
    own["tests/test_engine.py"] = TESTS + OWN
    lab.series(TABLE, fix=own)
    result, proof = lab.cpu()
    assert (result.code, proof["outcome"]) == (0, "passed"), result
    assert proof["upstream"]["base"]["counts"] == {"failed": 1}  # Of that file alone.
    assert lab.cpu()[1]["remembered"] is True


def test_a_new_test_of_vllm_that_fails_is_new(lab):
    tests = TESTS + "\n\ndef test_broken():\n    assert engine.nothing\n"
    lab.series(
        TABLE + '\n[before]\ncpu = ["tests/test_new.py"]\n',
        before={
            "tests/test_engine.py": tests,
            "tests/test_new.py": "import vllm.new\n\n\ndef test_new():\n    assert vllm.new\n",
            "vllm/new.py": "",
        },
        fix={"vllm/engine.py": FIXED, "tests/test_engine.py": tests + OWN},
    )
    result = lab("--tier", "cpu", "--json", "before")
    assert result.document["patches"][0]["tiers"][0]["outcome"] == "newly-failing"


def test_a_control_that_lacks_a_package_proves_nothing(lab):
    imports = "import no_such_package\n\nfrom vllm import engine\n"
    lab.series(OWN_TABLE, fix=own_test("    assert engine.answer() == 42\n", imports))
    result, proof = lab.cpu()
    assert result.code == 1
    assert "no_such_package" in proof["reason"]
    assert proof["control"]["outcome"] == "invalid"


@pytest.mark.parametrize("where", ["here", "child", "loaded"])
def test_a_test_that_imports_another_vllm_is_caught(lab, where):
    other = lab.root / "other" / "vllm"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("")
    (other / "engine.py").write_text(FIXED)
    path = str(other.parent)
    imports = {
        "here": f"import sys\n\nsys.path.insert(0, {path!r})\nimport vllm.engine  # noqa\n",
        "child": "import subprocess, sys\n",
        "loaded": "import importlib.util\nimport sys\n",
    }[where]
    body = {
        "here": "    assert vllm.engine.answer() == 42\n",
        "child": f"    code = 'import sys; sys.path.insert(0, {path!r}); import vllm'\n".replace(
            "'/", '"/'
        ).replace("other')", 'other")')
        + "    subprocess.run([sys.executable, '-c', code])\n",
        "loaded": "    spec = importlib.util.spec_from_file_location('vllm', "
        f"{path + '/vllm/__init__.py'!r})\n"
        "    sys.modules['vllm'] = importlib.util.module_from_spec(spec)\n",
    }[where]
    lab.series(OWN_TABLE, fix=own_test(body, imports))
    result, proof = lab.cpu()
    assert (result.code, proof["outcome"]) == (1, "failed"), result
    assert path in proof["patched"]["foreign"][0]
    assert path in result.err


def test_a_test_that_hangs_is_ended_and_named(lab):
    lab.series(OWN_TABLE, fix=own_test("    time.sleep(300)\n", "import time\n"))
    result, proof = lab.cpu("--time-limit", "0.5")
    assert (result.code, proof["outcome"]) == (1, "failed")
    assert "time limit: the test of tests/test_own.py::test_answer took longer than 0.5 s" in proof["reason"]


def test_a_test_that_is_deaf_to_its_alarm_is_ended_from_outside(lab, monkeypatch):
    from vllm_series import runner

    monkeypatch.setattr(runner, "_GRACE", 1.0)
    imports = "import signal\nimport time\n"
    body = "    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])\n    time.sleep(300)\n"
    lab.series(OWN_TABLE, fix=own_test(body, imports))
    result, proof = lab.cpu("--time-limit", "0.5")
    assert (result.code, proof["outcome"]) == (1, "failed")
    assert "tests/test_own.py::test_answer took longer than 0.5 s and did not answer" in proof["reason"]


def test_processes_that_a_test_leaves_are_ended_and_named(lab):
    body = (
        "    subprocess.Popen(['sleep', '321'], start_new_session=True)\n    assert engine.answer() == 42\n"
    )
    lab.series(OWN_TABLE, fix=own_test(body, "import subprocess\n\nfrom vllm import engine\n"))
    result, proof = lab.cpu()
    assert result.code == 0
    assert "(sleep 321) of tests/test_own.py::test_answer" in proof["patched"]["leftovers"][0]
    assert "left behind and ended" in result.err
    running = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert b"sleep\x00321\x00" not in running


def test_a_test_that_kills_pytest_is_named(lab):
    lab.series(OWN_TABLE, fix=own_test("    os._exit(0)\n", "import os\n"))
    result, proof = lab.cpu()
    assert (result.code, proof["outcome"]) == (1, "failed")
    assert "tests/test_own.py::test_answer: pytest died" in proof["reason"]


# -- static ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("def broken(:\n", "compile vllm/other.py"),
        ("import vllm.nothing\n\nvllm.nothing.f()\n", "import vllm.other: ModuleNotFoundError"),
        ("undefined_name()\n", "import vllm.other: NameError"),
        ("def f():\n    return undefined_name\n", "F821"),
        ("x = [1,2]\n", "ruff format vllm/other.py"),
    ],
)
def test_static_findings(lab, content, said):
    lab.series("", fix={"vllm/other.py": content})
    result = lab("--tier", "static", "--json")
    assert result.code == 1, result
    proof = result.document["patches"][0]["tiers"][0]
    assert proof["outcome"] == "failed"
    assert any(said in f"{t['node']}: {t['reason']}" for t in proof["patched"]["tests"]), proof


def test_static_findings_of_the_base_are_not_the_patchs(lab):
    before = "import vllm.nothing\nx = [1,2]\n"
    lab.series("", before={"vllm/other.py": before}, fix={"vllm/other.py": before + "y = 1\n"})
    assert lab("--tier", "static", "before").code == 1
    release = git(lab.cache / "vllm.git", "rev-parse", "v0.33.0")
    assert release  # `fix` is judged against the base, where the file was clean.
    assert lab("--tier", "static", "fix").code == 1


def test_modules_that_exclude_each_other_pass(lab):
    """As the NVIDIA and the AMD form of a model do, which register the same operators."""
    form = """import sys

if "taken" in sys.modules:
    raise RuntimeError("registered twice")
sys.modules["taken"] = sys
"""
    lab.series("", fix={"vllm/amd.py": form, "vllm/nvidia.py": form, "vllm/other.py": "x = 1\n"})
    result = lab("--tier", "static", "--json")
    assert result.code == 0, result


def test_a_patch_without_python_passes(lab):
    lab.series("", fix={"README.md": "# vLLM!\n"})
    assert lab("--tier", "static").code == 0


# -- what stands in which tree -----------------------------------------------------------------------------

CHAIN_TABLE = TABLE + '\n[more]\ncpu = ["tests/test_more.py"]\n\n[last]\ncpu = ["tests/test_last.py"]\n'
CHAIN = {
    "fix": GOOD,
    "more": {
        "vllm/engine.py": FIXED.replace("return 42\n", "return 42\n\n\ndef more():\n    return 1\n"),
        "tests/test_more.py": "from vllm.engine import more\n\n\ndef test_more():\n    assert more() == 1\n",
    },
    "last": {
        "vllm/other.py": "def other():\n    return 2\n",
        "tests/test_last.py": "from vllm.other import other\n\n\ndef test_last():\n    assert other() == 2\n",
    },
}


@pytest.mark.parametrize(
    ("flags", "patches"),
    [
        ([], {"fix": 3, "more": 3, "last": 3}),
        (["--each"], {"fix": 1, "more": 2, "last": 1}),
        (["--prefix"], {"fix": 1, "more": 2, "last": 3}),
    ],
)
def test_what_surrounds_a_patch(lab, flags, patches):
    lab.series(CHAIN_TABLE, **CHAIN)
    result = lab("--tier", "cpu", "--json", *flags)
    assert result.code == 0, result
    rows = {row["name"]: row for row in result.document["patches"]}
    assert {name: len(row["patches"]) for name, row in rows.items()} == patches
    assert list(rows["more"]["prerequisites"]) == ["fix"]
    assert ("the control of fix also lacks more" in result.err) is (not flags)


def test_a_prerequisite_that_git_cannot_see(lab):
    chain = {**CHAIN, "last": {**CHAIN["last"], "needs": "fix"}}
    lab.series(CHAIN_TABLE, **chain)
    result = lab("--tier", "cpu", "--each", "--json", "last")
    assert result.document["patches"][0]["patches"] == ["fix", "last"]


def test_a_patch_that_does_not_apply_is_a_conflict(lab):
    lab.series(TABLE, fix=GOOD)
    path = lab.project / "patches" / "fix.patch"
    path.write_bytes(path.read_bytes().replace(b"-    return 41", b"-    return 40"))
    assert lab("--tier", "cpu").code == 3


def test_a_base_that_does_not_need_the_patch(lab):
    lab.series(TABLE, fix=GOOD)
    (lab.project / "patches" / "status.toml").write_text(
        '[fix]\nretire = { path = "vllm/engine.py", pattern = "return 41" }\n'
    )
    result, proof = lab.cpu()
    assert (result.code, proof["outcome"]) == (0, "not-needed")


# -- several runs at a time --------------------------------------------------------------------------------

MEET = """# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import time

from vllm import {module}


def test_meet():
    assert {module}.{function}() == {value}
    seen = pathlib.Path({seen!r})
    place = f"{{os.getpid()}} {{os.getsid(0)}} {{os.getcwd()}} {{os.environ['TMPDIR']}}"
    (seen / "{module}").write_text(place)
    end = time.monotonic() + {wait}
    while len(list(seen.iterdir())) < {many} and time.monotonic() < end:
        time.sleep(0.02)
    assert len(list(seen.iterdir())) == {many}
"""
PAIR_TABLE = (
    '[fix]\ncpu = ["tests/test_a.py"]\nupstream = []\n\n[last]\ncpu = ["tests/test_b.py"]\nupstream = []\n'
)


def meeting(lab, many=2, wait=60.0):
    """Two patches whose tests wait until ``many`` of them are at work."""
    seen = lab.root / "seen"
    seen.mkdir()
    values = {"seen": str(seen), "wait": wait, "many": many}
    fix = MEET.format(module="engine", function="answer", value=42, **values)
    last = MEET.format(module="other", function="other", value=2, **values)
    lab.series(
        PAIR_TABLE,
        fix={"vllm/engine.py": FIXED, "tests/test_a.py": fix},
        last={"vllm/other.py": "def other():\n    return 2\n", "tests/test_b.py": last},
    )
    return seen


def test_runs_go_on_at_the_same_time_each_in_a_place_of_its_own(lab):
    seen = meeting(lab)
    # The controls end at once, so whatever else comes in between, two workers are enough.
    result = lab("--tier", "cpu", "--jobs", "2")
    assert result.code == 0, result
    rows = [path.read_text().split() for path in seen.iterdir()]
    assert all(len(set(column)) == 2 for column in zip(*rows, strict=True)), rows


def test_one_run_at_a_time(lab):
    meeting(lab, wait=0.1)
    result = lab("--tier", "cpu", "--jobs", "1", "--json")
    rows = result.document["patches"]
    assert [row["tiers"][0]["outcome"] for row in rows] == ["failed", "passed"]


def test_the_order_of_the_output_is_that_of_the_series(lab):
    slow = {
        "vllm/engine.py": FIXED,
        "tests/test_slow.py": "import time\n\n\ndef test_slow():\n    time.sleep(2)\n    assert 0\n",
    }
    quick = {"README.md": "# vLLM!\n", "tests/test_quick.py": "def test_quick():\n    assert 0\n"}
    table = '[slow]\ncpu = ["tests/test_slow.py"]\n\n[quick]\ncpu = ["tests/test_quick.py"]\n'
    lab.series(table, slow=slow, quick=quick)
    result = lab("--tier", "cpu", "--jobs", "4", "--json")
    assert result.code == 1
    assert [row["name"] for row in result.document["patches"]] == ["slow", "quick"]
    assert result.err.index("slow on v0.33.0, cpu: failed") < result.err.index(
        "quick on v0.33.0, cpu: failed"
    )


@pytest.fixture
def commands(monkeypatch):
    """The last words of every command that is run, relative to the tree."""
    from vllm_series import runner

    found = []
    real = runner.supervise

    def supervise(command, **values):
        found.append([word.partition("trees/")[2].partition("/")[2] or word for word in command])
        return real(command, **values)

    monkeypatch.setattr(runner, "supervise", supervise)
    return found


def test_a_file_of_vllm_is_run_once_for_all_patches_in_the_tree(lab, commands):
    more = TESTS + OWN + "\n\ndef test_more():\n    assert engine.answer() == 42\n"
    lab.series(TABLE, fix=GOOD, more={"vllm/other.py": "X = 1\n", "tests/test_engine.py": more})
    result = lab("--tier", "cpu", "--json")
    rows = result.document["patches"]
    assert [row["tiers"][0]["upstream"]["patched"]["counts"] for row in rows] == [{"passed": 4}] * 2
    assert [words[-1] for words in commands].count("tests/test_engine.py") == 1


def test_a_file_that_proves_and_is_touched_is_run_once(lab, commands):
    lab.series(
        OWN_TABLE.replace("::test_answer", ""),
        fix=own_test("    assert engine.answer() == 42\n", "from vllm import engine\n"),
    )
    assert lab("--tier", "cpu").code == 0
    assert len(commands) == 2  # One of them is the control.


def test_the_static_tier_looks_at_a_tree_once(lab, commands):
    chain = {**CHAIN, "last": {"vllm/other.py": "x = [1,2]\n"}}
    lab.series("", **chain)
    result = lab("--tier", "static", "--json")
    rows = {row["name"]: row["tiers"][0] for row in result.document["patches"]}
    assert {name: row["outcome"] for name, row in rows.items()} == {
        "fix": "passed", "more": "passed", "last": "failed",
    }  # fmt: skip
    nodes = [test["node"] for test in rows["fix"]["patched"]["tests"]]
    assert "import vllm.engine" in nodes
    assert not any("other" in node for node in nodes)
    assert len([words for words in commands if "vllm_series_import" in words]) == 2  # The base is one more.


def test_a_module_that_ends_python_fails(lab):
    lab.series("", fix={"vllm/other.py": "import os\n\nos._exit(0)\n"})
    result = lab("--tier", "static")
    assert result.code == 1
    assert "died (exit status 0)" in result.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_every_run(lab, number):
    seen = meeting(lab, many=3, wait=300)
    env = {
        **clean_env(),
        "VLLM_SERIES_CACHE": str(lab.cache),
        "VLLM_SERIES_DIR": str(lab.project),
        "VLLM_SERIES_ENV": sys.prefix,
        "TMPDIR": str(lab.root),
    }
    command = [sys.executable, "-m", "vllm_series", "test", "--tier", "cpu", "--jobs", "4"]
    process = subprocess.Popen(command, cwd=lab.root, env=env, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while len([path for path in seen.iterdir() if path.read_text()]) < 2:
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    for path in seen.iterdir():
        assert not Path("/proc", path.read_text().split()[0]).exists()
    assert not list(lab.root.glob("vllm-series-test-*"))
    # Only the controls had ended, and only those are known.
    assert len(list(lab.cache.glob("results/*"))) <= 2


# -- evidence, JUnit, arguments ----------------------------------------------------------------------------


def test_evidence_is_recorded(lab):
    lab.series(CHAIN_TABLE, **CHAIN)
    result = lab("--tier", "static", "--tier", "cpu", "--record", "more")
    assert result.code == 0, result
    path = lab.project / "patches" / "evidence" / "more@v0.33.0.json"
    found = json.loads(path.read_text())
    assert found["sha256"] == digest(lab.project / "patches" / "more.patch")
    assert found["prerequisites"] == {"fix": digest(lab.project / "patches" / "fix.patch")}
    assert found["commit"] == git(lab.cache / "vllm.git", "rev-parse", "v0.33.0^{commit}")
    cpu = found["tiers"]["cpu"]
    assert (cpu["outcome"], cpu["counts"], cpu["selectors"]) == (
        "passed",
        {"passed": 1},
        ["tests/test_more.py"],
    )
    assert cpu["control"]["outcome"] == "fails"
    assert "cannot import name 'more'" in cpu["control"]["reason"]
    assert cpu["command"] == "vllm-series test more --onto v0.33.0 --tier cpu"
    assert cpu["environment"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert str(lab.root) not in path.read_text()
    before = path.read_bytes()
    assert lab("--tier", "static", "--tier", "cpu", "--record", "more").code == 0
    assert path.read_bytes() == before


def test_junit(lab):
    lab.series(TABLE, fix={**GOOD, "vllm/engine.py": ENGINE.replace("41", "43")})
    assert lab("--tier", "cpu", "--junit", "report.xml").code == 1
    suite = ET.parse(lab.root / "report.xml").getroot().find("testsuite")
    assert suite is not None
    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == ("fix@v0.33.0.cpu", "2", "2")
    assert {case.get("name") for case in suite} == {"proof", "tests/test_engine.py::test_answer"}


def test_kept_folders_hold_the_log(lab, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    lab.series(TABLE, fix=GOOD)
    result = lab("--tier", "cpu", "--keep")
    folders = [line.split(" ", 1)[1] for line in result.err.splitlines() if line.startswith("kept ")]
    assert len(folders) == 3
    assert "1 passed" in "".join((Path(folder) / "log.txt").read_text() for folder in folders)


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["--tier", "tpu"], 2, "there is no tier tpu"),
        (["--each", "--prefix"], 2, "exclude each other"),
        (["--all", "--onto", "v0.33.0"], 2, "exclude each other"),
        (["nothing"], 2, "no patch nothing"),
        (["--jobs", "0"], 2, "jobs"),
    ],
)
def test_arguments_that_cannot_be_meant(lab, args, code, said):
    lab.series(TABLE, fix=GOOD)
    result = lab(*args)
    assert result.code == code, result
    assert said in result.err


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("[other]\ncpu = []\n", "[other] is no patch of the series"),
        ('[fix.base."v9.9.9"]\ncpu = []\n', "v9.9.9 is no supported base"),
        ('[fix]\ncpu = ["tests/gone.py"]\n', "the tree has no tests/gone.py"),
        ('[fix]\ncpu = ["project:tests/gone.py"]\n', "this project has no tests/gone.py"),
    ],
)
def test_a_table_that_cannot_be_meant(lab, table, said):
    lab.series(table, fix=GOOD)
    result = lab("--tier", "cpu")
    assert result.code == 2, result
    assert said in result.err


def test_a_selector_of_no_test_is_a_failure(lab):
    lab.series('[fix]\ncpu = ["tests/test_engine.py::test_gone"]\n', fix=GOOD)
    result, proof = lab.cpu()
    assert (result.code, proof["outcome"]) == (1, "failed")
    assert "test_gone" in proof["reason"]


def test_a_patch_without_tests_is_a_gap(lab):
    lab.series("", fix=GOOD)
    assert lab().code == 6
    assert lab("--tier", "cpu", "fix").code == 6
    assert lab("--tier", "static").code == 0


def test_an_environment_that_does_not_exist(lab):
    lab.series(TABLE, fix=GOOD)
    result = lab("--json", VLLM_SERIES_ENV=str(lab.root / "nothing"))
    assert result.code == 5
    assert result.document["error"]["kind"] == "environment"


def test_only_one_at_a_time(lab):
    from vllm_series.locks import locked

    lab.series(TABLE, fix=GOOD)
    with locked(lab.cache / "test.lock", "it"):
        assert lab().code == 4


def test_an_attribute_that_the_control_lacks_at_collection_is_a_good_control(lab):
    imports = "from vllm import engine\n\nVALUE = engine.question()\n"
    files = own_test("    assert VALUE == 42\n", imports)
    files["vllm/engine.py"] = FIXED + "\n\ndef question():\n    return 42\n"
    lab.series(OWN_TABLE, fix=files)
    result, proof = lab.cpu()
    assert result.code == 0, result
    assert "has no attribute 'question'" in proof["control"]["reason"]


def test_a_control_that_cannot_be_collected_for_another_reason_proves_nothing(lab):
    imports = "from vllm import engine\n\nassert engine.answer() == 42\n"
    lab.series(OWN_TABLE, fix=own_test("    assert True\n", imports))
    result, proof = lab.cpu()
    assert result.code == 1
    assert "for a reason of its own" in proof["reason"]


JUDGE = """\
import json, os

def test_answer():
    with open(os.environ["VLLM_SERIES_RESULTS"]) as file:
        runs = json.load(file)["runs"]
    assert runs[os.environ["VLLM_SERIES_TREE_ID"]] == 42
"""


@pytest.fixture
def judged(lab):
    """A patch that is proven by results, and the trees with it and without it."""
    lab.series(
        '[fix]\npp = ["project:tests/test_judge.py"]\n', fix={"vllm/engine.py": FIXED, "tests/x.py": ""}
    )
    (lab.project / "tests").mkdir()
    (lab.project / "tests/test_judge.py").write_text(JUDGE)
    result = lab("--tier", "pp", "--json")
    return lab, result, result.document["patches"][0]["trees"]


def results_file(lab, runs):
    path = lab.root / "results.json"
    machine = {"gpu": "a card", "driver": "1.2"}
    document = {
        "schema": 1,
        "date": "2026-01-02T03:04:05Z",
        "release": "v0.33.0",
        "machine": machine,
        "runs": runs,
    }
    path.write_text(json.dumps(document))
    return path


def test_a_tier_of_recorded_results_is_skipped_without_any(judged):
    _, result, _ = judged
    (proof,) = result.document["patches"][0]["tiers"]
    assert (result.code, proof["outcome"]) == (6, "skipped")
    assert "--results" in proof["reason"]


def test_recorded_results_are_judged_with_and_without_the_patch(judged):
    lab, _, trees = judged
    results = results_file(lab, {trees["patched"]: 42, trees["control"]: 41})
    result = lab("--results", results, "--record", "--json")
    proofs = {proof["tier"]: proof["outcome"] for proof in result.document["patches"][0]["tiers"]}
    assert (result.code, proofs) == (0, {"gpu": "no-tests", "engine": "no-tests", "pp": "passed"})
    evidence = json.loads((lab.project / "patches/evidence/fix@v0.33.0.json").read_text())
    entry = evidence["tiers"]["pp"]
    assert entry["environment"]["gpu"] == "a card"
    assert entry["environment"]["results"] == digest(results)
    assert entry["date"] == "2026-01-02T03:04:05Z"
    assert entry["control"]["outcome"] == "fails"


def test_other_results_are_judged_anew(judged):
    lab, _, trees = judged
    good = results_file(lab, {trees["patched"]: 42, trees["control"]: 41})
    assert lab("--results", good).code == 0
    results_file(lab, {trees["patched"]: 42, trees["control"]: 42})
    result = lab("--results", good, "--json")
    assert (result.code, result.document["patches"][0]["tiers"][2]["outcome"]) == (1, "not-load-bearing")


def test_results_leave_the_evidence_of_what_they_skip(judged):
    lab, _, trees = judged
    assert (
        lab("--results", results_file(lab, {trees["patched"]: 42, trees["control"]: 41}), "--record").code
        == 0
    )
    path = lab.project / "patches/evidence/fix@v0.33.0.json"
    before = path.read_bytes()
    (lab.project / "tests/test_judge.py").write_text(
        "import pytest\n\ndef test_answer():\n    pytest.skip('not run')\n"
    )
    assert lab("--results", results_file(lab, {}), "--record").code == 6
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot read"),
        ("{", "holds no results"),
        ("[]", "holds no results"),
        ('{"schema": 0}', "another version"),
    ],
)
def test_a_file_that_holds_no_results(lab, content, said):
    lab.series(TABLE, fix={"vllm/engine.py": FIXED})
    path = lab.root / "results.json"
    if content is not None:
        path.write_text(content)
    result = lab("--results", path)
    assert result.code == 2
    assert said in result.err
