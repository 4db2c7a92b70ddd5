# SPDX-License-Identifier: Apache-2.0
"""``overlay --image``: the folder, its scripts run with stand-ins for the engines, and its check.

No container engine is run here. The stand-ins write down their arguments.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from series_support import RELEASE_32, RELEASE_33, files_of
from wheel_support import unpack, wheel

IMAGE = "vllm/vllm-openai:v0.33.0"
SITE = "/usr/local/lib/python3.12/dist-packages"
FILES = ["vllm/engine.py", "vllm/log.py", "vllm/scheduler.py", "vllm/worker.py"]


@pytest.fixture
def folder(cli, tmp_path):
    target = tmp_path / "out put"
    result = cli(
        "overlay", "--image", IMAGE, target,
        "--serve", "--pipeline-parallel-size 6 --engram-config '{\"host_file_gather\": true}'",
        "--env", "VLLM_PP_LAYER_PARTITION=8,8,8,8,8,8", "--env", "ODD=a \"b\" $c 'd'",
        "--gpus", "0,2",
    )  # fmt: skip
    assert result.code == 0, result
    return target


@pytest.fixture
def engines(tmp_path):
    """A folder with stand-ins for docker and podman, and what they were called with."""
    place = tmp_path / "bin"
    place.mkdir()
    for name in ("docker", "podman"):
        (place / name).write_text(
            f"#!{sys.executable}\nimport json, sys\n"
            f"open({str(tmp_path / 'calls')!r}, 'a').write(json.dumps([{name!r}, *sys.argv[1:]]) + chr(10))\n"
        )
        (place / name).chmod(0o755)
    cdi = tmp_path / "cdi"
    cdi.mkdir()
    (cdi / "nvidia.yaml").write_text("kind: nvidia.com/gpu\n")
    (tmp_path / "model").mkdir()

    def call(script: Path, *args: str, **env: str):
        (tmp_path / "calls").write_text("")
        done = subprocess.run(
            ["bash", str(script), *args],
            env={
                "PATH": f"{place}:{os.environ['PATH']}",
                "MODEL": str(tmp_path / "model"),
                "VLLM_CDI_DIRS": str(cdi),
                **env,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        return done, [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]

    return call


def mounts(call: list[str]) -> dict[str, str]:
    """Source by target of a call's mounts."""
    found = {}
    for number, argument in enumerate(call):
        if argument == "--mount":
            fields = dict(f.partition("=")[::2] for f in call[number + 1].split(","))
            assert fields["type"] == "bind"
            assert "readonly" in fields
            found[fields["target"]] = fields["source"]
    return found


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_every_file_is_mounted_and_every_argument_arrives(folder, engines, engine, applied, tmp_path):
    done, [call] = engines(folder / f"{engine}-run.sh", "--max-model-len", "1 2")
    assert done.returncode == 0, done.stderr
    bound = mounts(call)
    assert bound.pop("/model") == str(tmp_path / "model")
    assert sorted(bound) == [f"{SITE}/{path}" for path in FILES]
    for path in FILES:
        source = Path(bound[f"{SITE}/{path}"])
        assert source.is_file()
        assert source.read_bytes() == (applied / path).read_bytes()
    assert call[:2] == [engine, "run"]
    assert call[call.index(IMAGE) + 1 :] == [
        "/model", "--pipeline-parallel-size", "6", "--engram-config", '{"host_file_gather": true}',
        "--max-model-len", "1 2",
    ]  # fmt: skip
    assert "--ipc=host" in call
    assert "VLLM_PP_LAYER_PARTITION=8,8,8,8,8,8" in call
    assert "ODD=a \"b\" $c 'd'" in call


def test_each_engine_gets_the_devices_its_own_way(folder, engines):
    _, [docker] = engines(folder / "docker-run.sh")
    assert docker[docker.index("--gpus") + 1] == '"device=0,2"'
    _, [podman] = engines(folder / "podman-run.sh")
    assert [a for a in podman if a.startswith("--device")] == [
        "--device=nvidia.com/gpu=0",
        "--device=nvidia.com/gpu=2",
    ]
    assert "--gpus" not in podman


