# SPDX-License-Identifier: Apache-2.0
"""A user's settings change nothing: the same commits, the same patch text, byte for byte."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from series_support import as_user, clean_env, copy_tree, files_of, git, run_here, run_script, write
from vllm_series.errors import EnvironmentFaultError, PreconditionError, UsageError
from vllm_series.git import Repository, clean_environment

#: Settings that change what git builds or prints, or that stop it.
HOSTILE = {
    "apply.whitespace": "fix",
    "apply.ignoreWhitespace": "change",
    "core.autocrlf": "true",
    "core.eol": "crlf",
    "core.safecrlf": "true",
    "core.quotePath": "false",
    "core.abbrev": "7",
    "core.commentChar": "[",
    "core.bigFileThreshold": "1",
    "core.compression": "9",
    "core.fsmonitor": "/bin/false",
    "core.untrackedCache": "true",
    "core.splitIndex": "true",
    "core.pager": "false",
    "core.editor": "false",
    "core.whitespace": "tab-in-indent",
    "core.checkStat": "minimal",
    "core.ignoreCase": "false",
    "core.excludesFile": "{root}/excludes",
    "core.attributesFile": "{root}/attributes",
    "core.hooksPath": "{root}/hooks",
    "commit.gpgSign": "true",
    "tag.gpgSign": "true",
    "gpg.program": "/bin/false",
    "commit.template": "{root}/template",
    "commit.cleanup": "strip",
    "commit.verbose": "true",
    "format.signature": "evil",
    "format.attach": "true",
    "format.thread": "true",
    "format.numbered": "true",
    "format.to": "x@y.z",
    "format.cc": "x@y.z",
    "format.headers": "X-Evil: 1\n",
    "format.subjectPrefix": "EVIL",
    "format.suffix": ".evil",
    "format.pretty": "oneline",
    "format.signOff": "true",
    "format.from": "true",
    "format.useAutoBase": "true",
    "format.notes": "true",
    "format.coverLetter": "true",
    "format.encodeEmailHeaders": "false",
    "format.outputDirectory": "/nonexistent",
    "format.noprefix": "true",
    "format.mboxrd": "true",
    "diff.noprefix": "true",
    "diff.mnemonicPrefix": "true",
    "diff.renames": "false",
    "diff.renameLimit": "1",
    "diff.algorithm": "patience",
    "diff.context": "0",
    "diff.interHunkContext": "9",
    "diff.external": "/bin/false",
    "diff.orderFile": "{root}/order",
    "diff.indentHeuristic": "false",
    "diff.suppressBlankEmpty": "true",
    "diff.submodule": "log",
    "diff.statGraphWidth": "3",
    "diff.colorMoved": "zebra",
    "diff.relative": "true",
    "diff.ignoreSubmodules": "all",
    "diff.srcPrefix": "x/",
    "diff.dstPrefix": "y/",
    "diff.evil.xfuncname": "^evil",
    "diff.evil.textconv": "/bin/false",
    "diff.evil.binary": "true",
    "color.ui": "always",
    "color.diff": "always",
    "log.showSignature": "true",
    "log.date": "relative",
    "log.mailmap": "true",
    "log.follow": "true",
    "log.decorate": "full",
    "grep.lineNumber": "true",
    "grep.patternType": "perl",
    "i18n.commitEncoding": "ISO-8859-1",
    "i18n.logOutputEncoding": "ISO-8859-1",
    "merge.conflictStyle": "merge",
    "merge.ff": "only",
    "rerere.enabled": "true",
    "rerere.autoUpdate": "true",
    "am.threeWay": "true",
    "am.keepcr": "true",
    "mailinfo.scissors": "true",
    "pull.rebase": "true",
    "push.default": "nothing",
    "checkout.guess": "false",
    "checkout.defaultRemote": "evil",
    "checkout.workers": "2",
    "branch.autoSetupMerge": "always",
    "submodule.recurse": "true",
    "status.showUntrackedFiles": "no",
    "status.relativePaths": "true",
    "status.renames": "false",
    "status.branch": "true",
    "init.defaultBranch": "evil",
    "init.templateDir": "{root}/templates",
    "safe.bareRepository": "explicit",
    "transfer.fsckObjects": "true",
    "fetch.prune": "true",
    "fetch.pruneTags": "true",
    "gc.auto": "1",
    "maintenance.auto": "true",
    "user.useConfigOnly": "true",
    "url.file:///nonexistent/.insteadOf": "/",
    "fastimport.unpackLimit": "9999",
    "pack.packSizeLimit": "1m",
    "advice.detachedHead": "true",
    "alias.checkout": "!false",
    "core.logAllRefUpdates": "false",
    "filter.evil.clean": "tr a-z A-Z",
    "filter.evil.smudge": "tr a-z A-Z",
    "extensions.evil": "",
}
#: These make git itself refuse a repository that has them in its own configuration.
NOT_IN_A_REPOSITORY = {"extensions.evil", "init.templateDir", "safe.bareRepository"}

VARIABLES = {
    "GIT_DIR": "/nonexistent",
    "GIT_WORK_TREE": "/nonexistent",
    "GIT_INDEX_FILE": "/nonexistent/index",
    "GIT_OBJECT_DIRECTORY": "/nonexistent/objects",
    "GIT_NAMESPACE": "evil",
    "GIT_PREFIX": "evil/",
    "GIT_AUTHOR_NAME": "Evil",
    "GIT_AUTHOR_EMAIL": "e@v.il",
    "GIT_AUTHOR_DATE": "1 +0000",
    "GIT_COMMITTER_NAME": "Evil",
    "GIT_COMMITTER_EMAIL": "e@v.il",
    "GIT_COMMITTER_DATE": "1 +0000",
    "GIT_EXTERNAL_DIFF": "/bin/false",
    "GIT_DIFF_OPTS": "--unified=0",
    "GIT_EDITOR": "false",
    "GIT_PAGER": "false",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "apply.whitespace",
    "GIT_CONFIG_VALUE_0": "fix",
    "GIT_CONFIG_PARAMETERS": "'apply.whitespace=fix'",
    "GIT_TEMPLATE_DIR": "/nonexistent",
    "GIT_EXEC_PATH_X": "x",
    "GIT_LITERAL_PATHSPECS": "0",
    "GIT_GLOB_PATHSPECS": "1",
    "GIT_ICASE_PATHSPECS": "1",
    "GIT_DEFAULT_HASH": "sha256",
    "GIT_CEILING_DIRECTORIES": "/",
    "GIT_DISCOVERY_ACROSS_FILESYSTEM": "0",
    "GIT_FLUSH": "0",
    "GIT_TRACE": "1",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES": "/nonexistent",
    "GIT_REPLACE_REF_BASE": "refs/evil",
    "GIT_ASKPASS": "false",
    "EMAIL": "e@v.il",
    "LESS": "evil",
    "PAGER": "false",
    "EDITOR": "false",
    "LANGUAGE": "de",
    "POSIXLY_CORRECT": "1",
    "CDPATH": "/",
    "TZ": "Asia/Kathmandu",
    "COLUMNS": "20",
    "FORCE_COLOR": "1",
}


def hostile_config(root: Path, skip: set[str] = frozenset()) -> str:
    """A configuration file with all of it, and the files that it names."""
    write(
        root,
        {
            "excludes": "*\n",
            "attributes": "* diff=evil filter=evil text eol=crlf -merge\n*.py -diff\n",
            "order": "vllm/worker.py\n",
            "template": "evil\n",
            "templates/info/attributes": "* filter=evil\n",
            "templates/hooks/post-checkout": "#!/bin/sh\nexit 1\n",
        },
    )
    for hook in (
        "applypatch-msg",
        "pre-applypatch",
        "post-applypatch",
        "pre-commit",
        "prepare-commit-msg",
        "commit-msg",
        "post-commit",
        "post-checkout",
        "post-rewrite",
        "reference-transaction",
        "post-index-change",
        "update",
    ):
        write(root, {f"hooks/{hook}": "#!/bin/sh\nexit 1\n"})
        (root / "hooks" / hook).chmod(0o755)
    path = root / "config"
    for key, value in HOSTILE.items():
        if key not in skip:
            done = subprocess.run(
                ["git", "config", "--file", path, key, value.format(root=root)],
                check=False,
                capture_output=True,
            )
            assert done.returncode == 0, (key, done.stderr)
    return path.read_text()


@pytest.fixture(scope="module")
def wanted(world) -> tuple[str, dict]:
    return git(world.applied, "rev-parse", "HEAD"), files_of(world.applied)


def patches_of(project: Path) -> dict:
    return files_of(project / "patches")


def check_everything(cli, clone: Path, project: Path, wanted, **run) -> None:
    """Apply, change a commit, refresh from it, unapply: all as without the settings."""
    result = run_script("apply", "--vllm", clone, **run)
    assert result.code == 0, result
    raw = clean_env(GIT_CONFIG_NOSYSTEM="1")
    head = subprocess.run(
        ["git", f"--git-dir={clone}/.git", "rev-parse", "HEAD"], env=raw, capture_output=True, check=True
    ).stdout.decode()
    assert head.strip() == wanted[0]
    assert files_of(clone) == wanted[1]
    before = patches_of(project)
    (project / "patches/engine-more.patch").unlink()
    result = run_script("refresh", "--from", clone, **run)
    assert result.code == 0, result
    assert patches_of(project) == before
    result = run_script("status", "--vllm", clone, "--onto", wanted[0], **run)
    assert result.code == 0, result
    assert "upstream-exact" in result.out
    result = run_script("unapply", "engine-more", "--vllm", clone, **run)
    assert result.code == 0, result
    assert run_script("refresh", "--check", **run).code == 0
    assert run_script("apply", "--vllm", clone, **run).code == 0
    assert files_of(clone) == wanted[1]


@pytest.mark.parametrize("scope", ["user", "system", "repository", "environment", "attributes"])
def test_hostile_settings(cli, clone, project, tmp_path, wanted, scope, world):
    env = cli._env({"HOME": str(tmp_path / "home")})
    cache = copy_tree(world.cache, tmp_path / "cache")
    env["VLLM_SERIES_CACHE"] = str(cache)
    base = clean_env()
    evil = tmp_path / "evil"
    (tmp_path / "home").mkdir()
    if scope == "user":
        base.pop("GIT_CONFIG_GLOBAL")
        (tmp_path / "home/.gitconfig").write_text(hostile_config(evil))
    elif scope == "system":
        base.pop("GIT_CONFIG_NOSYSTEM")
        hostile_config(evil)
        base["GIT_CONFIG_SYSTEM"] = str(evil / "config")
    elif scope == "environment":
        base.update(VARIABLES)
    elif scope == "repository":
        text = hostile_config(evil, NOT_IN_A_REPOSITORY)
        for config in (clone / ".git/config", cache / "vllm.git/config"):
            config.write_text(config.read_text() + text)
        for hooks in (clone / ".git/hooks", cache / "vllm.git/hooks"):
            shutil.rmtree(hooks)
            shutil.copytree(evil / "hooks", hooks)
    else:
        # Attributes of the repository itself, and grafts of history.
        hostile_config(evil)
        write(clone, {".git/info/attributes": "*.py -diff\n* diff=evil\n"})
        git(clone, "config", "diff.evil.xfuncname", "^evil")
        git(clone, "replace", "--graft", "v0.33.0^{}")
    check_everything(cli, clone, project, wanted, env=env, base_env=base)


@pytest.mark.parametrize(
    "extra",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"LC_ALL": "C.UTF-8"},
        {"LC_ALL": "POSIX", "PYTHONIOENCODING": "latin-1", "PYTHONCOERCECLOCALE": "0"},
        {"LC_ALL": "de_DE.ISO-8859-1"},
    ],
    ids=["C", "UTF-8", "latin-1", "unknown"],
)
def test_locales(cli, clone, project, wanted, extra, world, tmp_path):
    """Names and subjects that are not ASCII come through any locale."""
    env = cli._env({"VLLM_SERIES_CACHE": str(copy_tree(world.cache, tmp_path / "cache"))})
    check_everything(cli, clone, project, wanted, env=env, base_env=clean_env(**extra))
    result = run_script("list", env=env, base_env=clean_env(**extra))
    assert (result.code, "Traceback" in result.err) == (0, False)
    assert run_script("show", "sched-log", "--json", env=env, base_env=clean_env(**extra)).document


def test_no_identity_and_no_home(cli, clone, wanted):
    env = {k: v for k, v in clean_env().items() if not k.startswith("GIT_")}
    for name in ("HOME", "USER", "LOGNAME", "XDG_CONFIG_HOME"):
        env.pop(name, None)
    result = run_script("apply", "--vllm", clone, env=cli._env({}), base_env=env)
    assert result.code == 0, result
    assert git(clone, "rev-parse", "HEAD") == wanted[0]


def test_no_home_and_no_cache_named(cli, tmp_path):
    """A user whom the system does not know, as in containers: no folder named `~` is made."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    import platformdirs
    from vllm_series.errors import SeriesError
    from vllm_series.store import cache_folder

    def ask() -> list[str]:
        for name in ("HOME", "XDG_CACHE_HOME", "VLLM_SERIES_CACHE"):
            os.environ.pop(name, None)
        try:
            return [str(cache_folder())]
        except SeriesError as error:
            return [error.kind, error.hint]

    assert platformdirs.__version__
    assert as_user(54321, ask) == ["environment", "name a folder with VLLM_SERIES_CACHE"]


