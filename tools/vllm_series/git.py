# SPDX-License-Identifier: Apache-2.0
"""Every git command that this project runs.

A user's settings must not change what is built: ``apply.whitespace=fix`` alters the resulting tree at
exit 0, a hook or a signing key stops a commit, ``GIT_DIR`` redirects everything. So each command gets a
clean environment, no global or system configuration, and the settings below on its command line.

The commands are run directly: importing GitPython costs more time than a whole ``apply`` may take.
GitPython serves where repositories are inspected and made, see :mod:`vllm_series.store`.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from vllm_series.errors import EnvironmentFaultError, PreconditionError, UsageError

MINIMUM_VERSION = (2, 34)

#: Settings of a repository or user that would change a result, pinned.
PINNED_CONFIG = (
    "core.hooksPath=/dev/null",
    "core.autocrlf=false",
    "core.attributesFile=/dev/null",
    "core.fsmonitor=false",
    "core.quotePath=true",
    "core.untrackedCache=false",
    "commit.gpgSign=false",
    "tag.gpgSign=false",
    "apply.whitespace=nowarn",
    "am.threeWay=false",
    "rerere.enabled=false",
    "merge.conflictStyle=diff3",  # zdiff3 needs git 2.35
    "i18n.commitEncoding=UTF-8",
    "i18n.logOutputEncoding=UTF-8",
    "color.ui=false",
    "log.showSignature=false",
    "diff.context=3",
    "diff.interHunkContext=0",
    "core.bigFileThreshold=512m",  # beyond it git calls a text file binary
    "submodule.recurse=false",
    "advice.detachedHead=false",
    "gc.auto=0",
    "maintenance.auto=false",
)

#: Settings under which ``format-patch`` writes the same bytes everywhere.
CANONICAL_CONFIG = (
    "diff.renames=true",
    "diff.renameLimit=0",
    "diff.noprefix=false",
    "diff.mnemonicPrefix=false",
    "diff.algorithm=default",
    "diff.indentHeuristic=true",
    "diff.suppressBlankEmpty=false",
    "diff.orderFile=/dev/null",
    "format.encodeEmailHeaders=true",
)
CANONICAL_OPTIONS = (
    "--stdout",
    "--zero-commit",
    "--full-index",
    "--no-signature",
    "--no-stat",
    "-N",
    "--binary",
    "--no-attach",
    "--no-thread",
    "--no-notes",
    "--no-cover-letter",
    "--no-signoff",
    "--no-base",
    "--no-from",
    "--no-add-header",
    "--subject-prefix=PATCH",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--unified=3",
    "--inter-hunk-context=0",
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--no-relative",
)

#: Files in a git directory that mean an unfinished operation.
OPERATIONS = {
    "MERGE_HEAD": "merge",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "rebase-merge": "rebase",
    "rebase-apply": "am or rebase",
    "BISECT_LOG": "bisect",
    "sequencer": "cherry-pick or revert",
}


#: Stands for "no commit" where refs are moved.
NO_COMMIT = "0" * 40

#: Descriptors that every git command inherits, see :mod:`vllm_series.locks`.
INHERITED: set[int] = set()


_NO_CHECKOUT = "name a git checkout of vLLM; a new one is made by: vllm-series apply --into DIR"
_LOG_FORMAT = "%H%n%T%n%P%n%an%n%ae%n%ad%n%cn%n%ce%n%cd%n%B"


class GitError(EnvironmentFaultError):
    """A git command failed for a reason that its caller did not expect."""

    kind = "git"


def clean_environment() -> dict[str, str]:
    """The environment for git: no ``GIT_*`` of the user, C locale, no configuration but the pinned."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    env.pop("LANGUAGE", None)
    env.update(
        LC_ALL="C",
        GIT_CONFIG_NOSYSTEM="1",
        GIT_CONFIG_GLOBAL=os.devnull,
        GIT_ATTR_NOSYSTEM="1",
        GIT_TERMINAL_PROMPT="0",
        GIT_LITERAL_PATHSPECS="1",  # a file may be named `:x` or `*`
        GIT_NO_REPLACE_OBJECTS="1",
    )
    return env


def path_bytes(path: str) -> bytes:
    """A path inside a tree as git stores it, whatever the locale."""
    return path.encode("utf-8", "surrogateescape")


def path_text(raw: bytes) -> str:
    """The inverse of :func:`path_bytes`."""
    return raw.decode("utf-8", "surrogateescape")


def isolate_process() -> None:
    """Take git's variables out of this process, for libraries that start git themselves."""
    for name in [k for k in os.environ if k.startswith("GIT_")]:
        del os.environ[name]
    os.environ.update(GIT_CONFIG_NOSYSTEM="1", GIT_CONFIG_GLOBAL=os.devnull)


def _execute(
    args: Sequence[str | bytes],
    *,
    data: bytes | None = None,
    env: Mapping[str, str] | None = None,
    user_config: bool = False,
) -> subprocess.CompletedProcess[bytes]:
    command: list[str | bytes] = ["git"]
    for setting in PINNED_CONFIG:
        command += ["-c", setting]
    command += args
    environment = clean_environment()
    if user_config:
        environment = {k: v for k, v in environment.items() if not k.startswith("GIT_CONFIG_")}
    environment.update(env or {})
    try:
        return subprocess.run(
            command,
            input=data if data is not None else b"",
            capture_output=True,
            env=environment,
            pass_fds=tuple(INHERITED),
            check=False,
        )
    except FileNotFoundError:
        raise EnvironmentFaultError("git is not installed", hint="install git 2.34 or newer") from None


