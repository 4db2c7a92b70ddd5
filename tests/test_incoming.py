# SPDX-License-Identifier: Apache-2.0
"""Patches in the forms that people carry them in: who wrote what, when, and what it is called."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from series_support import commit, git
from vllm_series.errors import UsageError
from vllm_series.git import Repository
from vllm_series.incoming import parse_person, read_commits, read_source

DIFF = "--- a/README.md\n+++ b/README.md\n@@ -1,3 +1,4 @@\n # vLLM\n \n Easy.\n+More.\n"
ME = ("Me Myself", "me@example.org")


def read(path: Path, text: str | bytes, **options):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    os.utime(path, (1_600_000_000, 1_600_000_000))
    return read_source(path, options.get("author", ME), options.get("strip"))


def test_a_format_patch_mail(tmp_path):
    text = (
        "From 1111111111111111111111111111111111111111 Mon Sep 17 00:00:00 2001\n"
        "From: =?UTF-8?q?J=C3=BCrgen?= <j@example.org>\nDate: Tue, 14 Nov 2023 23:13:20 +0100\n"
        "Subject: [PATCH v2 3/7] [Bugfix][PP] Fix\n a thing that is long\n\n"
        "Body.\n\nSigned-off-by: J <j@x>\n---\n"
        f" README.md | 1 +\n 1 file changed, 1 insertion(+)\n\n{DIFF}-- \n2.39.5\n\n"
    )
    (found,) = read(tmp_path / "0003-Bugfix-PP-Fix.patch", text)
    assert (found.author.name, found.author.email) == ("Jürgen", "j@example.org")
    assert (found.author.seconds, found.author.zone) == (1_700_000_000, "+0100")
    assert found.subject == "[Bugfix][PP] Fix a thing that is long"
    assert found.body == "Body.\n\nSigned-off-by: J <j@x>"
    assert found.name == "bugfix-pp-fix"


def test_a_mailbox_with_a_cover_letter_and_base64(tmp_path):
    import base64

    body = base64.encodebytes(f"Böse.\n---\n{DIFF}".encode()).decode()
    cover = "From a Thu Jan  1 00:00:00 1970\nFrom: A <a@b>\nSubject: [PATCH 0/1] Cover\n\nHello.\n\n"
    mail = (
        "From b Thu Jan  1 00:00:00 1970\nFrom: Sender <s@b>\nDate: Thu, 01 Jan 2026 00:00:00 +0000\n"
        "Subject: [PATCH 1/1] Do it\nContent-Type: text/plain; charset=utf-8\n"
        f"Content-Transfer-Encoding: base64\n\n{body}\n"
    )
    found = read(tmp_path / "series.mbox", cover + mail)
    assert [f.has_diff for f in found] == [False, True]
    assert found[1].body == "Böse."
    assert found[1].name == "do-it"
    assert b"+More.\n" in found[1].diff


@pytest.mark.parametrize(
    ("path", "levels"),
    [
        ("b/docs/x", (1, 0, 2)),
        ("docs/x", (0, 1, 2)),
        ("b/../etc/x", (1, 0)),
        ("b/.git/hooks/x", (1, 0)),
        ("../etc/x", (0,)),
        (".git/x", (0,)),
    ],
)
def test_no_level_makes_a_bad_path_good(tmp_path, path, levels):
    (found,) = read(tmp_path / "x.patch", f"--- /dev/null\n+++ {path}\n@@ -0,0 +1 @@\n+x\n")
    assert found.levels == levels


def test_the_author_in_the_body_wins(tmp_path):
    text = f"From: List <l@b>\nSubject: [PATCH] X\n\nFrom: Real <r@b>\n\nBody.\n---\n{DIFF}"
    (found,) = read(tmp_path / "x.eml", text)
    assert (found.author.name, found.author.email) == ("Real", "r@b")
    assert found.author.seconds == 1_600_000_000  # No date: the file's.


@pytest.mark.parametrize("crlf", [False, True])
def test_carriage_returns(tmp_path, crlf):
    """Those of the patched file stay, those of a converted mailbox go."""
    diff = DIFF.replace("\n", "\r\n") if crlf else DIFF.replace("+More.\n", "+More.\r\n")
    head = "From: A <a@b>\nSubject: [PATCH] X\n\nBody.\n---\n"
    (found,) = read(tmp_path / "x.patch", (head.replace("\n", "\r\n") if crlf else head) + diff)
    assert (b"+More.\r\n" in found.diff) == (not crlf)


def test_plain_diffs(tmp_path):
    (found,) = read(tmp_path / "12-my_change.diff", DIFF)
    assert (found.name, found.subject, found.body) == ("my_change", "my_change", "")
    assert (found.author.name, found.author.email) == ME
    (found,) = read(tmp_path / "x.diff", f"What it does.\n\nWhy it does.\n---\n{DIFF}")
    assert (found.subject, found.body) == ("What it does.", "Why it does.")
    header = "Description: Short one\n Long line.\n .\n Last.\nOrigin: vendor\nAuthor: D E <d@e>\nBug: http://x\n\n"
    (found,) = read(tmp_path / "dep3.diff", header + DIFF)
    assert found.subject == "Short one"
    assert found.body == "Long line.\n\nLast.\n\nOrigin: vendor\nBug: http://x"
    assert found.author.email == "d@e"


def test_quilt(tmp_path):
    (tmp_path / "q").mkdir()
    for name in ("b.patch", "a.patch", "c.patch", "unused.patch"):
        (tmp_path / "q" / name).write_text(DIFF)
    (tmp_path / "q/series").write_text("# first\nb.patch -p0 # why\n\na.patch\nc.patch -pab -R\n")
    found = read_source(tmp_path / "q", ME, 7)
    assert [(f.label, f.strip, f.reverse) for f in found] == [
        ("q/b.patch", 0, False), ("q/a.patch", 1, False), ("q/c.patch", 1, True),
    ]  # fmt: skip
    (tmp_path / "top").mkdir()
    (tmp_path / "q").rename(tmp_path / "top/patches")
    assert len(read_source(tmp_path / "top", ME, None)) == 3
    (tmp_path / "top/patches/series").write_text("b.patch --fuzz\n")
    with pytest.raises(UsageError, match="--fuzz"):
        read_source(tmp_path / "top", ME, None)
    (tmp_path / "top/patches/series").write_text("none.patch\n")
    with pytest.raises(UsageError, match="does not exist"):
        read_source(tmp_path / "top", ME, None)


def test_a_folder_by_name(tmp_path):
    for name in ("0002-b.patch", "0001-a.patch", "README", "0010-c.diff"):
        (tmp_path / name).write_text(DIFF)
    assert [f.name for f in read_source(tmp_path, ME, None)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "is empty"), ("hello\n", "no diff"), ("From: A <a@b>\nSubject: x\n\nb\n", "no diff")],
)
def test_nothing_to_read(tmp_path, text, words):
    with pytest.raises(UsageError, match=words):
        read(tmp_path / "x.patch", text)


def test_no_author(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "x.diff").write_text(DIFF)
    with pytest.raises(UsageError) as error:
        read_source(tmp_path / "x.diff", None, None)
    assert "--author" in error.value.hint
    (tmp_path / ".gitconfig").write_text("[user]\n\tname = U V\n\temail = u@v\n")
    assert read_source(tmp_path / "x.diff", None, None)[0].author.email == "u@v"


def test_persons():
    assert parse_person("Ada Lovelace <ada@example.org>") == ("Ada Lovelace", "ada@example.org")
    for text in ("Ada", "<a@b>", "Ada <>"):
        with pytest.raises(UsageError):
            parse_person(text)


def test_commits_of_a_clone(clone):
    repository = Repository.open(clone)
    (found,) = read_commits(repository, "v0.33.0")
    assert found.subject == "Release 0.33.0"
    assert found.origin.startswith("upstream, ")
    own = commit(clone, "[Core] Mine (#7)\n\nBody.\n", {"README.md": "# vLLM\n\nEasy.\nMore.\n"})
    commit(clone, "Two", {"NEW.md": "x\n"})
    found = read_commits(repository, "v0.33.0..HEAD")
    assert (found[0].label, found[0].name, found[0].origin) == (own[:12], "mine", "own")
    assert len(read_commits(repository, "HEAD~1..")) == 1
    git(clone, "checkout", "--quiet", "-b", "side", "HEAD~1")
    commit(clone, "side", {"SIDE.md": "x\n"})
    git(clone, "merge", "--quiet", "--no-ff", "-m", "Merged", "main")
    for revision, words in (("HEAD", "is a merge"), ("HEAD..HEAD", "no commits"), ("nope", "no commit")):
        with pytest.raises(UsageError, match=words):
            read_commits(repository, revision)
