# SPDX-License-Identifier: Apache-2.0
"""A series of 60 foreign patches over a real release, made from what the next release changed.

Every form that people carry such a series in is imported, and must come back as it was: the same files in the
end, authors, dates and messages for those forms that have them.
"""

from __future__ import annotations

import difflib
import itertools
import random
import shutil
import time
from pathlib import Path

import pytest
from series_support import git, run_here
from vllm_series.patchfile import read_patch
from vllm_series.store import Store

pytestmark = [pytest.mark.network, pytest.mark.slow]

OLD, NEW = "v0.30.0", "v0.31.0"
COUNT = 60
AUTHORS = (
    ("Ada Lovelace", "ada@example.org", "1650000000 +0000"),
    ("Jürgen Groß", "juergen@example.org", "1660000001 +0530"),
    ("李 四", "li@example.org", "1670000002 -1130"),
    ('Bob "the" O\'Neill', "bob@example.org", "1680000003 +1400"),
)
SUBJECTS = (
    "[Bugfix][PP] Fix {}",
    "Speed up {} (#4711)",
    "[Kernel] [ROCm]  {}: naïve → clever, and a title that is so long that a mail has to fold it somewhere",
    "wip {}",
)
BODIES = (
    "",
    "Because.\n\nSigned-off-by: A <a@b>\n",
    "* one\n* two\n\n---------\n\nCo-authored-by: B <b@c>\n",
    "Zeile mit ü.\n\n    code\n\n[kernel] [/x] <tag>\n",
)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """The releases, in a copy that may be written to."""
    whole = Store.default()
    commits = {ref: whole.fetch(ref).commit for ref in (OLD, NEW)}
    target = tmp_path_factory.mktemp("foreign") / "cache"
    target.mkdir()
    shutil.copytree(whole.repository.git_dir, target / "vllm.git", copy_function=shutil.copyfile)
    return target, commits


def steps(repository: Path) -> list[dict[str, tuple[str, bytes | None]]]:
    """What each of the patches changes: mode and content by path, None for what goes."""
    chance = random.Random(30)

    def content(ref: str, path: str) -> bytes:
        return git(repository, "cat-file", "blob", f"{ref}:{path}").encode("utf-8", "surrogateescape")

    rows = git(repository, "diff", "-z", "--raw", "--no-abbrev", "-M", OLD, NEW, "--", "vllm", "tests").split(
        "\0"
    )
    kinds: dict[str, list[tuple[str, ...]]] = {}
    fields = iter(rows)
    for row in fields:
        if not row:
            continue
        _, mode, _, _, kind = row.split(" ")
        paths = (next(fields), next(fields)) if kind[0] == "R" else (next(fields),)
        kinds.setdefault(kind[0], []).append((mode, *paths))
    for found in kinds.values():
        chance.shuffle(found)

    def whole(kind: str) -> dict[str, tuple[str, bytes | None]]:
        mode, *paths = kinds[kind].pop()
        if kind == "D":
            return {paths[0]: (mode, None)}
        change: dict[str, tuple[str, bytes | None]] = {paths[-1]: (mode, raw(NEW, paths[-1]))}
        if kind == "R":
            change[paths[0]] = ("", None)
        return change

    def raw(ref: str, path: str) -> bytes:
        text = content(ref, path)
        size = int(git(repository, "cat-file", "-s", f"{ref}:{path}"))
        return text if len(text) == size else text + b"\n"  # `git` here takes the last line end off.

    found = [whole(kind) for kind in "AAAAAADDDRRR"]
    found += [whole("M") | whole("M") | whole("M") for _ in range(8)]
    found += [whole("M") for _ in range(20)]
    while len(found) < COUNT:
        mode, path = kinds["M"].pop()
        old, new = (raw(ref, path).splitlines(keepends=True) for ref in (OLD, NEW))
        groups = list(difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(3))
        if not 3 <= len(groups) <= COUNT - len(found):
            continue
        # One patch per hunk, each on top of the one before.
        for count in range(1, len(groups) + 1):
            lines, at = [], 0
            for _, i1, i2, j1, j2 in itertools.chain(*groups[:count]):
                lines += old[at:i1] + new[j1:j2]
                at = i2
            found.append({path: (mode, b"".join(lines + old[at:]))})
    return found


