# SPDX-License-Identifier: Apache-2.0
"""What the tests of the tool share: small vLLM releases, a series for them, and ways to run the command.

The releases have the shape of the real ones (a package, tests, a symbolic link, odd files), so that a whole
``apply`` takes milliseconds. They are imported by the code that imports the real ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Name, e-mail and dates of every commit that the tests make by hand.
IDENTITY = {
    "GIT_AUTHOR_NAME": "Ada Lovelace",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_AUTHOR_DATE": "1700000000 +0100",
    "GIT_COMMITTER_NAME": "Grace Hopper",
    "GIT_COMMITTER_EMAIL": "grace@example.org",
    "GIT_COMMITTER_DATE": "1700000100 -0500",
}
CONSOLE_SCRIPT = Path(sys.executable).with_name("vllm-series")
NAMES = ("engine-fix", "worker-guard", "engine-more", "sched-log")


def clean_env(**extra: str) -> dict[str, str]:
    """The environment of a test: no settings of whoever runs it."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "VLLM_SERIES", "PIP_", "LC_"))}
    env.update(GIT_CONFIG_NOSYSTEM="1", GIT_CONFIG_GLOBAL=os.devnull, **IDENTITY)
    env.update(extra)
    return env


def git(folder: Path, *args: str | bytes, data: bytes | None = None, check: bool = True, **env: str) -> str:
    """Run git as a person would, with a fixed identity; returns standard output without the line end."""
    done = subprocess.run(
        ["git", "-C", str(folder), *args], input=data, capture_output=True, env=clean_env(**env), check=False
    )
    if check and done.returncode:
        raise AssertionError(f"git {args}: {done.stderr.decode(errors='replace')}")
    return done.stdout.decode("utf-8", "surrogateescape").removesuffix("\n")


def write(root: Path, files: Mapping[str, bytes | str | None]) -> None:
    """Write files below ``root``; None removes one."""
    for name, content in files.items():
        path = root / name
        if content is None:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def commit(
    root: Path, message: str, files: Mapping[str, bytes | str | None] | None = None, **env: str
) -> str:
    """Write files and commit everything; returns the commit id."""
    write(root, files or {})
    git(root, "add", "-A", "--force")
    git(
        root,
        "commit",
        "--quiet",
        "--allow-empty",
        "--cleanup=verbatim",
        "-F",
        "-",
        data=message.encode(),
        **env,
    )
    return git(root, "rev-parse", "HEAD")


def init(root: Path) -> Path:
    """A new repository with the branch ``main``."""
    root.mkdir(parents=True, exist_ok=True)
    git(root, "init", "--quiet", "--initial-branch=main")
    return root


# -- the small vLLM ---------------------------------------------------------------------------------------

ENGINE = (
    "# SPDX-License-Identifier: Apache-2.0\n"
    '"""The engine."""\n\nimport os\n\n\n'
    "class Engine:\n"
    + "".join(
        f"    def step_{n}(self, batch):\n"
        f"        total_{n} = 0\n"
        f"        for item in batch:\n"
        f"            total_{n} += item * {n}\n"
        f"        return total_{n}\n\n"
        for n in range(12)
    )
    + "\ndef make_engine():\n    return Engine()\n"
)
WORKER = "# SPDX-License-Identifier: Apache-2.0\nclass Worker:\n" + "".join(
    f"    def load_{n}(self, path):\n        return open(path + '.{n}')\n\n" for n in range(10)
)
SCHEDULER = (
    "# SPDX-License-Identifier: Apache-2.0\n"
    "def schedule(queue):\n    picked = []\n    for request in queue:\n        picked.append(request)\n"
    "    return picked\n\n\ndef drain(queue):\n    while queue:\n        queue.pop()\n"
)
TESTS = "# SPDX-License-Identifier: Apache-2.0\n" + "".join(
    f"def test_{n}():\n    assert {n} == {n}\n\n\n" for n in range(8)
)