def _message(stderr: bytes) -> str:
    text = stderr.decode("utf-8", "replace").strip()
    lines = [line for line in text.splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith(("fatal:", "error:"))]
    return (fatal or lines or ["no message"])[0]


def version() -> tuple[int, ...]:
    """The version of the installed git, such as ``(2, 39, 5)``."""
    text = _execute(["version"]).stdout.decode()
    match = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    if match is None:
        raise EnvironmentFaultError(f"cannot read git's version from {text!r}")
    return tuple(int(part) for part in match.groups() if part)


def require_version() -> None:
    """Raise if git is too old for the options used here."""
    found = version()
    if found < MINIMUM_VERSION:
        raise EnvironmentFaultError(
            f"git {'.'.join(map(str, found))} is too old",
            hint=f"install git {'.'.join(map(str, MINIMUM_VERSION))} or newer",
        )


@dataclass(frozen=True)
class TreeEntry:
    """One path of a tree: git's mode (octal text), object type and object id."""

    mode: str
    kind: str
    oid: str


@dataclass(frozen=True)
class Ident:
    """Who and when, as git stores it: ``seconds`` since the epoch and ``zone`` such as ``+0200``."""

    name: str
    email: str
    seconds: int
    zone: str

    def raw(self) -> str:
        """The form of a commit header."""
        return f"{self.name} <{self.email}> {self.seconds} {self.zone}"


