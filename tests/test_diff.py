# SPDX-License-Identifier: Apache-2.0
"""Reading diffs: everything git writes is understood, everything damaged or escaping is refused."""

from __future__ import annotations

import contextlib
import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from series_support import commit, git, init
from vllm_series.diff import Action, CorruptPatchError, apply_binary, parse_diff, unquote
from vllm_series.git import Repository
from vllm_series.patchfile import parse_patch
from vllm_series.stack import apply_patch
from vllm_series.tree import CommitSource, Snapshot


def header(path: str = "f", extra: str = "") -> str:
    return f"diff --git a/{path} b/{path}\n{extra}--- a/{path}\n+++ b/{path}\n"


GOOD = header() + "@@ -1,3 +1,3 @@ def x\n a\n-b\n+B\n c\n"


def test_a_plain_change():
    (change,) = parse_diff(GOOD)
    assert (change.action, change.path, change.added, change.removed) == (Action.MODIFY, "f", 1, 1)
    assert change.hunks[0].old == (b"a\n", b"b\n", b"c\n")
    assert change.hunks[0].section == "def x"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no diff"),
        ("hello\n" + GOOD, "text before"),
        (GOOD + GOOD, "twice"),
        (header() + "@@ -1,3 +1,4 @@\n a\n-b\n+B\n c\n", "f: "),
        (header() + "@@ -1,4 +1,3 @@\n a\n-b\n+B\n c\n", "f: "),
        (header() + "@@ -1,3 +1,3 @@\n a\n-b\n", "f: "),
        (GOOD + " d\n", "f: "),
        (GOOD + "+d\n", "f: "),
        (header() + "@@ -1,2 +1,2 @@\n a\n b\n", "changes nothing"),
        (header() + "@@ -1 +1 @@\n\\ No newline at end of file\n-a\n+b\n", "f: "),
        (header(), "changes nothing"),
        (header(extra="index 1..2 160000\n") + "@@ -1 +1 @@\n-a\n+b\n", "160000"),
        ("diff --git a/f b/f\nindex 1..2 100644\nBinary files a/f and b/f differ\n", "without its data"),
        (header(extra="weird: yes\n") + "@@ -1 +1 @@\n-a\n+b\n", "unexpected line"),
        ("diff --git a/f b/g\n--- a/f\n+++ b/g\n@@ -1 +1 @@\n-a\n+b\n", "differ without a rename"),
        ("diff --git f f\n--- f\n+++ f\n@@ -1 +1 @@\n-a\n+b\n", "lacks the prefix"),
    ],
)
def test_damaged(text, reason):
    with pytest.raises(CorruptPatchError, match=reason):
        parse_diff(text)


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "a/../../x",
        "/etc/passwd",
        "a//b",
        "./a",
        "a/./b",
        ".git/config",
        "a/.git/hooks/x",
        ".GIT/x",
        "a/..",
    ],
)
def test_escaping_paths(path):
    with pytest.raises(CorruptPatchError):
        parse_diff(header(path) + "@@ -1 +1 @@\n-a\n+b\n")
    for kind in ("new file mode 100644", "deleted file mode 100644"):
        with pytest.raises(CorruptPatchError):
            parse_diff(f"diff --git a/{path} b/{path}\n{kind}\nindex 0..0\n")
    with pytest.raises(CorruptPatchError):
        parse_diff(f"diff --git a/x b/{path}\nsimilarity index 100%\nrename from x\nrename to {path}\n")


@given(st.binary(min_size=1, max_size=12).filter(lambda b: b"\0" not in b))
def test_unquote_undoes_gits_quoting(raw):
    quoted = '"' + "".join(f"\\{b:03o}" for b in raw) + '"'
    assert os.fsencode(unquote(quoted)) == raw


def test_unknown_escape():
    with pytest.raises(CorruptPatchError, match="escape"):
        unquote(r'"a\q"')


ODD_NAMES = [
    "plain.py",
    "with space.py",
    "trailing ",
    'quo"te.py',
    "back\\slash",
    "tab\there",
    "new\nline",
    "naïve.py",
    "日本.md",
    "a b/c d",
    ":colon",
    "*glob?",
    "-dash",
    "#hash",
    "b/b",
    " lead",
    os.fsdecode(b"latin-\xe9"),
]


@pytest.fixture
def repo(tmp_path):
    return init(tmp_path / "repo")