def test_podman_without_a_cdi_description(folder, engines, tmp_path):
    done, calls = engines(folder / "podman-run.sh", VLLM_CDI_DIRS=str(tmp_path / "none"))
    assert (done.returncode, calls) == (5, [])
    assert "nvidia-ctk cdi generate" in done.stderr


@pytest.mark.parametrize("kind", ["missing", "folder", "link"])
def test_a_source_that_is_no_regular_file_starts_nothing(folder, engines, kind):
    path = folder / "files/vllm/log.py"
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to("engine.py")
    for script in ("docker-run.sh", "podman-run.sh"):
        done, calls = engines(folder / script)
        assert (done.returncode, calls) == (4, [])
        assert "vllm/log.py is no regular file" in done.stderr


def test_no_model_and_a_folder_that_cannot_be_mounted(folder, engines, tmp_path):
    done, calls = engines(folder / "docker-run.sh", MODEL=str(tmp_path / "nothing"))
    assert (done.returncode, calls) == (2, [])
    moved = folder.rename(tmp_path / "a,b")
    done, calls = engines(moved / "docker-run.sh")
    assert (done.returncode, calls) == (4, [])
    assert "comma" in done.stderr


def test_dry_run_of_a_script_prints_a_line_that_a_shell_reads(folder, engines):
    done, calls = engines(folder / "docker-run.sh", DRY_RUN="1")
    assert calls == []
    _, [real] = engines(folder / "docker-run.sh")
    printed = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {done.stdout.strip()}"], capture_output=True, check=True, text=True
    )
    assert printed.stdout.split("\0")[:-1] == real


def test_offloaded_cache_needs_room_in_shared_memory(folder, engines, cli, tmp_path):
    done, calls = engines(folder / "docker-run.sh", "--kv-offloading-size", "99999999")
    assert (done.returncode, calls) == (4, [])
    assert "/dev/shm has" in done.stderr
    own = tmp_path / "own"
    serve = "--kv-offloading-size=64"
    assert cli("overlay", "--image", IMAGE, own, "--serve", serve, "--shm-size", "64").code == 2
    assert cli("overlay", "--image", IMAGE, own, "--serve", serve, "--shm-size", "65").code == 0
    _, [call] = engines(own / "docker-run.sh")
    assert "--shm-size=65g" in call
    assert "--ipc=host" not in call


def test_torchcodec_is_taken_out_before_the_server_starts(cli, engines, tmp_path):
    own = tmp_path / "own"
    result = cli("overlay", "--image", f"{IMAGE}-cu129", own, "--serve", "--port 8000", "--json")
    assert result.document["remove_torchcodec"] is True
    _, [call] = engines(own / "docker-run.sh", "more")
    shell, name, *rest = call[call.index("-c") + 1 :]
    assert call[call.index("--entrypoint") + 1] == "/bin/sh"
    assert (name, rest) == ("vllm", ["/model", "--port", "8000", "more"])
    # The line itself, with stand-ins for what it calls.
    place = tmp_path / "inside"
    place.mkdir()
    for tool in ("python3", "vllm", "uv"):
        (place / tool).write_text(f'#!/bin/sh\necho {tool} "$@" >> {tmp_path}/inside.log\n')
        (place / tool).chmod(0o755)
    subprocess.run(["/bin/sh", "-c", shell, name, *rest], env={"PATH": f"{place}:/bin"}, check=True)
    lines = (tmp_path / "inside.log").read_text().splitlines()
    assert lines[1:] == ["python3 -m pip uninstall -y torchcodec", "vllm serve /model --port 8000 more"]
    assert "torchcodec" in (own / "Dockerfile").read_text()


