# SPDX-License-Identifier: Apache-2.0
"""Reading patch files: subjects, authors, dates and messages survive; damage is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from series_support import commit, git, init, message
from vllm_series.build import commit_stack
from vllm_series.diff import CorruptPatchError
from vllm_series.errors import PreconditionError, SeriesError
from vllm_series.git import Repository
from vllm_series.patchfile import parse_patch, split_mailbox
from vllm_series.refresh import export
from vllm_series.stack import apply_all, apply_patch
from vllm_series.tree import CommitSource, Snapshot

SCENARIOS = Path(__file__).parent / "scenarios"

HEAD = (
    "From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\n"
    "From: Ada <ada@example.org>\nDate: Mon, 30 Nov 2026 18:17:54 +0100\n"
)
DIFF = "diff --git a/f b/f\nindex {0}..{0} 100644\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n".format("1" * 40)


def parse(text: str | bytes, name: str = "x"):
    raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return parse_patch(raw, Path(f"{name}.patch"), name)


def simple(subject: str = "[PATCH] [Core] Do", body: str = "Body.\n", diff: str = DIFF) -> str:
    return f"{HEAD}Subject: {subject}\n\n{body}\n{diff}"


def test_every_field():
    patch = parse(simple(body="Why.\n\nPatch-Name: x\nOrigin: own\nDepends-on: a, b\n"))
    assert patch.subject == "[Core] Do"
    assert patch.body == "Why.\n\nPatch-Name: x\nOrigin: own\nDepends-on: a, b"
    assert patch.author.raw() == "Ada <ada@example.org> 1796059074 +0100"
    assert patch.trailer("patch-name") == ("x",)
    assert patch.depends_on == ("a", "b")
    assert patch.paths == {"f"}
    assert patch.canonical_findings() == []


@pytest.mark.parametrize(
    "subject",
    [
        "[Bugfix][PP] Fix",
        "[Bugfix] [PP] two",
        "[kernel] [/x]",
        "plain",
        "[PATCH] twice",
        "[RFC PATCH] quoted",
        "ends with colon:",
        "naïve [Core]",
        "=?UTF-8?q?=41?=",
        "a" * 300,
        "ä" * 120,
        "tab\tinside",
        "[PATCH 3/7] x",
        "emoji 🎉 and 日本語 text that is long enough to be folded over more than one line of the header",
    ],
)
def test_subjects_survive(tmp_path, subject):
    repo = init(tmp_path)
    base = commit(repo, "base", {"f": "a\n"})
    commit(repo, message("x", subject), {"f": "b\n"})
    (patch,) = export(Repository.open(repo), base, "HEAD")
    assert patch.subject == subject


@pytest.mark.parametrize(
    "name",
    ["Ada Lovelace", "Dr. A. Lovelace", 'Ada "Count" Lovelace', "Ada, Countess", "A (x)", "Adä", "日本",
     "back\\slash", "O'Neil", "a@b", "x" * 120, "Ä" * 60],
)  # fmt: skip
def test_authors_survive(tmp_path, name):
    repo = init(tmp_path)
    base = commit(repo, "base", {"f": "a\n"})
    commit(repo, message("x", "[Core] Do"), {"f": "b\n"}, GIT_AUTHOR_NAME=name)
    (patch,) = export(Repository.open(repo), base, "HEAD")
    assert patch.author.name == name == git(repo, "log", "-1", "--format=%an")


@pytest.mark.parametrize(
    "date",
    [
        "1700000000 +0000",
        "1700000000 -0330",
        "1700000000 +0545",
        "0 +0000",
        "951782400 -1200",
        "4102444800 +1400",
        "1700000000 -0030",
    ],
)
def test_dates_survive(tmp_path, date):
    repo = init(tmp_path)
    base = commit(repo, "base", {"f": "a\n"})
    commit(repo, message("x", "[Core] Do"), {"f": "b\n"}, GIT_AUTHOR_DATE=f"@{date}")
    (patch,) = export(Repository.open(repo), base, "HEAD")
    assert f"{patch.author.seconds} {patch.author.zone}" == date


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "empty"),
        (b"\n \n", "empty"),
        ("just text\n", "no diff"),
        (simple().partition("\n")[2], "no git mailbox"),
        (simple().replace("Subject: [PATCH] [Core] Do\n", ""), "lacks subject"),
        (simple().replace("Date: Mon, 30 Nov 2026 18:17:54 +0100\n", "Date: soon\n"), "author or date"),
        (simple().replace("From: Ada <ada@example.org>", "From: Ada"), "author or date"),
        (simple(body="A.\n---\nSigned-off-by: B <b@c.d>\n"), "---"),
        (HEAD + "Subject: [PATCH] x\nbody without a blank line\n" + DIFF, "blank line"),
    ],
)
def test_damage_is_named(text, reason):
    with pytest.raises(CorruptPatchError, match=reason):
        parse(text)


@pytest.mark.parametrize("sample", sorted(p.name for p in (SCENARIOS / "corrupt").glob("*.patch")))
def test_damaged_samples(sample):
    """Files named after what is wrong with them; each is refused, none crashes."""
    with pytest.raises(CorruptPatchError):
        _ = parse((SCENARIOS / "corrupt" / sample).read_bytes()).changes


@pytest.mark.parametrize("sample", sorted(p.name for p in (SCENARIOS / "odd").glob("*.patch")))
def test_odd_samples(sample):
    """Files that git can read and that are not canonical: read, and named by the lint."""
    patch = parse((SCENARIOS / "odd" / sample).read_bytes())
    assert patch.changes
    assert patch.subject == "[Core] Do"
    assert patch.trailer("Signed-off-by") == ("Ada <ada@example.org>",)
    assert patch.canonical_findings()


def test_a_diffstat_is_no_part_of_the_message():
    text = simple(body="Why.\n---\n f | 2 +-\n 1 file changed, 1 insertion(+), 1 deletion(-)\n")
    patch = parse(text + "-- \n2.39.5\n\n")
    assert patch.body == "Why."
    assert len(patch.changes) == 1
    assert set(patch.canonical_findings()) >= {
        "it ends with a mail signature",
        "it has a diffstat or a '---' line",
    }


def test_an_author_in_the_body_counts():
    """As for ``git am``: who sends a patch by mail need not have written it."""
    patch = parse(simple(body="From: Grace <grace@example.org>\n\nWhy.\n"))
    assert (patch.author.name, patch.author.email) == ("Grace", "grace@example.org")
    assert patch.body == "Why."
    assert patch.canonical_findings()


def test_messages_that_git_am_would_cut_are_refused(tmp_path):
    repo = init(tmp_path)
    base = commit(repo, "base", {"f": "a\n"})
    for number, body in enumerate(
        ("Table\n---\nrow", "Like\ndiff --git a/x b/x\nthis", "From: Eve <e@v.e>\n\nx")
    ):
        git(repo, "checkout", "--quiet", "--detach", base)
        commit(repo, message("x", "[Core] Do", body=body), {"f": f"{number}\n"})
        with pytest.raises(SeriesError, match="message"):
            export(Repository.open(repo), base, "HEAD")


TEXT = (
    st.text(
        st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="\u2028\u2029"),
        min_size=1,
        max_size=40,
    )
    .map(str.strip)
    .filter(bool)
)
FILES = st.dictionaries(
    st.sampled_from(["a.py", "b/c.py", "d e.py", "ü.py", "bin"]),
    st.one_of(
        st.none(),
        st.binary(max_size=40),
        st.lists(st.sampled_from([b"a\n", b"b\n", b"\n", b"c\r\n"])).map(b"".join),
    ),
    min_size=1,
)


@settings(max_examples=12)
@given(
    commits=st.lists(st.tuples(TEXT, TEXT, FILES), min_size=1, max_size=3),
    seconds=st.integers(100_000, 4_000_000_000),
    zone=st.sampled_from(["+0000", "-0930", "+1245"]),
)
def test_random_commits_round_trip(tmp_path_factory, commits, seconds, zone):
    """Commits, patches, commits: the same trees, patch ids and texts."""
    repo = init(tmp_path_factory.mktemp("trip"))
    base = commit(repo, "base", {"a.py": "a\nb\n", "bin": b"\0\1\2"})
    wanted = []
    for number, (title, body, files) in enumerate(commits):
        present = {k: v for k, v in files.items() if v is not None or (repo / k).exists()}
        text = message(f"p{number}", title, body=body)
        last = commit(repo, text, {**present, "always": f"{number}\n"}, GIT_AUTHOR_DATE=f"@{seconds} {zone}")
        wanted.append(
            (git(repo, "rev-parse", f"{last}^{{tree}}"), git(repo, "log", "-1", "--format=%B").rstrip("\n"))
        )
    repository = Repository.open(repo)
    try:
        patches = export(repository, base, "HEAD")
    except PreconditionError:
        return  # A text that no mailbox can carry.
    assert [p.name for p in patches] == [f"p{n}" for n in range(len(commits))]
    applications, _ = apply_all(Snapshot(CommitSource(repository, base)), patches)
    assert all(a.ok for a in applications)
    built = commit_stack(repository, base, applications)
    assert (
        list(zip(repository.trees(built), [p.message.rstrip("\n") for p in patches], strict=True)) == wanted
    )
    again = export(repository, base, built[-1])
    assert [p.raw for p in again] == [p.raw for p in patches]
    for patch, oid in zip(patches, built, strict=True):
        single = repository.format_patches(f"{oid}^", oid)
        assert repository.patch_id(single) == repository.patch_id(patch.raw)
        assert (patch.author.seconds, patch.author.zone) == (seconds, zone)


def test_mailboxes_split_at_their_own_lines():
    assert split_mailbox((simple() + "\n" + simple()).encode()) == [
        (simple() + "\n").encode(),
        simple().encode(),
    ]


@settings(max_examples=150)
@given(st.integers(0, len(simple())), st.binary(max_size=3))
def test_any_damage_is_typed(at, noise):
    raw = simple(body="Why.\n\nPatch-Name: x\n").encode()
    try:
        patch = parse(raw[:at] + noise + raw[at + 1 :])
        _ = patch.changes, patch.trailers, patch.canonical_findings(), patch.depends_on
    except CorruptPatchError:
        pass


def test_crlf_converted_patch_file_is_refused_or_named(tmp_path):
    """An editor or a mail program turned the line ends: the context would never match."""
    repo = init(tmp_path)
    commit(repo, "base", {"f": "a\n"})
    patch = parse(simple().replace("\n", "\r\n"))
    assert any("CRLF" in text for text in patch.canonical_findings())
    repository = Repository.open(repo)
    application = apply_patch(Snapshot(CommitSource(repository, repository.commit("HEAD"))), patch)
    assert not application.ok