def round_trip(repo, base: str) -> tuple[str, object]:
    """Export HEAD as a patch, apply it to ``base`` in memory, build it: the tree and the patch."""
    from vllm_series.build import commit_stack
    from vllm_series.refresh import split_mailbox

    repository = Repository.open(repo)
    (raw,) = split_mailbox(repository.format_patches(base, "HEAD"))
    patch = parse_patch(raw, repo / "x.patch", "x")
    application = apply_patch(Snapshot(CommitSource(repository, base)), patch)
    assert application.ok, application.first_problem()
    (built,) = commit_stack(repository, base, [application])
    assert repository.patch_id(repository.format_patches(base, built)) == repository.patch_id(raw)
    assert repository.format_patches(base, built).rstrip() == raw.rstrip()
    return git(repo, "rev-parse", f"{built}^{{tree}}"), patch


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names(repo, name):
    """Change, delete, rename, create, mode change and binary, with every odd name."""
    path = repo / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{n}\n" for n in range(20)))
    base = commit(repo, "base", {"other": "x\n"})
    path.write_text("".join(f"{n}\n" for n in range(20) if n != 7))
    first = commit(repo, "change")
    assert round_trip(repo, base)[0] == git(repo, "rev-parse", "HEAD^{tree}")
    path.chmod(0o755)
    second = commit(repo, "mode")
    assert round_trip(repo, first)[0] == git(repo, "rev-parse", "HEAD^{tree}")
    path.rename(path.with_name(path.name + "2"))
    third = commit(repo, "rename")
    tree, patch = round_trip(repo, second)
    assert tree == git(repo, "rev-parse", "HEAD^{tree}")
    assert patch.changes[0].action is Action.RENAME
    path.with_name(path.name + "2").unlink()
    fourth = commit(repo, "delete")
    assert round_trip(repo, third)[0] == git(repo, "rev-parse", "HEAD^{tree}")
    path.write_bytes(bytes(range(256)))
    commit(repo, "binary")
    assert round_trip(repo, fourth)[0] == git(repo, "rev-parse", "HEAD^{tree}")


def _numbers(count: int, changed: int | None = None) -> str:
    return "".join(f"{'changed' if n == changed else n}\n" for n in range(count))


CASES: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "empty file made": ({}, {"e": b""}),
    "empty file deleted": ({"e": b""}, {"e": None}),
    "empty file filled": ({"e": b""}, {"e": b"x\n"}),
    "file emptied": ({"e": b"x\n"}, {"e": b""}),
    "empty file renamed": ({"e": b""}, {"e": None, "f": b""}),
    "no newline added": ({"f": b"a\nb\n"}, {"f": b"a\nb"}),
    "no newline removed": ({"f": b"a\nb"}, {"f": b"a\nb\n"}),
    "no newline kept": ({"f": b"a\nb"}, {"f": b"A\nb"}),
    "crlf file": ({"f": b"a\r\nb\r\nc\r\n"}, {"f": b"a\r\nB\r\nc\r\n"}),
    "crlf to lf": ({"f": b"a\r\nb\r\n"}, {"f": b"a\nb\n"}),
    "lone cr": ({"f": b"a\rb\rc\nd\n"}, {"f": b"a\rb\rC\nd\n"}),
    "form feed and unicode separators": (
        {"f": "a\x0cb\n\x0b\u2028x\x85y\n".encode()},
        {"f": "a\x0cb\n\x0b\u2028x\x85z\n".encode()},
    ),
    "not utf-8": ({"f": b"caf\xe9\n1\n"}, {"f": b"caf\xe9\n2\n"}),
    "rename with edit": ({"f": _numbers(30)}, {"f": None, "g": _numbers(30, 4)}),
    "binary literal": ({"b": b"\0abc"}, {"b": b"\0xyz"}),
    "binary made": ({}, {"b": bytes(range(256))}),
    "binary deleted": ({"b": bytes(range(256))}, {"b": None}),
    "binary delta": (
        {"b": random.Random(1).randbytes(90_000)},
        {
            "b": random.Random(1).randbytes(90_000)[:70_000]
            + b"tail"
            + random.Random(1).randbytes(90_000)[:300]
        },
    ),
    "lines that look like a diff": (
        {"f": "-- a\n++ b\n@@ -1 +1 @@\ndiff --git a/x b/x\n"},
        {"f": "-- b\n++ c\n@@ -1 +1 @@\ndiff --git a/x b/x\n"},
    ),
    "removed line of a dash at the end": ({"f": "a\n- \n- x\n"}, {"f": "a\n- y\n"}),
    "removed dash, then the last line": ({"f": "a\n- \n"}, {"f": "a\nb\n"}),
    "file becomes folder": ({"d": "x\n"}, {"d": None, "d/in": "y\n"}),
    "folder becomes file": ({"d/in": "x\n"}, {"d/in": None, "d": "y\n"}),
    "blank lines": ({"f": "\n\n\na\n\n\n"}, {"f": "\n\n\nb\n\n\n"}),
    "long file, far hunks": ({"f": _numbers(400)}, {"f": _numbers(400, 3).replace("390\n", "x\n")}),
}


@pytest.mark.parametrize("case", CASES)
def test_round_trip(repo, case):
    before, after = CASES[case]
    base = commit(repo, "base", {"keep": "keep\n", **before})
    for name, content in after.items():
        if content is None:
            (repo / name).unlink()
    for folder in [p for p in repo.iterdir() if p.is_dir() and p.name != ".git" and not any(p.iterdir())]:
        folder.rmdir()
    commit(repo, "change", {k: v for k, v in after.items() if v is not None})
    assert round_trip(repo, base)[0] == git(repo, "rev-parse", "HEAD^{tree}")