@dataclass(frozen=True)
class Repository:
    """A repository, and the working tree of it that commands use.

    Attributes:
        git_dir: The working tree's own git directory.
        common_dir: The directory with objects and refs; equal to ``git_dir`` but in linked worktrees.
        work_tree: Top level of the working tree, None for a bare repository.

    """

    git_dir: Path
    common_dir: Path
    work_tree: Path | None = None

    @classmethod
    def bare(cls, path: Path) -> Repository:
        """The bare repository at ``path``; nothing is checked."""
        return cls(path, path)

    @classmethod
    def open(cls, path: Path) -> Repository:
        """The repository whose top level (or bare directory) is exactly ``path``.

        Raises:
            PreconditionError: ``path`` is no repository, or lies inside another one.

        """
        if not path.is_dir():
            raise PreconditionError(f"{path} is not a folder", hint=_NO_CHECKOUT)
        question = [
            "-C", str(path), "rev-parse", "--is-bare-repository", "--absolute-git-dir",
            "--path-format=absolute", "--git-common-dir", "--show-toplevel",
        ]  # fmt: skip
        found = _execute(question)
        if b"dubious ownership" in found.stderr:
            found = _execute(question, user_config=True)  # safe.directory stands only there
        lines = os.fsdecode(found.stdout).split("\n")[:-1]
        if len(lines) < 3:
            if b"dubious ownership" in found.stderr:
                raise EnvironmentFaultError(
                    f"git does not trust {path}: another user owns it",
                    hint=f"git config --global --add safe.directory {shlex.quote(str(path))}",
                )
            raise PreconditionError(
                f"{path} is not a git repository ({_message(found.stderr)})",
                hint=_NO_CHECKOUT,
            )
        is_bare, git_dir, common_dir = lines[0] == "true", Path(lines[1]), Path(lines[2])
        if is_bare:
            if git_dir.resolve() != path.resolve():
                raise PreconditionError(
                    f"{path} lies inside the bare repository {git_dir}", hint=f"name {git_dir}"
                )
            return cls(git_dir, common_dir)
        if len(lines) < 4:
            raise PreconditionError(
                f"{path} is inside a git directory", hint="name the top level of the checkout"
            )
        top = Path(lines[3])
        if top.resolve() != path.resolve():
            raise PreconditionError(
                f"{path} lies inside the repository {top}", hint=f"name its top level: {top}"
            )
        return cls(git_dir, common_dir, top)

    def with_work_tree(self, work_tree: Path) -> Repository:
        """The same repository with another working tree."""
        return replace(self, work_tree=work_tree)

    def execute(
        self,
        *args: str | bytes,
        data: bytes | None = None,
        env: Mapping[str, str] | None = None,
        config: Iterable[str] = (),
    ) -> subprocess.CompletedProcess[bytes]:
        """Run ``git args``; the caller judges the exit status."""
        command: list[str | bytes] = [f"--git-dir={self.git_dir}"]
        if self.work_tree is not None:
            command = ["-C", str(self.work_tree), *command, f"--work-tree={self.work_tree}"]
        for setting in config:
            command += ["-c", setting]
        return _execute([*command, *args], data=data, env=env)

    def run(
        self,
        *args: str | bytes,
        data: bytes | None = None,
        env: Mapping[str, str] | None = None,
        config: Iterable[str] = (),
    ) -> bytes:
        """Run ``git args`` and return its standard output.

        Raises:
            GitError: It exited with another status than 0.

        """
        result = self.execute(*args, data=data, env=env, config=config)
        if result.returncode != 0:
            text = _message(result.stderr)
            hint = ""
            if "No space left" in text or b"No space left" in result.stderr:
                hint = "free some disk space and run the command again"
            raise GitError(f"git {args[0]!s} failed in {self.where}: {text}", hint=hint)
        return result.stdout

    @property
    def where(self) -> Path:
        """The folder that a person knows this repository by."""
        return self.work_tree or self.git_dir

    # -- reading -----------------------------------------------------------------------------------

    def find_commit(self, ref: str) -> str | None:
        """The commit that ``ref`` names, as 40 hex digits, or None."""
        if ref.startswith("-"):
            raise UsageError(f"{ref!r} is not a commit", hint="name a branch, tag or commit id")
        result = self.execute("rev-parse", "--verify", "--quiet", "--end-of-options", ref + "^{commit}")
        text = result.stdout.decode().strip()
        return text.splitlines()[-1] if result.returncode == 0 and text else None

    def commit(self, ref: str) -> str:
        """The commit that ``ref`` names.

        Raises:
            UsageError: There is none.

        """
        found = self.find_commit(ref)
        if found is None:
            raise UsageError(
                f"{ref} names no commit in {self.where}",
                hint="list the known ones with: git tag; git log",
            )
        return found

    def entries(self, commit: str, paths: Sequence[str]) -> dict[str, TreeEntry]:
        """What ``commit`` holds at ``paths``; a path that is not there is left out.

        So is a folder of which something inside is asked for too: git lists what it holds instead.
        """
        found: dict[str, TreeEntry] = {}
        wanted = set(paths)
        for start in range(0, len(paths), 1000):
            chunk = [path_bytes(path) for path in paths[start : start + 1000]]
            out = self.run("ls-tree", "-z", "--full-tree", commit, "--", *chunk)
            for row in out.split(b"\0"):
                if row:
                    meta, _, path = row.partition(b"\t")
                    mode, kind, oid = meta.decode().split(" ")
                    if path_text(path) in wanted:
                        found[path_text(path)] = TreeEntry(mode, kind, oid)
        return found

    def all_entries(self, commit: str, below: str = "") -> dict[str, TreeEntry]:
        """Every file of ``commit``, or of one of its folders."""
        found: dict[str, TreeEntry] = {}
        paths = [path_bytes(below)] if below else []
        for row in self.run("ls-tree", "-r", "-z", "--full-tree", commit, "--", *paths).split(b"\0"):
            if row:
                meta, _, path = row.partition(b"\t")
                mode, kind, oid = meta.decode().split(" ")
                found[path_text(path)] = TreeEntry(mode, kind, oid)
        return found

    def objects(self, oids: Iterable[str]) -> dict[str, bytes]:
        """The contents of objects; an object that is not here is left out."""
        wanted = list(dict.fromkeys(oids))
        if not wanted:
            return {}
        lines = "".join(f"{oid}\n" for oid in wanted)
        result = self.execute("cat-file", "--batch", "--buffer", data=lines.encode())
        if result.returncode != 0:
            raise EnvironmentFaultError(
                f"objects are missing in {self.where}: {_message(result.stderr)}",
                hint=self.deepen_hint(),
            )
        out, found, position = result.stdout, {}, 0
        for oid in wanted:
            end = out.index(b"\n", position)
            header = out[position:end].split(b" ")
            position = end + 1
            if len(header) == 3:
                size = int(header[2])
                found[oid] = out[position : position + size]
                position += size + 1
        return found

    def trees(self, commits: Sequence[str]) -> list[str]:
        """The tree ids of ``commits``."""
        if not commits:
            return []
        return self.run("rev-parse", *(f"{c}^{{tree}}" for c in commits)).decode().split()

    def changed_paths(self, old: str, new: str) -> list[str]:
        """Paths that differ between two commits or trees, renames as two paths."""
        out = self.run("diff-tree", "-r", "-z", "--no-renames", "--name-only", old, new)
        return [path_text(path) for path in out.split(b"\0") if path]

    def line_diff(self, old: str, new: str, paths: Sequence[str]) -> bytes:
        """The diff of ``paths`` between two commits without context, renames as two paths."""
        old, new = self.commit(old), self.commit(new)
        with self.pristine() as place:
            return place.run(
                "diff-tree", "-r", "-p", "--unified=0", "--no-renames", "--full-index", "--no-ext-diff",
                "--no-textconv", old, new, "--", *map(path_bytes, paths), config=CANONICAL_CONFIG,
            )  # fmt: skip

    def path_history(self, since: str, tip: str, path: str) -> list[tuple[str, str, bytes]]:
        """The commits of ``since..tip`` that changed ``path``, the newest first: id, subject, diff of it."""
        found = []
        with self.pristine() as place:
            out = place.run(
                "log", "-p", "--format=%x01%H%x01%s%x01", "--unified=0", "--no-merges", "--no-renames",
                "--no-ext-diff", "--no-textconv", f"{since}..{tip}", "--", path_bytes(path),
                config=CANONICAL_CONFIG,
            )  # fmt: skip
        rows = re.split(rb"^\x01([0-9a-f]{40})\x01(.*)\x01$", out, flags=re.MULTILINE)[1:]
        for commit, subject, diff in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
            found.append((commit.decode(), subject.decode("utf-8", "replace"), diff))
        return found

    def release_tags(self) -> list[str]:
        """Every tag that is named as a release, in no order."""
        return self.run("tag", "--list", "v[0-9]*").decode().split()

    def describe(self, commit: str) -> str | None:
        """The nearest release tag (``v1.2.3``) at or before ``commit``, or None."""
        result = self.execute(
            "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*.[0-9]*.[0-9]*", "--exclude", "*rc*",
            commit,
        )  # fmt: skip
        return result.stdout.decode().strip() if result.returncode == 0 else None

    def is_ancestor(self, older: str, newer: str) -> bool:
        """Whether ``newer`` has ``older`` in its history."""
        return self.execute("merge-base", "--is-ancestor", older, newer).returncode == 0

    def share_history(self, one: str, other: str) -> bool:
        """Whether two commits have a common ancestor."""
        return self.execute("merge-base", one, other).returncode == 0

    def is_published(self, commit: str) -> bool:
        """Whether a tag or a remote's branch has ``commit``, so that moving a branch does not lose it."""
        found = self.run(
            "for-each-ref", "--count=1", "--contains", commit, "refs/tags", "refs/remotes"
        )  # fmt: skip
        return bool(found)

    def require_branch_name(self, branch: str) -> None:
        """Raise if git would not take ``branch`` as a name."""
        if self.execute("check-ref-format", "--branch", branch).returncode != 0:
            raise UsageError(f"{branch!r} is no branch name", hint="see: git help check-ref-format")

    def remotes(self) -> dict[str, str]:
        """The remotes' addresses by name."""
        result = self.execute("config", "--get-regexp", r"^remote\..*\.url$")
        rows = (line.partition(" ") for line in os.fsdecode(result.stdout).splitlines())
        return {key.removeprefix("remote.").removesuffix(".url"): url for key, _, url in rows}

    def is_shallow(self) -> bool:
        """Whether history is cut off."""
        return (self.common_dir / "shallow").exists()

    def is_partial(self) -> bool:
        """Whether objects were left out when it was cloned (``--filter``)."""
        return bool(self.execute("config", "--get-regexp", r"^remote\..*\.promisor$").stdout.strip())

    def deepen_hint(self) -> str:
        """The command that fetches what this clone lacks."""
        if self.is_shallow():
            return f"the clone is shallow; fetch the rest: git -C {self.where} fetch --unshallow"
        if self.is_partial():
            return f"the clone is partial; fetch the rest: git -C {self.where} fetch --refetch --no-filter"
        return f"the repository is damaged; see: git -C {self.where} fsck"

    @contextmanager
    def pristine(self) -> Iterator[Repository]:
        """The same objects in a bare git directory without settings, attributes and promisors.

        A repository's own ``info/attributes`` and ``diff`` drivers would change the text of a patch, and
        a partial clone would ask its server for objects that only this tool has.
        """
        with tempfile.TemporaryDirectory(prefix="vllm-series-git-") as name:
            folder = Path(name)
            (folder / "objects" / "info").mkdir(parents=True)
            (folder / "refs").mkdir()
            (folder / "HEAD").write_text("ref: refs/heads/none\n")
            # Quoted as git quotes C strings: a path may begin with a quotation mark.
            objects = os.fsencode(self.common_dir / "objects")
            quoted = objects.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
            (folder / "objects" / "info" / "alternates").write_bytes(b'"%b"\n' % quoted)
            if self.is_shallow():
                shutil.copyfile(self.common_dir / "shallow", folder / "shallow")
            yield Repository.bare(folder)

    def operation(self) -> str | None:
        """The operation in progress in this working tree, such as ``rebase``, or None."""
        for name, operation in OPERATIONS.items():
            if (self.git_dir / name).exists():
                return operation
        return None

    def head_branch(self) -> str | None:
        """The branch that is checked out, without ``refs/heads/``; None if HEAD is detached."""
        result = self.execute("symbolic-ref", "--quiet", "HEAD")
        name = result.stdout.decode().strip()
        return name.removeprefix("refs/heads/") if result.returncode == 0 else None

    def branch_worktrees(self) -> dict[str, Path]:
        """Branch name to the working tree that has it checked out."""
        found: dict[str, Path] = {}
        where = Path()
        for line in self.run("worktree", "list", "--porcelain").split(b"\n"):
            text = os.fsdecode(line)
            if text.startswith("worktree "):
                where = Path(text.removeprefix("worktree "))
            elif text.startswith("branch refs/heads/"):
                found[text.removeprefix("branch refs/heads/")] = where
        return found

    def states(self) -> dict[str, str]:
        """Path to git's two status letters, for every file that HEAD has otherwise or not at all (``??``)."""
        out = self.run(
            "status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=all",
            "--ignore-submodules=all",
            env={"GIT_OPTIONAL_LOCKS": "0"},
        )  # fmt: skip
        return {path_text(row[3:]): row[:2].decode() for row in out.split(b"\0") if row}

    def dirty_paths(self, paths: Sequence[str]) -> list[str]:
        """What would be lost if ``paths`` were written: local changes, and files that git does not track."""
        places = [path_bytes(path) for path in paths]
        out = self.run(
            "status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=no",
            "--ignore-submodules=all", "--", *places,
            env={"GIT_OPTIONAL_LOCKS": "0"},
        )  # fmt: skip
        found = {path_text(row[3:]) for row in out.split(b"\0") if row}
        tracked = set(self.run("ls-files", "-z", "--", *places).split(b"\0"))
        standing = {p for place in places if place not in tracked for p in self._standing(place)}
        if standing:
            tracked |= set(self.run("ls-files", "-z", "--", *sorted(standing)).split(b"\0"))
        return sorted(found | {path_text(path) for path in standing - tracked})

    def listed_files(self) -> list[str]:
        """Every file of the working tree that git tracks or does not ignore."""
        out = self.run("ls-files", "-z", "--cached", "--others", "--exclude-standard")
        return [path_text(path) for path in sorted(set(out.split(b"\0"))) if path]

    def _standing(self, path: bytes) -> Iterator[bytes]:
        """Files at ``path``, below it, or in the place of one of its folders."""
        top = os.fsencode(self.work_tree or self.git_dir)
        parts = path.split(b"/")
        for count in range(1, len(parts) + 1):
            place = b"/".join(parts[:count])
            try:
                mode = os.lstat(os.path.join(top, place)).st_mode  # noqa: PTH118
            except (FileNotFoundError, NotADirectoryError):
                return
            if not stat.S_ISDIR(mode):
                yield place
                return
        for folder, _, leaves in os.walk(os.path.join(top, path)):  # noqa: PTH118
            for leaf in leaves:
                yield os.path.relpath(os.path.join(folder, leaf), top)  # noqa: PTH118

    def commits(self, tip: str, limit: int | None = None) -> Iterator[CommitInfo]:
        """First-parent history from ``tip`` backwards."""
        return self._log("--first-parent", *([] if limit is None else [f"-{limit}"]), tip)

    def commits_between(self, base: str, tip: str) -> Iterator[CommitInfo]:
        """The commits of ``base..tip``, the oldest first."""
        return self._log("--reverse", "--topo-order", f"{base}..{tip}")

    def _log(self, *args: str) -> Iterator[CommitInfo]:
        out = self.run("log", "-z", f"--format={_LOG_FORMAT}", "--date=raw", "--no-mailmap", *args, "--")
        for row in out.split(b"\0"):
            if row:
                fields = row.decode("utf-8", "replace").split("\n", 9)
                oid, tree, parents = fields[:3]
                author, committer = _ident(fields[3:6]), _ident(fields[6:9])
                yield CommitInfo(oid, tree, tuple(parents.split()), author, committer, fields[9])

    def format_patches(self, base: str, tip: str) -> bytes:
        """``base..tip`` as canonical patches, one after the other."""
        ends = (self.commit(base), self.commit(tip))
        with self.pristine() as place:
            return place.run("format-patch", *CANONICAL_OPTIONS, "..".join(ends), config=CANONICAL_CONFIG)

    def diff_of(self, commit: str) -> bytes:
        """What a commit changed against its parent, in canonical form without its message."""
        with self.pristine() as place:
            return place.run(
                "diff-tree", "--no-commit-id", "-r", "-p", "-M", "--full-index", "--binary", "--no-ext-diff",
                "--no-textconv", commit, config=CANONICAL_CONFIG,
            )  # fmt: skip

    def range_diff(self, old: tuple[str, str], new: tuple[str, str]) -> str:
        """How the commits of the range ``old`` became those of ``new``; a range is a base and a tip."""
        with self.pristine() as place:
            out = place.run(
                "range-diff", "--no-color", "--no-notes", "--no-ext-diff",
                "..".join(old), "..".join(new), config=CANONICAL_CONFIG,
            )  # fmt: skip
        return out.decode("utf-8", "replace")

    def patch_id(self, patch: bytes) -> str:
        """Git's stable patch id of one patch, empty for a patch without changes."""
        out = self.run("patch-id", "--stable", data=patch).decode()
        return out.split(" ")[0] if out else ""

    def patch_id_list(self, patches: Sequence[bytes]) -> list[str]:
        """Git's stable patch ids of patches that all change something."""
        rows = self.run("patch-id", "--stable", data=b"".join(patches)).decode().splitlines()
        return [row.split(" ")[0] for row in rows]

    def patch_ids(self, since: str, tip: str, paths: Sequence[str]) -> dict[str, str]:
        """Stable patch id to commit, for the commits of ``since..tip`` that touch ``paths``."""
        with self.pristine() as place:
            log = place.run(
                "log", "-p", "--full-index", "--no-merges", "--full-diff", "--no-ext-diff", "--no-textconv",
                f"{since}..{tip}", "--", *map(path_bytes, paths), config=CANONICAL_CONFIG,
            )  # fmt: skip
        rows = self.run("patch-id", "--stable", data=log).decode().split("\n")
        return {row.split(" ")[0]: row.split(" ")[1] for row in rows if row}

    def files_with(self, commit: str, texts: Iterable[bytes]) -> list[str]:
        """Files of ``commit`` that hold one of ``texts`` in one line."""
        patterns = [word for text in texts for word in (b"-e", text)]
        result = self.execute("grep", "--no-color", "-l", "-z", "-F", "-I", *patterns, commit, "--")
        if result.returncode > 1:
            raise GitError(f"git grep failed in {self.where}: {_message(result.stderr)}")
        prefix = f"{commit}:".encode()
        return [path_text(row.removeprefix(prefix)) for row in result.stdout.split(b"\0") if row]

    # -- writing -----------------------------------------------------------------------------------

    @contextmanager
    def index_of(self, tree: str) -> Iterator[Index]:
        """An index with the files of ``tree``, beside the repository's own."""
        with tempfile.TemporaryDirectory(prefix="vllm-series-index-") as folder:
            index = Index(self, Path(folder) / "index")
            index.reset(tree)
            yield index

    def working_tree(self) -> str:
        """Write the files as they are, whether committed or not, as a tree; what is ignored stays out."""
        with tempfile.TemporaryDirectory(prefix="vllm-series-index-") as folder:
            index = Path(folder) / "index"
            shutil.copyfile(self.git_dir / "index", index)
            env = {"GIT_INDEX_FILE": str(index)}
            self.run("add", "--all", env=env)
            return self.run("write-tree", env=env).decode().strip()

    def unmerged_paths(self) -> list[str]:
        """Files with a conflict that nobody has resolved."""
        out = self.run("diff", "--name-only", "--diff-filter=U", "-z")
        return [path_text(path) for path in out.split(b"\0") if path]

    def commit_tree(self, tree: str, parent: str, author: Ident, message: str) -> str:
        """Write a commit with the author as committer; returns its id."""
        env = {}
        for role in ("AUTHOR", "COMMITTER"):
            env[f"GIT_{role}_NAME"], env[f"GIT_{role}_EMAIL"] = author.name, author.email
            env[f"GIT_{role}_DATE"] = f"@{author.seconds} {author.zone}"
        text = message.encode("utf-8", "surrogateescape")
        return self.run("commit-tree", "-p", parent, "-F", "-", tree, data=text, env=env).decode().strip()

    def fast_import(self, stream: bytes, *, loose: bool = False) -> bytes:
        """Feed ``stream`` to ``git fast-import`` and return what it answered to ``get-mark``.

        The pack is written for speed, not for size: no deltas, little compression. Few objects may be
        left ``loose`` instead, as git itself does.
        """
        limit = 100 if loose else 1
        return self.run(
            "fast-import", "--quiet", "--done", "--date-format=raw", "--force", "--depth=0",
            data=stream, config=(f"fastimport.unpackLimit={limit}", "pack.compression=1"),
        )  # fmt: skip

    def messages(self, prefix: str) -> list[tuple[str, str, str, str, str]]:
        """Every commit that a ref below ``prefix`` names: ref, commit, first parent, tree, message."""
        form = "%(refname)%00%(objectname)%00%(parent)%00%(tree)%00%(contents)%00"
        fields = self.run("for-each-ref", f"--format={form}", prefix).decode("utf-8", "replace").split("\0")
        rows = zip(*(fields[i::5] for i in range(5)), strict=False)
        return [(ref.strip(), oid, parents[:40], tree, text) for ref, oid, parents, tree, text in rows]

    def fetch_from(self, other: Repository, ref: str) -> None:
        """Copy ``ref`` and its objects out of another repository on this machine."""
        with tempfile.NamedTemporaryFile("w", prefix="vllm-series-", suffix=".config") as trust:
            # Reading a shared cache is harmless, whoever owns it.
            trust.write("[safe]\n\tdirectory = *\n")
            trust.flush()
            self.run(
                "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", str(other.git_dir), f"{ref}:{ref}",
                config=("fetch.fsckObjects=false", "transfer.fsckObjects=false"),
                env={"GIT_CONFIG_GLOBAL": trust.name},
            )  # fmt: skip

    def update_refs(self, changes: Iterable[tuple[str, str, str | None]], reason: str) -> None:
        """Move refs in one transaction: rows of ref, new value, expected old value.

        An old value of None means any, a new value of forty zeros deletes.
        """
        lines = ["start\n"]
        for ref, new, old in changes:
            if set(new) == {"0"}:
                lines.append(f"delete {ref}{f' {old}' if old else ''}\n")
            else:
                lines.append(f"update {ref} {new}{f' {old}' if old is not None else ''}\n")
        lines += ["prepare\n", "commit\n"]
        self.run("update-ref", "-m", reason, "--stdin", data="".join(lines).encode())

    def add_worktree(self, path: Path, commit: str) -> None:
        """Make a linked working tree with a detached HEAD; what git knew of a deleted one there goes."""
        self.run("worktree", "prune")
        self.run("worktree", "add", "--quiet", "--force", "--detach", str(path), commit)

    def remove_worktree(self, path: Path) -> None:
        """Remove a linked working tree, with whatever is in it; steps out of it first."""
        try:
            inside = Path.cwd().is_relative_to(path.resolve())
        except FileNotFoundError:
            inside = True  # It was removed before.
        if inside:
            os.chdir(self.git_dir)  # Git does not start in a folder that is gone.
        shutil.rmtree(path, ignore_errors=True)
        self.run("worktree", "prune")

    def reset(self, commit: str) -> None:
        """Bring HEAD, index and files to ``commit``, whatever was under way; nothing else is left."""
        for name in OPERATIONS:  # Git's own commands refuse to reset some of them.
            path = self.git_dir / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        (self.git_dir / "index.lock").unlink(missing_ok=True)
        self.run("reset", "--quiet", "--hard", commit)
        self.run("clean", "--quiet", "-ffd")

    def unmerged(self) -> list[str]:
        """Paths whose conflicts nobody has resolved."""
        out = self.run("diff", "--name-only", "--diff-filter=U", "-z")
        return sorted({path_text(path) for path in out.split(b"\0") if path})

    def put_file(self, path: str, content: bytes | None, mode: str) -> None:
        """Write a file and stage it; None removes it."""
        if content is None:
            self.run("rm", "--quiet", "--force", "--", path_bytes(path))
            return
        oid = self.run("hash-object", "-w", "--stdin", "--no-filters", data=content).decode().strip()
        entry = b"%b,%b,%b" % (mode.encode(), oid.encode(), path_bytes(path))
        self.run("update-index", "--add", "--cacheinfo", entry)
        self.run("checkout-index", "--force", "--", path_bytes(path))

    def cherry_pick(self, commit: str, committer: Ident) -> bool:
        """Pick a commit onto HEAD; False if lines conflict, which is left in files and index."""
        result = self.execute("cherry-pick", "--allow-empty", commit, env=_committer(committer))
        if result.returncode == 0:
            return True
        if not (self.git_dir / "CHERRY_PICK_HEAD").exists():
            raise GitError(f"git cherry-pick failed in {self.where}: {_message(result.stderr)}")
        return False

    def commit_index(self, like: str, committer: Ident) -> None:
        """Commit the index with author, date and message of the commit ``like``."""
        self.run(
            "commit", "--quiet", "--no-verify", "--cleanup=verbatim", "-C", like, env=_committer(committer)
        )

    def staged_tree(self) -> str:
        """The tree that the index holds."""
        return self.run("write-tree").decode().strip()

    def save(self) -> str | None:
        """A commit on HEAD with all files as they are, untracked ones too; None if HEAD has them.

        No ref names it. Index and files stay as they are.
        """
        with tempfile.TemporaryDirectory(prefix="vllm-series-save-") as folder:
            env = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
            self.run("read-tree", "HEAD", env=env)
            self.run("add", "--all", ".", env=env)
            tree = self.run("write-tree", env=env).decode().strip()
        if [tree] == self.trees(["HEAD"]):
            return None
        who = _committer(Ident("vllm-series", "vllm-series@vllm-ampere-multigpu.invalid", 0, "+0000"))
        env = {**who, **{key.replace("COMMITTER", "AUTHOR"): value for key, value in who.items()}}
        return self.run("commit-tree", "-p", "HEAD", "-m", "Saved files", tree, env=env).decode().strip()

    def push(self, remote: str, branch: str) -> str:
        """Push ``branch``, replacing only what this repository has seen there; returns what git said.

        The user's own configuration counts: addresses and credentials stand there.

        Raises:
            PreconditionError: The remote has refused, or has commits that were not seen here.

        """
        ref = f"refs/heads/{branch}"
        command = [f"--git-dir={self.git_dir}", "push", f"--force-with-lease={ref}", remote, f"{ref}:{ref}"]
        result = _execute(command, user_config=True)
        if result.returncode != 0:
            lines = result.stderr.decode("utf-8", "replace").strip().splitlines()
            reason = next((line.strip() for line in lines if "rejected" in line), _message(result.stderr))
            raise PreconditionError(
                f"{branch} was not pushed to {remote}: {reason}",
                hint=f"look at what is there with: git -C {self.where} fetch {remote}",
            )
        return result.stderr.decode("utf-8", "replace").strip()

    def identity(self) -> tuple[str, str] | None:
        """Name and e-mail address that the user has configured, None if one of them is missing.

        What git would make up from the machine's name is not asked for.
        """
        found = []
        for key in ("user.name", "user.email"):
            command = [f"--git-dir={self.git_dir}", "config", "--get", key]
            found.append(_execute(command, user_config=True).stdout.decode("utf-8", "replace").strip())
        return (found[0], found[1]) if all(found) else None

    def switch(self, new: str, branch: str | None) -> None:
        """Bring files and index to the commit ``new``, then ``branch`` and HEAD.

        Local changes outside the changed paths stay. A branch of None detaches HEAD.
        """
        if branch is None:
            self.run("checkout", "--quiet", "--no-recurse-submodules", "--detach", new)
        else:
            self.run("checkout", "--quiet", "--no-recurse-submodules", "--no-track", "-B", branch, new)

    def restore(self, commit: str, paths: Sequence[str]) -> None:
        """Make ``paths`` in files and index what ``commit`` has, removing what it has not."""
        known = set(self.entries(commit, paths))
        there = [p for p in paths if p in known]
        gone = [p for p in paths if p not in known]
        if gone:
            self.run("rm", "--quiet", "-f", "--cached", "--ignore-unmatch", "--", *map(path_bytes, gone))
            for path in gone:
                self._remove(path)
        if there:
            self.run("checkout", "--quiet", commit, "--", *map(path_bytes, there))

    def _remove(self, path: str) -> None:
        """Remove a file, and the folders that are empty without it."""
        top = self.work_tree or self.git_dir
        target = top / os.fsdecode(path_bytes(path))
        folders = list(target.parents)[: len(target.parents) - len(top.parents) - 1]
        if any(folder.is_symlink() for folder in folders) or (target.is_dir() and not target.is_symlink()):
            return  # The path leads elsewhere now: what is there is not ours.
        with suppress(FileNotFoundError, NotADirectoryError):
            target.unlink()
        for folder in folders:
            try:
                folder.rmdir()
            except OSError:
                return


