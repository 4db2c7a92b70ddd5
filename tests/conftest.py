# SPDX-License-Identifier: Apache-2.0
"""Fixtures: everything a test writes to is a fresh copy of what was made once per session."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from series_support import (
    NAMES,
    RELEASE_32,
    RELEASE_33,
    Result,
    commit,
    copy_tree,
    digest,
    git,
    init,
    release_tree,
    run_here,
    run_script,
    sdist,
    series_changes,
)

try:
    from hypothesis import HealthCheck, settings

    for profile, derandomize in (("same", True), ("random", False)):
        settings.register_profile(
            profile,
            deadline=None,
            print_blob=True,
            derandomize=derandomize,
            suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
        )
    # The same examples every time, so that one push does not fail for what another brought in. New ones:
    # pytest --hypothesis-profile=random
    settings.load_profile("same")
except ImportError:  # The tests of the patches run in environments without it.
    pass


@dataclass(frozen=True)
class World:
    """What is made once: source archives, a filled cache, a project, upstream's repository."""

    root: Path

    @property
    def sdists(self) -> Path:
        return self.root / "sdists"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def project(self) -> Path:
        return self.root / "project"

    @property
    def upstream(self) -> Path:
        return self.root / "upstream"

    @functools.cached_property
    def applied(self) -> Path:
        """Upstream's repository with the series on the branch main."""
        target = self.root / "applied"
        git(self.root, "clone", "--quiet", str(self.upstream), str(target))
        git(target, "checkout", "--quiet", "-B", "main", "v0.33.0")
        result = run_here(
            "apply",
            "--vllm",
            target,
            "--series-dir",
            self.project,
            env={"VLLM_SERIES_CACHE": str(self.cache)},
        )
        assert result.code == 0, result
        return target


def _make_project(root: Path, cache: Path, bases: str) -> None:
    from vllm_series.git import Repository

    store = cache / "vllm.git"
    (root / "patches").mkdir(parents=True)
    (root / "patches" / "base.toml").write_text(bases)
    for ref, release, folder in (("v0.33.0", RELEASE_33, ""), ("v0.32.0", RELEASE_32, "v0.32.0")):
        tree = root.parent / f"series-{ref}"
        git(root.parent, "clone", "--quiet", "--branch", ref, str(store), str(tree))
        base = git(tree, "rev-parse", "HEAD")
        for _, text, files in series_changes(release):
            commit(tree, text, files)
        repository = Repository(tree / ".git", tree / ".git", tree)
        from vllm_series.refresh import export

        for patch in export(repository, base, "HEAD"):
            # Only the first and third patch differ between the releases.
            if folder and patch.name not in ("engine-fix", "engine-more"):
                continue
            target = root / "patches" / folder / f"{patch.name}.patch"
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(patch.raw)
    (root / "series").write_text("# In order.\n" + "".join(f"{name}.patch\n" for name in NAMES))
    (root / "patches" / "status.toml").write_text(
        "# Facts.\n"
        + "".join(
            f'\n[{name}]\nintent = "upstream"\nstate = "none"\n'
            f'retire = {{ path = "vllm/engine.py", pattern = "SOLVED_{n}" }}\n'
            for n, name in enumerate(NAMES)
        )
    )


def _make_upstream(root: Path) -> None:
    """Upstream's own history: the same blobs as the archives, other commits, and work after the release."""
    init(root)
    release_tree(root, RELEASE_32)
    commit(root, "Release 0.32.0")
    git(root, "tag", "v0.32.0")
    commit(root, "Work", {"README.md": "# vLLM\n\nEasier.\n"})
    release_tree(root, RELEASE_33)
    commit(root, "Release 0.33.0")
    git(root, "tag", "-a", "-m", "v0.33.0", "v0.33.0")
    commit(root, "More work", {"NEWS.md": "News.\n"})


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    from vllm_series import releases
    from vllm_series.store import Store

    root = tmp_path_factory.mktemp("world")
    made = World(root)
    store = Store(made.cache)
    store.ensure()
    bases = ""
    for version, files in (("0.33.0", RELEASE_33), ("0.32.0", RELEASE_32)):
        archive = sdist(made.sdists / f"vllm-{version}.tar.gz", version, files)
        found = releases.import_archive(store.repository, f"v{version}", archive)
        bases += (
            f'[[base]]\nref = "v{version}"\nversion = "{version}"\ncommit = "{found}"\n'
            f'sdist_sha256 = "{digest(archive)}"\nupstream = "abcdef123"\n\n'
        )
    _make_project(made.project, made.cache, bases)
    _make_upstream(made.upstream)
    return made