def test_symbolic_links(repo):
    (repo / "link").symlink_to("one")
    (repo / "becomes-file").symlink_to("one")
    base = commit(repo, "base", {"becomes-link": "text\n" * 5, "keep": "x\n"})
    (repo / "link").unlink()
    (repo / "link").symlink_to("two")
    first = commit(repo, "target")
    assert round_trip(repo, base)[0] == git(repo, "rev-parse", "HEAD^{tree}")
    # git writes a change of kind as a deletion and a creation of one path.
    (repo / "becomes-link").unlink()
    (repo / "becomes-link").symlink_to("keep")
    (repo / "becomes-file").unlink()
    commit(repo, "kinds", {"becomes-file": "now text\n"})
    assert round_trip(repo, first)[0] == git(repo, "rev-parse", "HEAD^{tree}")


def apply_text(repo, diff: str) -> str:
    """The first problem of a diff on HEAD, empty if it applies."""
    text = (
        "From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\n"
        "From: A <a@b.c>\nDate: Mon, 30 Nov 2026 18:17:54 +0000\nSubject: [PATCH] x\n\nbody\n\n" + diff
    )
    patch = parse_patch(text.encode("utf-8", "surrogateescape"), repo / "x.patch", "x")
    repository = Repository.open(repo)
    return apply_patch(Snapshot(CommitSource(repository, repository.commit("HEAD"))), patch).first_problem()


def git_refuses(repo, diff: str) -> bool:
    git(repo, "read-tree", "HEAD")
    try:
        git(repo, "apply", "--cached", "-", data=diff.encode())
    except AssertionError:
        return True
    finally:
        git(repo, "read-tree", "HEAD")
    return False


NEW = "new file mode 100644\nindex {0}..{0}\n--- /dev/null\n+++ b/{{path}}\n@@ -0,0 +1 @@\n+x\n".format(
    "0" * 40
)


def new_file(path: str) -> str:
    return f"diff --git a/{path} b/{path}\n" + NEW.format(path=path)


def test_refusals_like_git(repo):
    (repo / "real").mkdir()
    (repo / "way").symlink_to("real")
    commit(repo, "base", {"real/f": "a\n", "file": "a\n", "folder/in": "x\n"})
    refused = {
        new_file("way/f"): "through a symbolic link",
        new_file("file/f"): "below a file",
        new_file("file"): "over a file",
        header("way/f") + "@@ -1 +1 @@\n-a\n+b\n": "a change through a symbolic link",
        header("gone") + "@@ -1 +1 @@\n-a\n+b\n": "a file that is not there",
        header("way", "index 0..1 100644\n")
        + "@@ -1 +1 @@\n-real\n\\ No newline at end of file\n+b\n": "a link as file",
        "diff --git a/file b/folder/in\nsimilarity index 100%\nrename from file\n"
        "rename to folder/in\n": "onto a file",
        "diff --git a/file b/file\ndeleted file mode 100644\nindex 0..0\n": "delete without the lines",
    }
    for diff, what in refused.items():
        assert apply_text(repo, diff), what
        assert git_refuses(repo, diff) or what == "through a symbolic link", what


def test_a_file_over_a_folder_is_refused(repo):
    """git's index would drop the folder in silence; nobody's files go that way here."""
    commit(repo, "base", {"folder/in": "x\n"})
    assert "folder" in apply_text(repo, new_file("folder"))


def test_damaged_binary(repo):
    base = commit(repo, "base", {"b": b"\0old"})
    commit(repo, "change", {"b": random.Random(2).randbytes(3000)})
    raw = Repository.open(repo).format_patches(base, "HEAD").decode()
    diff = raw[raw.index("diff --git") :]
    parse_diff(diff)
    lines = diff.split("\n")
    at = lines.index("GIT binary patch")
    for damaged in (
        "\n".join([*lines[: at + 2], lines[at + 2][:20] + "zzzzz" + lines[at + 2][25:], *lines[at + 3 :]]),
        "\n".join(lines[: at + 2]) + "\n",
        diff.replace("literal 3000", "literal 3001"),
        diff.replace("literal 3000", "literal"),
        "\n".join([*lines[: at + 2], *lines[at + 3 :]]),
    ):
        with pytest.raises(CorruptPatchError):
            parse_diff(damaged)


@settings(max_examples=60)
@given(st.binary(max_size=60), st.binary(max_size=200))
def test_random_binary_data_never_crashes(old, data):
    """A hostile delta is refused with a typed error, or gives bytes."""
    from vllm_series.diff import BinaryData
    from vllm_series.errors import SeriesError

    with contextlib.suppress(SeriesError):
        assert isinstance(apply_binary(BinaryData(True, data), old), bytes)


@settings(max_examples=200)
@given(st.integers(0, len(GOOD) - 1), st.sampled_from(["", "x", "\n", "-", "+", "@", "\r", "\\", " "]))
def test_any_damage_is_typed(at, text):
    with contextlib.suppress(CorruptPatchError):
        parse_diff(GOOD[:at] + text + GOOD[at + 1 :])