RELEASE_33: dict[str, bytes | str] = {
    "README.md": "# vLLM\n\nEasy.\n",
    "pyproject.toml": '[project]\nname = "vllm"\n',
    "vllm/__init__.py": "",
    "vllm/engine.py": ENGINE,
    "vllm/worker.py": WORKER,
    "vllm/scheduler.py": SCHEDULER,
    "vllm/no_newline.py": "first = 1\nlast = 2",
    "vllm/crlf.py": "one = 1\r\ntwo = 2\r\nthree = 3\r\nfour = 4\r\n",
    "csrc/kernel.cu": "// [kernel] [/x]\n__global__ void run() {}\n",
    "docs/with space.md": "space\n",
    "docs/naïve.md": "naïve\n",
    "assets/logo.bin": bytes(range(256)) * 8,
    "tests/test_engine.py": TESTS,
}
#: The older release: the engine's third method differs, and everything is three lines higher.
RELEASE_32 = {
    **RELEASE_33,
    "README.md": "# vLLM\n\nFast.\n",
    "vllm/engine.py": ENGINE.replace("import os\n\n\n", "").replace("total_3", "sum_3"),
}
RUN_SH = "#!/bin/sh\necho run\n"


def release_tree(root: Path, files: Mapping[str, bytes | str]) -> None:
    """Write a release's files, with a script and a symbolic link."""
    write(root, files)
    write(root, {"scripts/run.sh": RUN_SH})
    (root / "scripts/run.sh").chmod(0o755)
    if not (root / "docs/link").is_symlink():
        (root / "docs/link").symlink_to("../README.md")