def test_another_users_cache_serves(cli, world, wanted):
    """A cache that root filled, read by somebody else: git's ownership check must not stop the copy."""
    import tempfile

    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        copy_tree(world.cache, root / "cache")
        copy_tree(cli.project, root / "project")
        (root / "home").mkdir()
        os.chown(root / "home", 54321, 54321)
        env = cli._env(
            {
                "VLLM_SERIES_CACHE": str(root / "cache"),
                "VLLM_SERIES_DIR": str(root / "project"),
                "HOME": str(root / "home"),
            }
        )

        def apply() -> list[Any]:
            result = run_here("apply", "--into", root / "home/vllm", cwd=root, env=env)
            return [result.code, result.out, result.err]

        run_here("apply", "--into", root / "first", env=env)  # Imports all that is needed.
        code, _, err = as_user(54321, apply)
        assert code == 0, err
        head = subprocess.run(
            ["git", f"--git-dir={root}/home/vllm/.git", "log", "-4", "--format=%T"],
            capture_output=True,
            check=True,
            env=clean_env(GIT_CONFIG_COUNT="1", GIT_CONFIG_KEY_0="safe.directory", GIT_CONFIG_VALUE_0="*"),
        ).stdout.split()
        assert head[0].decode() == git(world.applied, "rev-parse", "HEAD^{tree}")


