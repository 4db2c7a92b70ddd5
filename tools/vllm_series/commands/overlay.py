# SPDX-License-Identifier: Apache-2.0
"""``vllm-series overlay``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vllm_series.commands.apply import final_changes
from vllm_series.commands.fetch import bring
from vllm_series.compiled import check_compiles
from vllm_series.errors import EXIT_OK, UsageError
from vllm_series.installed import Installed, find_installed
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
    image: str | None = None
    onto: str | None = None
    dry_run: bool = False
    index: str = ""


def overlay(out: Output, series_dir: Path | None, options: OverlayOptions) -> int:
    """Put the series over an installed vLLM, or over the one in a container image."""
    if options.site_packages == (options.image is not None):
        raise UsageError(
            "overlay needs to know over what: --site-packages or --image TAG",
            hint="an installed wheel: vllm-series overlay --site-packages [PATH]",
        )
    if options.uninstall:
        return _uninstall(out, options)
    return _install(out, series_dir, options)


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
    installed = find_installed(options.path)
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
        out.say(
            "restart a running vLLM; take it out again with: vllm-series overlay --site-packages --uninstall"
        )
    for item in payload.skipped:
        out.note(f"{item.name} is not needed: {item.reason}")
    return out.finish(EXIT_OK, action=action, site=str(installed.site), manifest=made.document())


def _uninstall(out: Output, options: OverlayOptions) -> int:
    installed = find_installed(options.path)
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
