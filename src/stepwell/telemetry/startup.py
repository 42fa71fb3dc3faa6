"""Starting a run: ``init`` checks its arguments and the environment here, and starts to record."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stepwell._core import errors
from stepwell._core.environment import read_flag, warn_setting, warn_unknown_settings
from stepwell._core.errors import StepwellError
from stepwell._core.masking import mask, mask_argv
from stepwell._core.system import boot_id
from stepwell._core.values import plain_mapping
from stepwell.telemetry import identity
from stepwell.telemetry.claims import read_claim
from stepwell.telemetry.launch import Launch, claim_attempt, find_launch
from stepwell.telemetry.notices import print_start
from stepwell.telemetry.rank_info import RankInfo, find_rank_info
from stepwell.telemetry.recorder import Recorder
from stepwell.telemetry.run import Run, activate, finish_active
from stepwell.telemetry.run_document import RunDocument
from stepwell.telemetry.run_names import script_name
from stepwell.telemetry.runtime import start_sampling
from stepwell.telemetry.stacks import watch_stacks

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
    """Start a run, with the arguments of ``init``."""
    plain = _config(config)
    values = _run_values(name, plain, tags)
    if not isinstance(resume, bool):
        raise StepwellError(f"resume must be True or False, got {resume!r}")
    if quiet is not None and not isinstance(quiet, bool):
        raise StepwellError(f"quiet must be True, False or None, got {quiet!r}")
    is_quiet = read_flag(os.environ, "STEPWELL_QUIET") if quiet is None else quiet
    folder = _root(dir)
    if _mode() == "off":
        return _disabled(values, plain, folder)
    try:
        return _open(values, plain, folder, run_id, resume, is_quiet)
    except StepwellError:
        raise
    except Exception as error:
        errors.report("init", error)
        return _disabled(values, plain, folder)


def _disabled(values: dict[str, Any], config: dict[str, Any], folder: Path) -> Run:
    """Return a run that records nothing."""
    return Run(
        id="off",
        name=values["name"] or "off",
        path=folder,
        attempt=0,
        rank=0,
        recorder=None,
        disabled=True,
        config=config,
        tags=values["tags"],
    )


def _open(
    values: dict[str, Any],
    config: dict[str, Any],
    folder: Path,
    run_id: str | None,
    resume: bool,
    quiet: bool,
) -> Run:
    rank_info = find_rank_info(os.environ)
    errors.set_quiet(rank_info.rank != 0)
    warn_unknown_settings(os.environ)
    strict = os.environ.get("STEPWELL_STRICT", "")
    if strict not in ("", "0", "1"):
        warn_setting("STEPWELL_STRICT", strict, "1, or leave it unset")
    if values["name"] is None and run_id is None and not os.environ.get("STEPWELL_RUN_ID"):
        values["name"] = script_name()
    launch = _find_launch(folder, rank_info, run_id, values["name"])
    path = folder / launch.run_id
    attempt, obstacle = _attempt(path, launch, resume)
    finish_active()
    process = f"rank-{rank_info.rank:05d}.attempt-{attempt}.pid-{os.getpid()}"
    recorder = Recorder(path, process, _process_document(rank_info, launch, attempt))
    document = RunDocument(path, launch.run_id, rank_info, attempt, values)
    run = Run(
        id=launch.run_id,
        name=values["name"] or launch.run_id,
        path=path,
        attempt=attempt,
        rank=rank_info.rank,
        recorder=recorder,
        world_size=rank_info.world_size,
        document=document,
        quiet=quiet
        or rank_info.rank != 0
        or rank_info.launcher == "starter"
        or obstacle is not None,
        config=config,
        tags=values["tags"],
    )
    activate(run, recorder)
    if obstacle is not None:
        recorder.journal.fail(obstacle)
    if rank_info.rank == 0 and obstacle is None:
        with contextlib.suppress(OSError):
            document.write()
    recorder.pump.run_soon(lambda: document.complete(recorder.pump.is_ending))
    recorder.pauses = start_sampling(recorder)
    recorder.stacks = watch_stacks(recorder)
    if os.environ.get("STEPWELL_EXPORTERS"):
        from stepwell.telemetry.exporter_config import add_from_environment

        add_from_environment(run)
    if not run.quiet:
        print_start(path)
    return run


def _config(config: Any) -> dict[str, Any]:
    try:
        return identity.config_to_dict(config)
    except TypeError as error:
        raise StepwellError(str(error)) from None


def _run_values(name: Any, config: dict[str, Any], tags: Any) -> dict[str, Any]:
    if name is not None and not isinstance(name, str):
        raise StepwellError(f"name must be a string, such as 'my training', got {name!r}")
    words = list(tags) if isinstance(tags, Iterable) else [tags]
    if isinstance(tags, str) or not all(isinstance(word, str) for word in words):
        raise StepwellError(f"tags must be a list of strings, such as ['baseline'], got {tags!r}")
    # Masked last, so that values converted to a dict or a text are masked too.
    return {"name": name, "tags": words, "config": mask(plain_mapping(config))}


def _root(dir: str | os.PathLike[str] | None) -> Path:
    chosen = dir if dir is not None else os.environ.get("STEPWELL_DIR") or "runs"
    if not isinstance(chosen, str | os.PathLike):
        raise StepwellError(f"dir must be a path, such as 'runs', got {dir!r}")
    path = Path(chosen).expanduser()
    return path if path.is_absolute() else Path(identity.working_folder()) / path


def _mode() -> str:
    mode = os.environ.get("STEPWELL_MODE", "").strip().lower()
    if mode not in MODES:
        errors.set_quiet(find_rank_info(os.environ).rank != 0)
        warn_setting("STEPWELL_MODE", mode, "off, or leave it unset to record")
    return mode


def _find_launch(root: Path, rank_info: RankInfo, run_id: str | None, name: str | None) -> Launch:
    try:
        return find_launch(
            root, rank_info, run_id=run_id, name=name, environ=os.environ, argv=sys.argv
        )
    except ValueError as error:
        raise StepwellError(str(error)) from None


def _attempt(path: Path, launch: Launch, resume: bool) -> tuple[int, OSError | None]:
    """Return the number of this attempt, and the error if it could not be claimed."""
    if not resume:
        first = read_claim(path / "attempts" / "0.json")
        if first is not None and first.get("token") != launch.token:
            raise StepwellError(
                f"run {launch.run_id!r} already exists in {path.parent}: choose another run_id, or leave out "
                "resume=False to continue it with its next attempt"
            )
    try:
        return claim_attempt(path, launch.token), None
    except OSError as error:
        taken = (n for n in itertools.count() if not (path / "attempts" / f"{n}.json").exists())
        return next(taken), error


def _process_document(rank_info: RankInfo, launch: Launch, attempt: int) -> dict[str, Any]:
    return {
        "run": launch.run_id,
        "attempt": attempt,
        "rank": rank_info.rank,
        "local_rank": rank_info.local_rank,
        "world_size": rank_info.world_size,
        "node_rank": rank_info.node_rank,
        "launcher": rank_info.launcher,
        "host": socket.gethostname(),
        "boot": boot_id(),
        "argv": mask_argv(sys.argv),
        "cwd": identity.working_folder(),
        "environment": identity.describe_launch_environment(os.environ),
    }
