# SPDX-License-Identifier: Apache-2.0
"""The Python environment that vLLM's tests run in.

It lies in the cache folder under a name made of its requirement files' digest, so that changed lists make
a new one. A virtual environment cannot be moved, so a file written last marks a whole one; what lacks it
is a killed creation and is made anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vllm_series.errors import EnvironmentFaultError
from vllm_series.locks import locked

#: Names an environment to use instead: the folder of a virtual environment.
ENVIRONMENT_VARIABLE = "VLLM_SERIES_ENV"
#: Names a further package index for ``env create``, such as PyTorch's for CPU builds.
INDEX_VARIABLE = "VLLM_SERIES_EXTRA_INDEX_URL"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"

#: The files that belong to the environment.
FILES = Path(__file__).resolve().parent / "cpuenv"
PYTHON_PATH = FILES / "python-path"
MODELS = FILES / "models"
MARKER = "vllm-series-environment.json"

#: Packages whose versions a result depends on most.
NAMED_PACKAGES = ("torch", "triton", "transformers", "pytest")

_PROBE = """
import hashlib, importlib.metadata as m, json, platform, sys
found = {}
for d in m.distributions():
    name = d.metadata["Name"]
    if name:
        found.setdefault(name.lower().replace("_", "-"), d.version)
rows = "".join(f"{n}=={v}\\n" for n, v in sorted(found.items()))
print(json.dumps({
    "python": platform.python_version(),
    "platform": f"{sys.platform} {platform.machine()}",
    "packages": {n: found[n] for n in sys.argv[1:] if n in found},
    "digest": hashlib.sha256((sys.version + rows).encode()).hexdigest(),
}))
"""


@dataclass(frozen=True)
class Environment:
    """A Python environment, as found by asking its interpreter.

    Attributes:
        folder: The virtual environment.
        python: Version of its Python.
        platform: System and machine.
        packages: Versions of :data:`NAMED_PACKAGES`, as far as installed.
        digest: SHA-256 over Python's version and every installed package's.

    """

    folder: Path
    python: str
    platform: str
    packages: dict[str, str]
    digest: str

    @property
    def interpreter(self) -> Path:
        """Its Python."""
        return interpreter(self.folder)

    def document(self) -> dict[str, object]:
        """What evidence and JSON say of it; no path of this machine."""
        return {"python": self.python, **self.packages, "platform": self.platform, "digest": self.digest}


def interpreter(folder: Path) -> Path:
    """The Python of a virtual environment."""
    return folder / "bin" / "python"


def requirements_digest(files: Path = FILES) -> str:
    """SHA-256 over the requirement files and this Python's version."""
    digest = hashlib.sha256(f"{platform.python_implementation()} {sys.version_info[:2]}\n".encode())
    for name in ("requirements.txt", "constraints.txt"):
        digest.update((files / name).read_bytes())
    return digest.hexdigest()


def own_folder(cache: Path, files: Path = FILES) -> Path:
    """Where the environment for the present requirement files lies, made or not."""
    return cache / "env" / f"cpu-{requirements_digest(files)[:16]}"


def named_folder() -> Path | None:
    """The environment that :data:`ENVIRONMENT_VARIABLE` names, or None."""
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    return Path(named).expanduser().absolute() if named else None


def is_whole(folder: Path) -> bool:
    """Whether the creation of an environment came to its end."""
    return (folder / MARKER).is_file()


def find(cache: Path) -> Environment | None:
    """The environment to use, or None if it has to be made first.

    Raises:
        EnvironmentFaultError: The one named by :data:`ENVIRONMENT_VARIABLE` cannot be used.

    """
    named = named_folder()
    if named is not None:
        return probe(named)
    folder = own_folder(cache)
    return probe(folder) if is_whole(folder) else None