def test_a_repository_of_another_user(cli, clone, tmp_path):
    """git's own refusal, with its own remedy, which works."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    for path in (clone, clone / ".git"):
        os.chown(path, 54321, 54321)
    base = clean_env(HOME=str(tmp_path / "home"))
    base.pop("GIT_CONFIG_GLOBAL")
    (tmp_path / "home").mkdir()
    result = run_script("apply", "--vllm", clone, env=cli._env({}), base_env=base)
    assert result.code == 5, result
    assert "safe.directory" in result.err
    subprocess.run(["git", "config", "--global", "--add", "safe.directory", clone], env=base, check=True)
    result = run_script("apply", "--vllm", clone, env=cli._env({}), base_env=base)
    assert result.code == 0, result


def test_a_broken_user_configuration_is_not_read(cli, clone, tmp_path):
    base = clean_env(HOME=str(tmp_path / "home"))
    base.pop("GIT_CONFIG_GLOBAL")
    write(tmp_path, {"home/.gitconfig": "[broken\n"})
    assert run_script("apply", "--vllm", clone, env=cli._env({}), base_env=base).code == 0


@pytest.mark.parametrize(("program", "code"), [(None, 5), ("#!/bin/sh\necho git version 2.17.1\n", 5)])
def test_no_git_or_an_old_one(cli, clone, tmp_path, program, code):
    (tmp_path / "bin").mkdir()
    if program:
        write(tmp_path, {"bin/git": program})
        (tmp_path / "bin/git").chmod(0o755)
    result = run_script("doctor", env=cli._env({"PATH": str(tmp_path / "bin")}))
    assert result.code == code, result
    assert "2.34" in result.out
    if program is None:
        result = run_script("apply", "--vllm", clone, env=cli._env({"PATH": str(tmp_path / "bin")}))
        assert result.code == 5
        assert "git is not installed" in result.err


def test_clean_environment(monkeypatch):
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    env = clean_environment()
    left = {k for k in env if k.startswith("GIT_")}
    assert left == {
        "GIT_CONFIG_NOSYSTEM",
        "GIT_CONFIG_GLOBAL",
        "GIT_ATTR_NOSYSTEM",
        "GIT_TERMINAL_PROMPT",
        "GIT_LITERAL_PATHSPECS",
        "GIT_NO_REPLACE_OBJECTS",
    }
    assert env["LC_ALL"] == "C"
    assert "LANGUAGE" not in env


def test_open(clone, tmp_path):
    repository = Repository.open(clone)
    assert repository.work_tree == clone
    assert repository.find_commit("nothing") is None
    with pytest.raises(UsageError):
        repository.commit("nothing")
    with pytest.raises(UsageError):
        repository.find_commit("--upload-pack=evil")
    with pytest.raises(PreconditionError):
        Repository.open(clone / "vllm")
    with pytest.raises(PreconditionError):
        Repository.open(tmp_path / "missing")


def test_a_working_tree_is_removed_from_within(clone, tmp_path, monkeypatch):
    repository, tree = Repository.open(clone), tmp_path / "linked"
    for prepare in (lambda: None, lambda: shutil.rmtree(tree)):
        repository.add_worktree(tree, "HEAD")
        monkeypatch.chdir(tree)
        prepare()
        repository.remove_worktree(tree)
        assert not tree.exists()
        assert git(clone, "worktree", "list").count("\n") == 0
        monkeypatch.undo()


def test_missing_objects_are_no_bug(clone):
    """A damaged repository: exit 5 with the way to look at it."""
    git(clone, "repack", "-a", "-d", "--quiet")
    oid = git(clone, "rev-parse", "HEAD:vllm/worker.py")
    for pack in (clone / ".git/objects/pack").glob("*.pack"):
        data = pack.read_bytes()
        target = clone / ".git" / pack.name
        target.write_bytes(data)
        for part in pack.parent.glob(pack.stem + "*"):
            part.unlink()
        git(clone, "unpack-objects", "-q", data=data)
    (clone / ".git/objects" / oid[:2] / oid[2:]).unlink()
    from vllm_series.tree import CommitSource

    with pytest.raises(EnvironmentFaultError, match=r"vllm/worker.py is missing") as caught:
        CommitSource(Repository.open(clone), "HEAD").get("vllm/worker.py")
    assert "fsck" in caught.value.hint