@pytest.fixture
def project(world: World, tmp_path: Path) -> Path:
    """A project of one's own: series, patches, facts."""
    return copy_tree(world.project, tmp_path / "project")


@pytest.fixture
def clone(world: World, tmp_path: Path) -> Path:
    """A clone of upstream with the branch main at the release."""
    target = tmp_path / "vllm"
    git(tmp_path, "clone", "--quiet", str(world.upstream), str(target))
    git(target, "checkout", "--quiet", "-B", "main", "v0.33.0")
    return target


@pytest.fixture
def applied(world: World, tmp_path: Path) -> Path:
    """A clone with the whole series applied."""
    return copy_tree(world.applied, tmp_path / "applied")


@dataclass
class Runner:
    """Runs the command on a project with a filled cache."""

    project: Path
    cache: Path
    env: dict[str, str] = field(default_factory=dict)

    def _env(self, env: dict[str, str]) -> dict[str, str]:
        return {
            "VLLM_SERIES_CACHE": str(self.cache),
            "VLLM_SERIES_DIR": str(self.project),
            "VLLM_SERIES_INDEX": "http://127.0.0.1:9/simple/",  # Nothing listens there.
            **self.env,
            **env,
        }

    def __call__(self, *args: str | Path, cwd: Path | None = None, **env: str) -> Result:
        """In this process."""
        return run_here(*args, cwd=cwd, env=self._env(env))

    def script(self, *args: str | Path, cwd: Path | None = None, **env: str) -> Result:
        """In a process of its own."""
        return run_script(*args, cwd=cwd, env=self._env(env))


@pytest.fixture
def cli(project: Path, world: World) -> Runner:
    """The command on a copy of the project; the cache is shared and read by all."""
    return Runner(project, world.cache)


# -- a package index --------------------------------------------------------------------------------------


@dataclass
class Index:
    """A package index on this machine, which can be told to misbehave.

    ``archives`` maps file names to content; ``fault`` is what goes wrong: ``404``, ``500``, ``cut`` (the
    connection ends in the middle), ``short`` (a smaller file), ``wrong`` (other bytes), ``junk`` (no page),
    ``slow`` (waits in the middle until ``release`` is set), ``nodigest``.
    """

    url: str = ""
    archives: dict[str, bytes] = field(default_factory=dict)
    fault: str = ""
    requests: list[str] = field(default_factory=list)
    reached: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)


def _handler(index: Index) -> Callable[..., http.server.BaseHTTPRequestHandler]:
    import hashlib
    import json
    import socket

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            return

        def _send(self, code: int, body: bytes, kind: str = "application/octet-stream") -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            index.requests.append(self.path)
            if self.path.startswith("/simple/"):
                self._page()
            else:
                self._archive(self.path.rpartition("/")[2])

        def _page(self) -> None:
            if index.fault == "404":
                return self._send(404, b"no")
            if index.fault == "500":
                return self._send(500, b"broken")
            if index.fault == "junk":
                return self._send(200, b"{junk", "application/vnd.pypi.simple.v1+json")
            files = [
                {
                    "filename": name,
                    "url": f"{index.url}files/{name}",
                    "hashes": {}
                    if index.fault == "nodigest"
                    else {"sha256": hashlib.sha256(body).hexdigest()},
                }
                for name, body in index.archives.items()
            ]
            page = {"meta": {"api-version": "1.0"}, "name": "vllm", "files": files}
            return self._send(200, json.dumps(page).encode(), "application/vnd.pypi.simple.v1+json")

        def _archive(self, name: str) -> None:
            body = index.archives[name]
            if index.fault == "file404":
                return self._send(404, b"no")
            if index.fault == "file500":
                return self._send(500, b"no")
            if index.fault == "short":
                return self._send(200, body[: len(body) // 2])
            if index.fault == "wrong":
                return self._send(200, b"x" * len(body))
            if index.fault in ("cut", "slow"):
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: len(body) // 2])
                self.wfile.flush()
                index.reached.set()
                if index.fault == "slow":
                    index.release.wait(30)
                self.connection.shutdown(socket.SHUT_RDWR)
                return None
            return self._send(200, body)

    return Handler


@pytest.fixture
def index(world: World) -> Iterator[Index]:
    """A package index with the small releases."""
    found = Index(archives={p.name: p.read_bytes() for p in world.sdists.iterdir()})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(found))
    server.daemon_threads = True
    found.url = f"http://127.0.0.1:{server.server_address[1]}/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield found
    found.release.set()
    server.shutdown()
    server.server_close()
