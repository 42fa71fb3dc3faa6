"""Starting a run: from the arguments of ``init`` and the environment to a recording process."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stepwell.journal import errors
from stepwell.journal.careful import plain_mapping
from stepwell.journal.errors import StepwellError
from stepwell.journal.settings import warn_setting, warn_unknown_settings
from stepwell.journal.system import boot_id
from stepwell.telemetry import identity
from stepwell.telemetry.claims import read_claim
from stepwell.telemetry.launch import Launch, claim_attempt, find_launch
from stepwell.telemetry.notices import is_quiet, print_start
from stepwell.telemetry.place import Place, find_place
from stepwell.telemetry.recorder import Recorder
from stepwell.telemetry.run import Run, activate, finish_active
from stepwell.telemetry.run_document import RunDocument
from stepwell.telemetry.runtime import start_watch
from stepwell.telemetry.script_name import script_name
from stepwell.telemetry.stack_watch import watch_stacks

MODES = ("", "on", "off")


def start(
    name: str | None,
    dir: str | os.PathLike[str] | None,
    config: Any,
    tags: Iterable[str],
    run_id: str | None,
    resume: bool,
    quiet: bool | None,
) -> Run:
    """What ``init`` does, with its arguments."""
    plain = _config(config)
    about = _about(name, plain, tags)
    if not isinstance(resume, bool):
        raise StepwellError(f"resume is {resume!r}: write True or False")
    if quiet is not None and not isinstance(quiet, bool):
        raise StepwellError(f"quiet must be True, False or None, got {quiet!r}")
    folder = _root(dir)
    if _mode() == "off":
        return _disabled(about, plain, folder)
    try:
        return _open(about, plain, folder, run_id, resume, is_quiet() if quiet is None else quiet)
    except StepwellError:
        raise
    except Exception as error:
        errors.report("init", error)
        return _disabled(about, plain, folder)


def _disabled(about: dict[str, Any], config: dict[str, Any], folder: Path) -> Run:
    """A run that records nothing."""
    return Run(
        id="off",
        name=about["name"] or "off",
        path=folder,
        attempt=0,
        rank=0,
        recorder=None,
        disabled=True,
        config=config,
        tags=about["tags"],
    )


def _open(
    about: dict[str, Any],
    config: dict[str, Any],
    folder: Path,
    run_id: str | None,
    resume: bool,
    quiet: bool,
) -> Run:
    place = find_place(os.environ)
    errors.set_quiet(place.rank != 0)
    warn_unknown_settings(os.environ)
    strict = os.environ.get("STEPWELL_STRICT", "")
    if strict not in ("", "0", "1"):
        warn_setting("STEPWELL_STRICT", strict, "1, or leave it unset")
    if about["name"] is None and run_id is None and not os.environ.get("STEPWELL_RUN_ID"):
        about["name"] = script_name()
    launch = _find_launch(folder, place, run_id, about["name"])
    path = folder / launch.run_id
    attempt, obstacle = _attempt(path, launch, resume)
    finish_active()
    process = f"rank-{place.rank:05d}.attempt-{attempt}.pid-{os.getpid()}"
    recorder = Recorder(path, process, _place_of(place, launch, attempt))
    document = RunDocument(path, launch.run_id, place, attempt, about)
    run = Run(
        id=launch.run_id,
        name=about["name"] or launch.run_id,
        path=path,
        attempt=attempt,
        rank=place.rank,
        recorder=recorder,
        world_size=place.world_size,
        document=document,
        quiet=quiet or place.rank != 0 or place.launcher == "starter" or obstacle is not None,
        config=config,
        tags=about["tags"],
    )
    activate(run, recorder)
    if obstacle is not None:
        recorder.journal.fail(obstacle)
    if place.rank == 0 and obstacle is None:
        with contextlib.suppress(OSError):
            document.write()
    recorder.pump.run_soon(lambda: document.complete(recorder.pump.is_ending))
    recorder.pauses = start_watch(recorder)
    recorder.stacks = watch_stacks(recorder)
    if os.environ.get("STEPWELL_EXPORTERS"):
        from stepwell.telemetry.exporter_loading import add_from_environment

        add_from_environment(run)
    if not run.quiet:
        print_start(path)
    return run


def _config(config: Any) -> dict[str, Any]:
    try:
        return identity.config_to_dict(config)
    except TypeError as error:
        raise StepwellError(str(error)) from None


def _about(name: Any, config: dict[str, Any], tags: Any) -> dict[str, Any]:
    if name is not None and not isinstance(name, str):
        raise StepwellError(f"name is {name!r}: write a string, such as init('my training')")
    words = list(tags) if isinstance(tags, Iterable) else [tags]
    if isinstance(tags, str) or not all(isinstance(word, str) for word in words):
        raise StepwellError(f"tags is {tags!r}: write a list of strings, such as tags=['baseline']")
    # Masked last: what became a dict or a text on the way is looked at too.
    return {"name": name, "tags": words, "config": identity.mask(plain_mapping(config))}


def _root(dir: str | os.PathLike[str] | None) -> Path:
    chosen = dir if dir is not None else os.environ.get("STEPWELL_DIR") or "runs"
    if not isinstance(chosen, str | os.PathLike):
        raise StepwellError(f"dir is {dir!r}: write a path, such as dir='runs'")
    path = Path(chosen).expanduser()
    return path if path.is_absolute() else Path(identity.working_folder()) / path


def _mode() -> str:
    mode = os.environ.get("STEPWELL_MODE", "").strip().lower()
    if mode not in MODES:
        errors.set_quiet(find_place(os.environ).rank != 0)
        warn_setting("STEPWELL_MODE", mode, "off, or leave it unset to record")
    return mode


def _find_launch(root: Path, place: Place, run_id: str | None, name: str | None) -> Launch:
    try:
        return find_launch(root, place, run_id=run_id, name=name, environ=os.environ, argv=sys.argv)
    except ValueError as error:
        raise StepwellError(str(error)) from None


def _attempt(path: Path, launch: Launch, resume: bool) -> tuple[int, OSError | None]:
    """The number of this attempt, and what kept it from being claimed, if anything did."""
    if not resume:
        first = read_claim(path / "attempts" / "0.json")
        if first is not None and first.get("token") != launch.token:
            raise StepwellError(
                f"run {launch.run_id!r} exists already in {path.parent}: choose another run_id, "
                "or leave out resume=False to go on with it as its next attempt"
            )
    try:
        return claim_attempt(path, launch.token), None
    except OSError as error:
        taken = (n for n in itertools.count() if not (path / "attempts" / f"{n}.json").exists())
        return next(taken), error


def _place_of(place: Place, launch: Launch, attempt: int) -> dict[str, Any]:
    return {
        "run": launch.run_id,
        "attempt": attempt,
        "rank": place.rank,
        "local_rank": place.local_rank,
        "world_size": place.world_size,
        "node_rank": place.node_rank,
        "launcher": place.launcher,
        "host": socket.gethostname(),
        "boot": boot_id(),
        "argv": identity.mask_argv(sys.argv),
        "cwd": identity.working_folder(),
        "environment": identity.describe_launch_environment(os.environ),
    }