@dataclass(frozen=True)
class Index:
    """Files that are being changed, as git objects."""

    repository: Repository
    path: Path

    @property
    def _env(self) -> dict[str, str]:
        return {"GIT_INDEX_FILE": str(self.path)}

    def reset(self, tree: str) -> None:
        """Let the files be those of ``tree``."""
        self.path.unlink(missing_ok=True)
        self.repository.run("read-tree", tree, env=self._env)

    def apply(self, diff: bytes, *options: str) -> str:
        """Apply a diff as ``git apply`` does; returns why it cannot be applied, empty if it was.

        A failed attempt with ``--3way`` leaves the index half merged: :meth:`reset` it.
        """
        # A merge that conflicts writes new files despite --cached: not into the current folder.
        place = self.path.with_name("files")
        place.mkdir(exist_ok=True)
        repository = self.repository.with_work_tree(place)
        done = repository.execute("apply", "--cached", *options, "-", data=diff, env=self._env)
        return "" if done.returncode == 0 else _message(done.stderr).removeprefix("error: ")

    def write_tree(self) -> str:
        """Write the files as a tree; returns its id."""
        return self.repository.run("write-tree", env=self._env).decode().strip()


@dataclass(frozen=True)
class CommitInfo:
    """What a commit says of itself; ``message`` is the raw text."""

    oid: str
    tree: str
    parents: tuple[str, ...]
    author: Ident
    committer: Ident
    message: str

    @property
    def subject(self) -> str:
        """The first line of the message."""
        return self.message.partition("\n")[0]

    def trailers(self, key: str) -> list[str]:
        """The value of every ``key:`` line of the message."""
        return re.findall(rf"^{re.escape(key)}:[ \t]*(.+?)[ \t]*$", self.message, re.MULTILINE)

    def trailer(self, key: str) -> str | None:
        """The value of the last ``key:`` line of the message, or None."""
        found = self.trailers(key)
        return found[-1] if found else None