def probe(folder: Path) -> Environment:
    """Ask an environment's interpreter what it is.

    Raises:
        EnvironmentFaultError: There is no interpreter, or it fails.

    """
    python = interpreter(folder)
    hint = f"make it anew: vllm-series env remove && vllm-series env create; or unset {ENVIRONMENT_VARIABLE}"
    try:
        result = subprocess.run(
            [str(python), "-I", "-c", _PROBE, *NAMED_PACKAGES], capture_output=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentFaultError(f"{folder} is no usable Python environment: {error}", hint=hint) from None
    if result.returncode != 0:
        last = (result.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"])[-1]
        raise EnvironmentFaultError(f"{python} fails: {last}", hint=hint)
    row = json.loads(result.stdout)
    return Environment(folder, row["python"], row["platform"], row["packages"], row["digest"])


def create(cache: Path, *, extra_index: str = "", files: Path = FILES) -> Iterator[str]:
    """Make the environment for the present requirement files; nothing happens if it is there.

    Args:
        cache: The cache folder.
        extra_index: Address of a further package index; empty for :data:`INDEX_VARIABLE`'s, or none.
        files: Folder of the requirement files.

    Yields:
        The installer's lines of output, as they come.

    Raises:
        EnvironmentFaultError: It cannot be made. Nothing half made is ever used.
        PreconditionError: Another process makes it.

    """
    folder = own_folder(cache, files)
    with locked(folder.with_name(f"{folder.name}.lock"), f"the environment {folder}"):
        if is_whole(folder):
            return
        shutil.rmtree(folder, ignore_errors=True)
        yield f"making {folder}"
        yield from _run([sys.executable, "-m", "venv", str(folder)], "a virtual environment")
        index = extra_index or os.environ.get(INDEX_VARIABLE, "")
        yield from _run(
            [
                str(interpreter(folder)), "-m", "pip", "install", "--disable-pip-version-check", "--no-input",
                "--progress-bar", "off", "-r", str(files / "requirements.txt"),
                "-c", str(files / "constraints.txt"), *(["--extra-index-url", index] if index else []),
            ],
            "the packages",
        )  # fmt: skip
        made = probe(folder)
        marker = folder / MARKER
        unfinished = marker.with_suffix(".new")
        unfinished.write_text(json.dumps({"requirements": requirements_digest(files), **made.document()}))
        unfinished.rename(marker)


def _run(command: list[str], what: str) -> Iterator[str]:
    """Run an installer, its output line by line."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    lines: list[str] = []
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        for raw in process.stdout:
            line = raw.decode("utf-8", "replace").rstrip()
            lines.append(line)
            yield line
        process.wait()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode != 0:
        raise EnvironmentFaultError(f"cannot install {what}: {_cause(lines)}", hint=_hint(lines))


def _cause(lines: list[str]) -> str:
    errors = [line for line in lines if line.startswith(("ERROR:", "Error:"))]
    return (errors or [line for line in lines if line.strip()] or ["no message"])[0]


def _hint(lines: list[str]) -> str:
    text = "\n".join(lines)
    if "nvidia-" in text or "cuda-" in text or "No matching distribution found for torch" in text:
        return (
            "the package index has no CPU build of torch; name one that has: "
            f"vllm-series env create --extra-index-url {CPU_INDEX}"
        )
    if "No space left" in text:
        return "free about 3 GB in the cache folder, or name another one with VLLM_SERIES_CACHE"
    return f"an environment made by hand can be named with {ENVIRONMENT_VARIABLE}"


def remove(cache: Path, *, every: bool = False) -> list[Path]:
    """Remove the environment for the present requirement files, or every one in the cache.

    Returns:
        The removed folders. One that :data:`ENVIRONMENT_VARIABLE` names is never removed.

    """
    folders = sorted((cache / "env").glob("cpu-*/")) if every else [own_folder(cache)]
    removed = []
    for folder in folders:
        if folder.is_dir():
            with locked(folder.with_name(f"{folder.name}.lock"), f"the environment {folder}"):
                (folder / MARKER).unlink(missing_ok=True)
                shutil.rmtree(folder)
            folder.with_name(f"{folder.name}.lock").unlink(missing_ok=True)
            removed.append(folder)
    return removed