def test_compose_says_the_same_as_the_scripts(folder):
    service = yaml.safe_load((folder / "compose.yaml").read_text())["services"]["vllm"]
    assert service["image"] == IMAGE
    assert service["command"] == [
        "/model", "--pipeline-parallel-size", "6", "--engram-config", '{"host_file_gather": true}',
    ]  # fmt: skip
    # Compose reads a doubled dollar sign as one.
    assert service["environment"]["ODD"] == "a \"b\" $$c 'd'"
    assert service["ipc"] == "host"
    [device] = service["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "device_ids": ["0", "2"], "capabilities": ["gpu"]}
    model, *rest = service["volumes"]
    assert model["target"] == "/model"
    assert [v["target"] for v in rest] == [f"{SITE}/{path}" for path in FILES]
    for volume in rest:
        assert (folder / volume["source"]).is_file()
        assert volume["bind"] == {"create_host_path": False}
        assert volume["read_only"] is True


def test_shell_files_have_no_syntax_error(folder):
    for script in ("docker-run.sh", "podman-run.sh"):
        subprocess.run(["bash", "-n", str(folder / script)], check=True)
    for line in (folder / "Dockerfile").read_text().replace("\\\n", "").splitlines():
        if line.startswith("RUN "):
            subprocess.run(["/bin/sh", "-n", "-c", line.removeprefix("RUN ")], check=True)


def test_the_scripts_check_the_image_and_the_mounts(folder, engines):
    done, calls = engines(folder / "docker-run.sh", "--verify")
    assert done.returncode == 0, done.stderr
    bare, mounted = calls
    assert bare[-3:] == [IMAGE, "/overlay/verify.py", "--beneath"]
    assert list(mounts(bare)) == ["/overlay"]
    assert mounted[-2:] == [IMAGE, "/overlay/verify.py"]
    assert len(mounts(mounted)) == len(FILES) + 1


# -- the check that runs in the container: the same script on a folder as the image has it ----------------


@pytest.fixture
def inside(cli, tmp_path):
    """Runs verify.py on an installed vLLM in the place that the folder was written for."""
    site = unpack(wheel(tmp_path / "w", "0.33.0", RELEASE_33), tmp_path / "image")
    folder = tmp_path / "overlay"
    assert cli("overlay", "--image", IMAGE, folder, "--container-site", str(site)).code == 0

    def check(*args: str, path: Path = site):
        done = subprocess.run(
            [sys.executable, str(folder / "verify.py"), *args],
            env={"PYTHONPATH": str(path)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == ""
        return done.returncode, done.stdout

    check.site, check.folder = site, folder
    return check


def mount(inside) -> None:
    """What a mount shows: the file's content, over a RECORD of what is beneath."""
    for path in FILES:
        shutil.copy(inside.folder / "files" / path, inside.site / path)


def test_check_of_an_image_and_of_mounts(inside):
    code, text = inside("--beneath")
    assert (code, text.startswith("ok: ")) == (0, True)
    code, text = inside()
    assert code == 1
    assert "vllm/engine.py: is the release's file: it is not mounted" in text
    assert "vllm/log.py: is not there" in text
    mount(inside)
    assert inside()[0] == 0
    assert inside("--replaced")[0] == 0
    code, text = inside("--beneath")
    assert code == 1
    assert "is the overlay's file already" in text


def test_check_finds_what_is_wrong(inside, tmp_path):
    mount(inside)
    (inside.site / "vllm/log.py").unlink()
    (inside.site / "vllm/log.py").mkdir()
    code, text = inside()
    assert code == 1
    assert "is a folder: its source was missing on the host" in text
    (inside.site / "vllm/log.py").rmdir()
    mount(inside)
    with (inside.site / "vllm/worker.py").open("a") as stream:
        stream.write("# edited\n")
    assert "vllm/worker.py: is another file" in inside()[1]
    mount(inside)
    record = inside.site / "vllm-0.33.0.dist-info/RECORD"
    record.write_text(record.read_text().replace("vllm/engine.py,sha256=", "vllm/engine.py,sha256=x"))
    assert "beneath the mount lies another file" in inside()[1]


def test_check_finds_another_release_place_and_old_bytecode(inside, tmp_path):
    import py_compile

    for name in ("vllm/engine.py", "vllm/worker.py"):
        py_compile.compile(
            str(inside.site / name), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
        )
    mount(inside)
    assert inside()[1].count("old bytecode") == 2
    other = unpack(wheel(tmp_path / "w", "0.32.0", RELEASE_32), tmp_path / "other")
    code, text = inside(path=other)
    assert code == 1
    assert "--container-site" in text
    assert "the image has vllm-0.32.0" in text
    assert inside(path=tmp_path)[1] == "error: this Python has no vllm\n"
    assert inside("--nonsense")[0] == 2


# -- the folder as such -----------------------------------------------------------------------------------


def test_written_anew_and_never_over_something_else(cli, folder, tmp_path):
    before = files_of(folder)
    (folder / "files/vllm/extra.py").write_text("left over\n")
    arguments = ("overlay", "--image", IMAGE, folder)
    assert cli(*arguments, "--dry-run").code == 0
    assert (folder / "files/vllm/extra.py").exists()
    assert cli(*arguments).code == 0
    assert files_of(folder).keys() == before.keys()
    other = tmp_path / "mine"
    other.mkdir()
    (other / "notes").write_text("mine\n")
    result = cli("overlay", "--image", IMAGE, other)
    assert result.code == 4
    assert files_of(other) == {"notes": ("file 644", b"mine\n")}
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


def test_refusals(cli, tmp_path):
    result = cli("overlay", "--image", "vllm/vllm-openai:latest", tmp_path / "x")
    assert result.code == 2
    assert "--onto" in result.err
    result = cli("overlay", "--image", "vllm/vllm-openai:v0.20.0", tmp_path / "x")
    assert result.code == 4
    assert cli("overlay", "--image", IMAGE, tmp_path / "x", "--uninstall").code == 2
    assert cli("overlay", "--image", IMAGE, "--site-packages").code == 2
    assert not (tmp_path / "x").exists()
    assert cli("overlay", "--image", "mine:latest", "--onto", "v0.32.0", tmp_path / "x").code == 0


def test_a_start_from_a_folder_that_cdpath_knows(folder, engines, tmp_path, monkeypatch):
    """With CDPATH set, cd may go elsewhere, and prints where it went."""
    (tmp_path / "decoy" / folder.name).mkdir(parents=True)
    monkeypatch.chdir(folder.parent)
    done, [call] = engines(Path(folder.name, "docker-run.sh"), CDPATH=str(tmp_path / "decoy"))
    assert done.returncode == 0, done.stderr
    assert mounts(call)[f"{SITE}/vllm/log.py"] == str(folder / "files/vllm/log.py")


def test_a_start_through_a_link(folder, engines, tmp_path):
    link = tmp_path / "start"
    link.symlink_to(folder / "docker-run.sh")
    done, [call] = engines(link)
    assert done.returncode == 0, done.stderr
    assert mounts(call)[f"{SITE}/vllm/log.py"] == str(folder / "files/vllm/log.py")


@pytest.mark.parametrize("size", ["lots", "1e2", "nan", ""])
def test_an_offload_size_that_is_none_starts_nothing(folder, engines, size):
    done, calls = engines(folder / "docker-run.sh", f"--kv-offloading-size={size}")
    assert (done.returncode, calls) == (2, [])
    assert "is no number of GiB" in done.stderr


def test_the_commands_as_printed(cli, engines, tmp_path):
    target = tmp_path / "it's $odd"
    text = cli("overlay", "--image", IMAGE, target).out
    for label, more in (("check it:  ", "--verify"), ("start it:  ", "")):
        words = shlex.split(text.partition(label)[2].partition("\n")[0].partition("(")[0])
        assert str(target / "docker-run.sh") in words
        assert more in {*words, ""}


def test_another_release_than_the_tag_says(cli, tmp_path):
    for onto, warnings in (("v0.32.0", 1), ("v0.33.0", 0)):
        result = cli("overlay", "--image", IMAGE, tmp_path / "x", "--onto", onto, "--dry-run", "--json")
        assert result.code == 0
        assert len(result.document["warnings"]) == warnings


def test_the_root_is_not_written(cli):
    result = cli("overlay", "--image", IMAGE, "/")
    assert result.code == 2
    assert "name a new folder" in result.err