def _ident(fields: Sequence[str]) -> Ident:
    name, email, date = fields
    seconds, zone = date.split(" ")
    return Ident(name, email, int(seconds), zone)


def _committer(who: Ident) -> dict[str, str]:
    return {
        "GIT_COMMITTER_NAME": who.name,
        "GIT_COMMITTER_EMAIL": who.email,
        "GIT_COMMITTER_DATE": f"@{who.seconds} {who.zone}",
    }


@dataclass(frozen=True)
class Mail:
    """A mail as ``git am`` reads it; what is not stated is empty.

    Attributes:
        author: Name.
        email: Address.
        date: As written.
        subject: Without ``[PATCH n/m]``, with any other brackets.
        body: The message behind the subject.
        diff: Everything behind the message.

    """

    author: str
    email: str
    date: str
    subject: str
    body: str
    diff: bytes


def read_mails(mailbox: bytes, *, keep_cr: bool) -> list[Mail]:
    """The mails of a mailbox, or of one mail without the line that begins a mailbox.

    Args:
        mailbox: Its bytes.
        keep_cr: Whether carriage returns belong to the text, and are not the mailbox's line ends.

    Raises:
        UsageError: git cannot read it.

    """
    with tempfile.TemporaryDirectory(prefix="vllm-series-mail-") as name:
        folder = Path(name)
        options = ["-b", *(["--keep-cr"] if keep_cr else []), f"-o{folder}"]
        done = _execute(["mailsplit", *options], data=mailbox)
        if done.returncode != 0:
            raise UsageError(f"it is no mailbox that git can read: {_message(done.stderr)}")
        return [_read_mail(folder, path.read_bytes()) for path in sorted(folder.iterdir())]