def sdist(
    target: Path, version: str, files: Mapping[str, bytes | str], extra: Sequence[tarfile.TarInfo] = ()
) -> Path:
    """A source archive with generated files and a foreign owner, as the real ones have."""
    top = f"vllm-{version}"
    rows: dict[str, bytes | str] = {
        **files,
        "PKG-INFO": f"Name: vllm\nVersion: {version}\n",
        "vllm.egg-info/SOURCES.txt": "PKG-INFO\n",
        "vllm/_version.py": "commit_id = 'gabcdef123'\n",
        "setup.cfg": "[egg_info]\ntag_build = \ntag_date = 0\n\n",
        "scripts/run.sh": RUN_SH,
    }
    import gzip

    target.parent.mkdir(parents=True, exist_ok=True)
    with gzip.GzipFile(target, "wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in sorted(rows.items()):
            raw = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(f"{top}/{name}")
            info.size, info.mtime, info.uid, info.uname = len(raw), 1_700_000_000, 4242, "builder"
            info.mode = 0o755 if name == "scripts/run.sh" else 0o644
            tar.addfile(info, io.BytesIO(raw))
        link = tarfile.TarInfo(f"{top}/docs/link")
        link.type, link.linkname, link.mtime = tarfile.SYMTYPE, "../README.md", 1_700_000_000
        for info in (link, *extra):
            tar.addfile(info)
    return target


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def message(name: str, title: str, extra: str = "", body: str = "Because it is needed.") -> str:
    """A commit message with the trailers that the series demands."""
    return (
        f"{title}\n\n{body}\n\nPatch-Name: {name}\nOrigin: own\n{extra}"
        "Signed-off-by: Ada Lovelace <ada@example.org>\n"
    )


def engine_fix(text: str, total: str = "total_3") -> str:
    """The engine with the first patch."""
    return text.replace(
        f"            {total} += item * 3\n", f"            {total} += item * 33\n            item += 1\n"
    )


def with_test(text: str, name: str) -> str:
    """The engine's tests with one more, near the place that ``name`` sorts to."""
    number = 1 + 2 * NAMES.index(name)  # Far enough apart that no test is context of another.
    mark = f"def test_{number}():\n"
    return text.replace(mark, f"def test_{name.replace('-', '_')}():\n    assert True\n\n\n{mark}")


def series_changes(release: Mapping[str, bytes | str]) -> list[tuple[str, str, dict[str, str]]]:
    """The commits of the series on a release: name, message, changed files."""
    engine = str(release["vllm/engine.py"])
    total = "sum_3" if "sum_3" in engine else "total_3"
    worker = WORKER.replace(
        "    def load_4(self, path):\n", "    def load_4(self, path):\n        assert path\n"
    )
    first = engine_fix(engine, total)
    tests = str(release["tests/test_engine.py"])
    files = {
        "engine-fix": {"vllm/engine.py": first},
        "worker-guard": {"vllm/worker.py": worker},
        "engine-more": {"vllm/engine.py": first.replace("item += 1\n", "item += 2\n            item -= 1\n")},
        "sched-log": {
            "vllm/scheduler.py": SCHEDULER.replace(
                "    return picked\n", "    print(len(picked))\n    return picked\n"
            ),
            "vllm/log.py": "# SPDX-License-Identifier: Apache-2.0\nLOG = []\n",
        },
    }
    titles = {
        "engine-fix": "[Bugfix][PP] Count what was stepped",
        "worker-guard": "[Core] Demand a path [kernel] [/x]",
        "engine-more": "[Bugfix] Step further",
        "sched-log": "[Misc] Log naïve schedules",
    }
    rows = []
    for name in NAMES:
        tests = with_test(tests, name)
        extra = "Depends-on: worker-guard\n" if name == "sched-log" else ""
        rows.append(
            (name, message(name, titles[name], extra), {**files[name], "tests/test_engine.py": tests})
        )
    return rows


# -- running the command ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """What a run of the command gave."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict:
        """The JSON document; fails if standard output holds anything else."""
        found = json.loads(self.out)
        assert found["schema"] == 1
        assert found["exit"] == self.code
        return found

    def __str__(self) -> str:
        return f"exit {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


def run_script(
    *args: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    base_env: Mapping[str, str] | None = None,
    **options: object,
) -> Result:
    """Run the console script in its own process."""
    environment = dict(base_env) if base_env is not None else clean_env()
    environment.update(env or {})
    done = subprocess.run(
        [str(CONSOLE_SCRIPT), *map(str, args)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        check=False,
        timeout=120,
        **options,  # type: ignore[call-overload]
    )
    return Result(
        done.returncode,
        done.stdout.decode("utf-8", "surrogateescape"),
        done.stderr.decode("utf-8", "surrogateescape"),
    )


def run_here(*args: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Result:
    """Run the command in this process: the same entry point without the cost of a start."""
    import signal

    from vllm_series.main import run

    saved_env, saved_cwd, saved_argv = dict(os.environ), Path.cwd(), sys.argv
    handlers = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    os.environ.clear()
    os.environ.update(clean_env())
    os.environ.update(env or {})
    code = 0
    try:
        os.chdir(cwd or saved_cwd)
        sys.argv = ["vllm-series", *map(str, args)]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                run()
            except SystemExit as exit_:
                code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    finally:
        os.environ.clear()
        os.environ.update(saved_env)
        os.chdir(saved_cwd)
        sys.argv = saved_argv
        for number, handler in handlers.items():
            signal.signal(number, handler)
    texts = [s.buffer.getvalue().decode("utf-8", "surrogateescape") for s in (out, err)]  # type: ignore[attr-defined]
    return Result(code, *texts)


# -- dying at a chosen point ------------------------------------------------------------------------------

#: Everything through which the tool changes something outside its own memory.
STEPS = (
    ("subprocess", "run"),
    ("os", "rename"),
    ("os", "replace"),
    ("os", "link"),
    ("os", "unlink"),
    ("os", "rmdir"),
    ("os", "mkdir"),
    ("os", "fsync"),
    ("shutil", "rmtree"),
    ("vllm_series.swap", "_exchange"),
)


def die_at(
    number: int, *args: str | Path, after: bool = False, send: int = 9, **options: Any
) -> Result | None:
    """Run the command in a fork that gets a signal at its ``number``-th step; None if it died of that.

    The signal comes before the step, or right after it. A fork costs no start of an interpreter.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            count = 0

            def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
                def step(*a: Any, **k: Any) -> Any:
                    nonlocal count
                    count += 1
                    mine = count == number
                    if mine and not after:
                        os.kill(os.getpid(), send)
                    try:
                        return function(*a, **k)
                    finally:
                        if mine and after:
                            os.kill(os.getpid(), send)

                return step

            for module_name, name in STEPS:
                module = importlib.import_module(module_name)
                setattr(module, name, wrapped(getattr(module, name)))
            result = run_here(*args, **options)
            os.write(
                writing, json.dumps([result.code, result.out[-4000:], result.err[-4000:], count]).encode()
            )
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        text = stream.read()
    os.waitpid(child, 0)
    if not text:
        return None
    code, out, err, _ = json.loads(text)
    return Result(code, out, err)


def as_user(number: int, body: Callable[[], Any]) -> Any:
    """What ``body`` gives in a fork that belongs to another user; what it needs must be imported before."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(number)
            os.setuid(number)
            os.write(writing, json.dumps(body()).encode())
        except BaseException as error:
            os.write(writing, json.dumps(repr(error)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        text = stream.read()
    os.waitpid(child, 0)
    return json.loads(text)


def open_to_all(path: Path) -> None:
    """Let other users read what a test has made at ``path``: pytest's folders are private."""
    top = Path(tempfile.gettempdir())
    for folder in (path, *path.parents):
        if folder.stat().st_uid == os.getuid() and top in folder.parents:
            folder.chmod(0o755)


# -- comparing states -------------------------------------------------------------------------------------


def files_of(root: Path, *, skip: Sequence[str] = (".git",)) -> dict[str, tuple[str, bytes]]:
    """Every file below ``root``: kind with mode, and content. Folders count as well."""
    found: dict[str, tuple[str, bytes]] = {}
    for folder, names, leaves in os.walk(root):
        names[:] = [n for n in names if n not in skip]
        for name in (*names, *leaves):
            path = Path(folder, name)
            key = path.relative_to(root).as_posix()
            if key in skip:
                continue
            if path.is_symlink():
                found[key] = ("link", os.fsencode(path.readlink()))
            elif path.is_dir():
                found[key] = ("dir", b"")
            else:
                found[key] = (f"file {path.stat().st_mode & 0o777:o}", path.read_bytes())
    return found


def state_of(repository: Path) -> dict[str, object]:
    """All that a person can see of a checkout: files, index, HEAD, refs, status."""
    bare = git(repository, "rev-parse", "--is-bare-repository") == "true"
    return {
        "files": {} if bare else files_of(repository),
        "head": git(repository, "symbolic-ref", "-q", "HEAD", check=False),
        "commit": git(repository, "rev-parse", "-q", "--verify", "HEAD", check=False),
        "refs": git(repository, "for-each-ref", "--format=%(refname) %(objectname)"),
        "index": "" if bare else git(repository, "ls-files", "--stage"),
        "status": ""
        if bare
        else git(
            repository, "status", "--porcelain", "--ignored", "--untracked-files=all", GIT_OPTIONAL_LOCKS="0"
        ),
    }


def link_or_copy(source: str, target: str) -> None:
    """For ``copytree`` of a git directory: git never changes a file in place, so links serve."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def patches_of(project: Path) -> dict[str, tuple[str, bytes]]:
    """What a person sees; not the log of operations, nor what a killed run leaves for the next one."""
    return files_of(project, skip=(".vllm-series", ".vllm-series.lock", ".patches.new", ".patches.old"))


def refused(
    cli: Callable[..., Result], project: Path, code: int, *args: str | Path, words: str = "", **options: Any
) -> Result:
    """Run a verb that must be refused, with every patch left as it was."""
    before = patches_of(project)
    result = cli(*args, **options)
    assert result.code == code, result
    assert words in result.err, result
    assert patches_of(project) == before
    return result


def copy_tree(source: Path, target: Path) -> Path:
    """A full copy, times included."""
    shutil.copytree(source, target, symlinks=True)
    return target
