# SPDX-License-Identifier: Apache-2.0
"""``vllm-series overlay``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_series.commands.apply import final_changes
from vllm_series.commands.fetch import bring
from vllm_series.compiled import check_compiles
from vllm_series.container.files import folder_files, manifest
from vllm_series.container.folder import write_folder
from vllm_series.container.spec import make_container, release_of
from vllm_series.errors import EXIT_OK, UsageError
from vllm_series.installed import Installed, require_installed
from vllm_series.locks import locked
from vllm_series.output import Output, plural
from vllm_series.overlay import FOLDER, plan_overlay, plan_removal, read_manifest
from vllm_series.payload import Payload, make_payload, supported_base
from vllm_series.plan import Target, make_plan
from vllm_series.project import find_project
from vllm_series.store import Store
from vllm_series.transaction import recover, replace_files


@dataclass(frozen=True)
class OverlayOptions:
    """The arguments of ``overlay``, as documented on the command line."""

    path: Path | None = None
    site_packages: bool = False
    uninstall: bool = False
    dry_run: bool = False
    index: str = ""
    image: str | None = None
    onto: str | None = None
    container: Mapping[str, Any] = field(default_factory=dict)


def overlay(out: Output, series_dir: Path | None, options: OverlayOptions) -> int:
    """Put the series over an installed vLLM, or over the one in a container image."""
    if options.site_packages == (options.image is not None):
        raise UsageError(
            "overlay needs to know over what: --site-packages or --image TAG",
            hint="an installed wheel: vllm-series overlay --site-packages [PATH]",
        )
    if options.site_packages:
        _refuse_image_options(options)
    if options.image is not None:
        return _image(out, series_dir, options, options.image)
    if options.uninstall:
        return _uninstall(out, options)
    return _install(out, series_dir, options)


#: What the options for a container are when they are not given.
_NOT_GIVEN: Mapping[str, tuple[str, object]] = {
    "serve": ("--serve", ""),
    "environment": ("--env", ()),
    "gpus": ("--gpus", "all"),
    "shm": ("--shm-size", None),
    "remove_torchcodec": ("--remove-torchcodec or --keep-torchcodec", None),
    "site": ("--container-site", ""),
}


def _refuse_image_options(options: OverlayOptions) -> None:
    """An option that would be ignored is a misunderstanding."""
    given = ["--onto"] if options.onto is not None else []
    given += [
        name
        for key, (name, default) in _NOT_GIVEN.items()
        if key in options.container and options.container[key] != default
    ]
    if given:
        raise UsageError(
            f"{given[0]} goes with --image",
            hint="an installed vLLM is told by its folder alone; leave it out",
        )


def payload_of(out: Output, series_dir: Path | None, ref: str, what: str, index: str) -> Payload:
    """What the series changes in the release ``ref``; ``what`` names the thing that is that release."""
    project = find_project(series_dir)
    base = supported_base(project, ref, what)
    store = Store.default()
    commit = bring(out, project, store, base.ref, index).commit
    plan = make_plan(project, Target.of(project, store.repository, commit), None, store=store)
    changes = final_changes(plan)
    check_compiles(changes, store.folder)
    return make_payload(base, plan, changes)


def _install(out: Output, series_dir: Path | None, options: OverlayOptions) -> int:
    installed = require_installed(options.path)
    payload = payload_of(out, series_dir, installed.ref, str(installed.site), options.index)
    with _opened(out, installed):
        old = read_manifest(installed.site)
        made, changes = plan_overlay(installed, old, payload)
        if not options.dry_run:
            replace_files(installed.site, FOLDER, changes)
    count = f"{plural(len(payload.files), 'file')} of {plural(len(payload.patches), 'patch')}"
    if not changes:
        action, text = "unchanged", f"nothing to do: {installed.site} has exactly this series ({count})"
    elif options.dry_run:
        action, text = "dry run", f"would put {count} into {installed.site}; nothing was changed"
    else:
        action, text = "replaced" if old else "installed", f"ok: {count} put into {installed.site}"
    out.say(text)
    if action in ("installed", "replaced"):
        words = ["vllm-series", "overlay", "--site-packages", "--uninstall"]
        words += [str(options.path)] if options.path is not None else []
        out.say(f"restart a running vLLM; take it out again with: {shlex.join(words)}")
    for item in payload.skipped:
        out.note(f"{item.name} is not needed: {item.reason}")
    return out.finish(EXIT_OK, action=action, site=str(installed.site), manifest=made.document())


def _uninstall(out: Output, options: OverlayOptions) -> int:
    installed = require_installed(options.path)
    with _opened(out, installed):
        manifest = read_manifest(installed.site)
        if manifest is None:
            out.say(f"nothing to do: {installed.site} has no overlay")
            return out.finish(EXIT_OK, action="unchanged", site=str(installed.site), restored=[])
        upgraded = manifest.distribution != installed.distribution
        changes = plan_removal(installed, manifest)
        if not options.dry_run:
            replace_files(installed.site, FOLDER, changes)
    restored = [] if upgraded else sorted(p for p, f in manifest.files.items() if f.base is not None)
    if options.dry_run:
        out.say(f"would restore {plural(len(restored), 'file')} in {installed.site}; nothing was changed")
    elif upgraded:
        out.say(
            f"ok: vLLM {installed.version} was put over the overlay for {manifest.base_ref}; "
            "what was left of it is removed"
        )
    else:
        out.say(f"ok: {plural(len(restored), 'file')} restored in {installed.site}, as before the overlay")
    action = "dry run" if options.dry_run else "cleared" if upgraded else "uninstalled"
    return out.finish(EXIT_OK, action=action, site=str(installed.site), restored=restored)


def _image(out: Output, series_dir: Path | None, options: OverlayOptions, image: str) -> int:
    if options.uninstall:
        raise UsageError("--uninstall goes with --site-packages; a folder for an image can simply be removed")
    container = make_container(image, **options.container)
    named = release_of(image)
    ref = options.onto or named
    if ref is None:
        raise UsageError(
            f"{image} does not say which release of vLLM it has",
            hint="take an image with a release tag, or name the release with --onto v0.33.0",
        )
    folder = Path(os.path.abspath(options.path or "vllm-series-overlay"))  # noqa: PTH100  `..` goes as well
    if not folder.name:
        raise UsageError(f"{folder} cannot be written as a whole", hint="name a new folder")
    payload = payload_of(out, series_dir, ref, image, options.index)
    files = folder_files(container, payload)
    if named not in (None, ref):
        out.warn(f"{image} is named after vLLM {named}, and --onto says {ref}: check it before it is started")
    if not options.dry_run:
        write_folder(folder, files)
    out.say(
        f"{'would write' if options.dry_run else 'ok:'} {folder}: {plural(len(payload.files), 'file')} of "
        f"{plural(len(payload.patches), 'patch')} over {image}"
    )
    if not options.dry_run:
        script = shlex.quote(f"{folder}/docker-run.sh")
        out.say(f"check it:  {script} --verify          (or podman-run.sh)")
        out.say(f"start it:  MODEL=/path/to/checkpoint {script}")
    if container.remove_torchcodec:
        out.note("torchcodec is removed before vLLM starts: the image has CUDA 12, and it wants CUDA 13")
    return out.finish(
        EXIT_OK,
        action="dry run" if options.dry_run else "written",
        folder=str(folder),
        files=sorted(files),
        remove_torchcodec=container.remove_torchcodec,
        manifest=manifest(container, payload),
    )


@contextmanager
def _opened(out: Output, installed: Installed) -> Iterator[None]:
    """The installed vLLM, locked against other runs, with interrupted ones taken back."""
    site = installed.site
    with locked(site / f".{FOLDER}.lock", str(site), keep=False):
        done = recover(site, FOLDER)
        if done.undone:
            out.note("an interrupted run was taken back")
        for path in done.left:
            out.warn(f"{site / path} was changed since an interrupted run, and is left as it is")
        yield