def _read_mail(folder: Path, mail: bytes) -> Mail:
    message, diff = folder / "message", folder / "diff"
    # Without -b the brackets of `[Bugfix] Fix` would go with those of `[PATCH]`.
    done = _execute(["mailinfo", "-b", "--encoding=UTF-8", str(message), str(diff)], data=mail)
    if done.returncode != 0:
        raise UsageError(f"it holds a mail that git cannot read: {_message(done.stderr)}")
    rows = done.stdout.decode("utf-8", "surrogateescape").splitlines()
    fields = {key: value for key, _, value in (row.partition(": ") for row in rows)}
    found = Mail(
        author=fields.get("Author", ""),
        email=fields.get("Email", ""),
        date=fields.get("Date", ""),
        subject=fields.get("Subject", ""),
        body=message.read_bytes().decode("utf-8", "surrogateescape").strip("\n"),
        diff=diff.read_bytes(),
    )
    message.unlink()
    diff.unlink()
    return found


def user_identity() -> tuple[str, str] | None:
    """Name and address that the user's own git puts into commits, None if it knows none."""
    found = []
    for key in ("user.name", "user.email"):
        done = _execute(["config", "--get", key], user_config=True)
        found.append(done.stdout.decode("utf-8", "surrogateescape").strip())
    return (found[0], found[1]) if all(found) else None


