"""Starting a run: from the arguments of ``init`` and the environment to a recording process."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stepwell.journal import errors
from stepwell.journal.document import read_json, write_json
from stepwell.journal.errors import StepwellError
from stepwell.journal.system import boot_id
from stepwell.telemetry import identity
from stepwell.telemetry.claims import read_claim
from stepwell.telemetry.launch import Launch, claim_attempt, find_launch
from stepwell.telemetry.place import Place, find_place
from stepwell.telemetry.recorder import Recorder
from stepwell.telemetry.run import Run, activate, finish_active

RUN = "run.json"
MODES = ("", "on", "off")


def start(
    name: str | None,
    dir: str | os.PathLike[str] | None,
    config: Any,
    tags: Iterable[str],
    run_id: str | None,
    resume: bool,
) -> Run:
    """What ``init`` does, with its arguments."""
    about = _about(name, config, tags)
    folder = _root(dir)
    if _mode() == "off":
        return Run(id="off", name=name or "off", path=folder, attempt=0, rank=0, recorder=None)
    place = find_place(os.environ)
    errors.set_quiet(place.rank != 0)
    launch = _find_launch(folder, place, run_id, name)
    path = folder / launch.run_id
    attempt, obstacle = _attempt(path, launch, resume)
    finish_active()
    process = f"rank-{place.rank:05d}.attempt-{attempt}.pid-{os.getpid()}"
    recorder = Recorder(path, process, _place_of(place, launch, attempt))
    run = Run(
        id=launch.run_id,
        name=name or launch.run_id,
        path=path,
        attempt=attempt,
        rank=place.rank,
        recorder=recorder,
    )
    activate(run, recorder)
    if obstacle is not None:
        recorder.journal.fail(obstacle)
    recorder.pump.run_soon(lambda: _describe(path, launch.run_id, place, attempt, about))
    return run


def _about(name: Any, config: Any, tags: Any) -> dict[str, Any]:
    if name is not None and not isinstance(name, str):
        raise StepwellError(f"name is {name!r}: write a string, such as init('my training')")
    if isinstance(tags, str) or not all(isinstance(tag, str) for tag in tags):
        raise StepwellError(f"tags is {tags!r}: write a list of strings, such as tags=['baseline']")
    try:
        plain = identity.config_to_dict(config)
    except TypeError as error:
        raise StepwellError(str(error)) from None
    return {"name": name, "tags": list(tags), "config": identity.mask(plain)}


def _root(dir: str | os.PathLike[str] | None) -> Path:
    chosen = dir if dir is not None else os.environ.get("STEPWELL_DIR") or "runs"
    if not isinstance(chosen, str | os.PathLike):
        raise StepwellError(f"dir is {dir!r}: write a path, such as dir='runs'")
    return Path(chosen).expanduser().absolute()


def _mode() -> str:
    mode = os.environ.get("STEPWELL_MODE", "").strip().lower()
    if mode not in MODES:
        raise StepwellError(f"STEPWELL_MODE is {mode!r}: write off, or leave it unset")
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
        return 0, error


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
        "cwd": os.getcwd(),
        "environment": identity.describe_launch_environment(os.environ),
    }


def _describe(path: Path, run_id: str, place: Place, attempt: int, about: dict[str, Any]) -> None:
    """Write run.json: rank 0 does, or whoever is first where rank 0 does not record."""
    existing = read_json(path / RUN)
    if existing is not None and place.rank != 0:
        return
    before = existing or {}
    attempts = {item["attempt"]: item for item in before.get("attempts", [])}
    attempts[attempt] = {
        "attempt": attempt,
        "started": time.time_ns(),
        "world_size": place.world_size,
        "launcher": place.launcher,
        "argv": identity.mask_argv(sys.argv),
        "cwd": os.getcwd(),
        "host": identity.describe_host(),
        "python": identity.describe_python(),
        "code": identity.describe_code(Path.cwd()),
        "config": about["config"],
    }
    write_json(
        path / RUN,
        {
            "stepwell": 1,
            "id": run_id,
            "name": about["name"] or before.get("name") or run_id,
            "tags": about["tags"] or before.get("tags", []),
            "config": about["config"] or before.get("config", {}),
            "created": before.get("created", time.time_ns()),
            "world_size": place.world_size,
            "attempts": [attempts[number] for number in sorted(attempts)],
        },
    )