@pytest.fixture(scope="module")
def foreign(store, tmp_path_factory):
    """Somebody's branch: the old release and 60 commits."""
    cache, _ = store
    root = tmp_path_factory.mktemp("clone") / "vllm"
    git(cache, "clone", "--quiet", "--no-checkout", "--shared", str(cache / "vllm.git"), str(root))
    git(root, "checkout", "--quiet", "-b", "theirs", OLD)
    changes = steps(root)
    for number, change in enumerate(changes):
        for path, (mode, text) in change.items():
            place = root / path
            if text is None:
                place.unlink()
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(text)
            place.chmod(0o755 if mode == "100755" else 0o644)
        name, email, date = AUTHORS[number % 4]
        subject = SUBJECTS[number // 2 % 4].format(next(iter(change)).rpartition("/")[2])
        text = f"{subject}\n\n{BODIES[number // 3 % 4]}".strip("\n") + "\n"
        git(root, "add", "-A")
        who = {"GIT_AUTHOR_NAME": name, "GIT_AUTHOR_EMAIL": email, "GIT_AUTHOR_DATE": date}
        git(root, "commit", "--quiet", "--cleanup=verbatim", "-F", "-", data=text.encode(), **who)
    assert git(root, "rev-list", "--count", f"{OLD}..HEAD") == str(COUNT)
    return root


def new_project(root: Path, ref: str, commit: str) -> Path:
    """A project with one base and no patch yet."""
    (root / "patches").mkdir(parents=True)
    (root / "series").write_text("")
    (root / "patches/base.toml").write_text(
        f'[[base]]\nref = "{ref}"\nversion = "{ref[1:]}"\ncommit = "{commit}"\nsdist_sha256 = "{"0" * 64}"\n'
    )
    return root


def mailbox(foreign: Path, folder: Path) -> tuple:
    git(foreign, "format-patch", "-q", "--full-index", "--binary", "-o", str(folder / "m"), f"{OLD}..HEAD")
    parts = [path.read_bytes() for path in sorted((folder / "m").iterdir())]
    (folder / "all.mbox").write_bytes(b"".join(parts))
    return (folder / "all.mbox",)


def mails(foreign: Path, folder: Path) -> tuple:
    git(foreign, "format-patch", "-q", "--binary", "--cover-letter", "-v2", "-o", str(folder), f"{OLD}..HEAD")
    return (folder,)


def commits(foreign: Path, folder: Path) -> tuple:
    return (f"{OLD}..HEAD", "--vllm", foreign)


def quilt(foreign: Path, folder: Path) -> tuple:
    """Plain diffs: every other one without any of git's lines, at three levels."""
    lines = ["# A quilt series."]
    for number, oid in enumerate(git(foreign, "rev-list", "--reverse", f"{OLD}..HEAD").split(), 1):
        level = number % 3
        old, new = (("", ""), ("a/", "b/"), ("x/a/", "x/b/"))[level]
        prefix = (f"--src-prefix={old}", f"--dst-prefix={new}")
        git(foreign, "diff", "--no-renames", "--binary", *prefix, f"--output={folder}/diff", f"{oid}~1", oid)
        raw = (folder / "diff").read_bytes()
        modes = b"\nnew file mode 100755" in raw or b"\nold mode" in raw
        empty = raw.count(b"diff --git ") != raw.count(b"\n+++ ")  # Nothing but git's lines says that.
        if number % 2 and not modes and not empty:
            bare = (b"diff --git ", b"index ", b"new file mode", b"deleted file mode")
            kept = [row for row in raw.split(b"\n") if not row.startswith(bare)]
            raw = b"\n".join(kept)
        name = f"{number:03d}-change_{number}.patch"
        (folder / name).write_bytes(b"Description of it.\n\nAnd more.\n\n" + raw)
        lines.append(f"{name} -p{level}" if level != 1 else name)
    (folder / "diff").unlink()
    (folder / "series").write_text("\n".join(lines) + "\n")
    return (folder, "--author", "Q <q@example.org>")


@pytest.mark.parametrize("form", [mailbox, mails, commits, quilt])
def test_the_whole_series_comes_in(store, foreign, tmp_path, form):
    cache, ids = store
    project = new_project(tmp_path / "project", OLD, ids[OLD])
    env = {"VLLM_SERIES_CACHE": str(cache), "VLLM_SERIES_DIR": str(project)}
    (tmp_path / "form").mkdir()
    sources = form(foreign, tmp_path / "form")
    begun = time.perf_counter()
    result = run_here("import", *sources, "--json", env=env)
    taken = time.perf_counter() - begun
    assert result.code == 0, result
    rows = [row for row in result.document["patches"] if row["result"] != "no-diff"]
    assert [row["result"] for row in rows] == ["clean"] * COUNT
    assert len({row["name"] for row in rows}) == COUNT
    assert (project / "series").read_text() == "".join(f"{row['name']}.patch\n" for row in rows)
    assert run_here("apply", "--into", tmp_path / "out", env=env).code == 0
    assert git(tmp_path / "out", "rev-parse", "HEAD^{tree}") == git(foreign, "rev-parse", "HEAD^{tree}")
    assert git(tmp_path / "out", "rev-list", "--count", f"{OLD}..HEAD") == str(COUNT)
    assert run_here("refresh", "--check", env=env).code == 0
    print(f"\n{form.__name__}: {COUNT} patches imported in {taken:.1f} s")
    if form is quilt:
        return
    oids = git(foreign, "rev-list", "--reverse", f"{OLD}..HEAD").split()
    for row, oid in zip(rows, oids, strict=True):
        patch = read_patch(project / "patches" / f"{row['name']}.patch")
        who = git(foreign, "log", "-1", "--format=%an|%ae|%ad", "--date=raw", oid).split("|")
        author = patch.author
        assert [author.name, author.email, f"{author.seconds} {author.zone}"] == who
        text = git(foreign, "log", "-1", "--format=%B", oid)
        # A mail folds and unfolds white space in its subject.
        subject, _, body = text.partition("\n")
        assert patch.subject.split() == subject.split()
        words = patch.body.replace(f"Patch-Name: {patch.name}", "").split()
        assert words == [*body.replace("---------", "").split(), "Origin:", "own"] or form is commits


def test_a_release_that_has_it_all(store, foreign, tmp_path):
    """Over the release that they were taken from every one is there: nothing comes in, nothing conflicts."""
    cache, ids = store
    project = new_project(tmp_path / "project", NEW, ids[NEW])
    env = {"VLLM_SERIES_CACHE": str(cache), "VLLM_SERIES_DIR": str(project)}
    result = run_here("import", f"{OLD}..HEAD", "--vllm", foreign, "--json", env=env)
    assert result.code == 1, result
    assert {row["result"] for row in result.document["patches"]} == {"present"}
    assert (project / "series").read_text() == ""