def merge_file(ours: bytes, base: bytes, theirs: bytes, folder: Path) -> bytes | None:
    """Three-way merge of one file's contents; None if lines conflict.

    Args:
        ours: The candidate's content.
        base: The common ancestor.
        theirs: The ancestor with the patch.
        folder: An empty scratch folder.

    """
    names = ("ours", "base", "theirs")
    for name, content in zip(names, (ours, base, theirs), strict=True):
        (folder / name).write_bytes(content)
    result = _execute(["merge-file", "-p", "--diff3", *(str(folder / name) for name in names)])
    if result.returncode < 0 or result.returncode > 127:
        raise GitError(f"git merge-file failed: {_message(result.stderr)}")
    return result.stdout if result.returncode == 0 else None


def line_changes(old: bytes, new: bytes, folder: Path) -> bytes:
    """The diff of two contents without context.

    Args:
        old: The one.
        new: The other.
        folder: An empty scratch folder.

    """
    for name, content in (("old", old), ("new", new)):
        (folder / name).write_bytes(content)
    result = _execute(
        [
            "diff",
            "--no-index",
            "--unified=0",
            "--no-color",
            "--text",
            str(folder / "old"),
            str(folder / "new"),
        ]
    )
    if result.returncode > 1:
        raise GitError(f"git diff failed: {_message(result.stderr)}")
    return result.stdout


def blob_id(content: bytes) -> str:
    """The id that git gives a file with ``content``."""
    import hashlib

    return hashlib.sha1(b"blob %d\0%b" % (len(content), content), usedforsecurity=False).hexdigest()
