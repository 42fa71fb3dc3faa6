"""Delivers the log of a recorded run to a backend: the records that are left, or all of them for the first
time.

A run folder may come from someone else, who would choose where your credentials are sent and where files are
written. So a network address that only the run folder contains must be confirmed, a folder or local database
is shown first, and destinations in a folder of another user are not used at all.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stepwell._core.errors import StepwellError, log_warning
from stepwell._core.values import shown
from stepwell.follower.document import ProcessDocumentWatcher
from stepwell.follower.log import LogFollower, RegisteredLogger, registered_loggers
from stepwell.follower.records import StatusRecord
from stepwell.journal.format import EVENTS
from stepwell.loggers.delivery.backend import FOLDER, Backend
from stepwell.loggers.delivery.feed import kept_state, state_path
from stepwell.telemetry.exporter import reads_log
from stepwell.telemetry.exporter_config import BUILT_IN as EXPORTERS
from stepwell.telemetry.exporter_config import find_class, make_exporter
from stepwell.telemetry.forward import deliver_recorded, recorded_processes, remove_notes_of

BACKENDS = {
    "mlflow": "stepwell.loggers.backends.mlflow.backend.MLFlowBackend",
    "wandb": "stepwell.loggers.backends.wandb.backend.WandBBackend",
    "tensorboard": "stepwell.loggers.backends.tensorboard.backend.TensorBoardBackend",
    "prov": "stepwell.loggers.prov.backend.ProvBackend",
    "console": "stepwell.loggers.backends.console.ConsoleBackend",
}


@dataclass(frozen=True)
class ForwardedLog:
    """The number of records delivered for one logger. ``running``: its process still logs."""

    process: str
    records: int
    running: bool


def is_backend(run: str | os.PathLike[str], to: str) -> bool:
    """Return whether this name, or ``package.module.Class``, is a backend and not an exporter.

    ``console`` is both: it means the backend if the run has a console logger.
    """
    if to in BACKENDS and to not in EXPORTERS:
        return True
    if to in BACKENDS:
        return bool(_registered_for(recorded_processes(Path(run).expanduser()), to))
    _refuse_unknown_class(run, to)
    return to not in EXPORTERS and reads_log(find_class(to, "forward", BACKENDS))


def _refuse_unknown_class(run: str | os.PathLike[str], to: str) -> None:
    """Refuse the name of a user's own logger: a run folder must not choose the code to run."""
    if to in EXPORTERS or "." in to:
        return
    for logger in _registered_for(recorded_processes(Path(run).expanduser()), to):
        raise StepwellError(
            f"the backend of {to!r} is not part of stepwell: pass its class to --to. The run folder names "
            f"{shown(logger.backend_class)}"
        )


def forward_log(
    run: str | os.PathLike[str], to: str, options: Mapping[str, Any] | None = None
) -> list[ForwardedLog]:
    """Deliver the records of a run folder that are not delivered yet.

    Each logger with this backend continues where it stopped. If the run has none, all records are delivered
    to a new run of the backend; a second call continues that run.

    Args:
        run: the run folder.
        to: a backend by its name (``"mlflow"``) or as ``package.module.Class``.
        options: options of the backend. They override those of the logger.

    Raises:
        NotTaken: the backend does not accept the records.
    """
    folders = recorded_processes(Path(run).expanduser())
    loggers = _registered_for(folders, to) or list(_whole_processes(folders, to))
    return [_deliver(logger, BACKENDS.get(to, to), options or {}) for logger in loggers]


def _deliver(
    logger: RegisteredLogger, backend_class: str, options: Mapping[str, Any]
) -> ForwardedLog:
    # The class comes from the caller, never from the run folder, which must not choose the code to run.
    own = {**logger.options, "number": logger.number, **options}
    backend = make_exporter(backend_class, own)
    if not reads_log(backend):
        raise StepwellError(f"{backend_class} must be a stepwell.loggers.Backend")
    check_places(logger.folder, backend, options)
    feed = backend.feed(logger.folder)
    deliver_recorded(feed, lambda: f"{feed.sent} records")
    if feed.over:
        remove_notes_of(logger.folder, feed.name)
    return ForwardedLog(logger.folder.name, feed.sent, not feed.over)


def _registered_for(folders: list[Path], to: str) -> list[RegisteredLogger]:
    loggers = [logger for folder in folders for logger in registered_loggers(folder)]
    return [logger for logger in loggers if to in (logger.to, logger.backend_class)]


def _whole_processes(folders: list[Path], to: str) -> Iterator[RegisteredLogger]:
    """Yield each process that logged anything, as if it had one logger for all its records."""
    logged = [folder for folder in folders if _has_logged(folder)]
    ranks = {
        folder: int(ProcessDocumentWatcher(folder).content.get("rank") or 0) for folder in logged
    }
    for folder, rank in ranks.items():
        options = {"rank": rank, "ranks": sorted(set(ranks.values()))}
        yield RegisteredLogger(folder, None, to, "", options)


def _has_logged(folder: Path) -> bool:
    records = LogFollower(folder, limit=1).poll()
    return bool(records) and not isinstance(records[0], StatusRecord)


ROOT = 0
LOCAL = ("file", "sqlite")


def check_places(folder: Path, backend: Backend, given: Mapping[str, Any]) -> None:
    """Raise StepwellError for a destination that must be confirmed, and show the others.

    ``given`` are the options that the user wrote.
    """
    path = state_path(folder, backend)
    places = backend.places(kept_state(path))
    stored = {
        name: place for name, place in places.items() if name not in given and not _in(place, given)
    }
    if not stored:
        return
    listed = ", ".join(f"{name} {shown(place)}" for name, place in stored.items())
    owner = _another_owner((folder.parent, folder, folder / EVENTS, path))
    if owner is not None:
        needed = " ".join(f"--option {name}=…" for name in stored if name != FOLDER)
        raise StepwellError(
            f"{folder.parent} belongs to {owner} and contains the destination of its log: {listed}. Set the "
            f"destination yourself{f' with {needed}' if needed else ''}; or, if you trust it, forward a "
            "copy of the folder"
        )
    address = next((place for place in stored.values() if is_remote(place)), None)
    if address is not None:
        written = shown(address)[1:-1] if "@" not in address else "ADDRESS"
        raise StepwellError(
            f"the destination comes from the run folder only: {listed}. Your credentials would be sent "
            f"there. If you trust it, write: stepwell forward {folder.parent} --to {backend.name}={written}"
        )
    log_warning(
        "%s goes to %s, as stored in the run folder", backend.name or type(backend).__name__, listed
    )


def is_remote(place: str) -> bool:
    """Return whether it is a network address, not a path or a local database."""
    scheme = urlsplit(place).scheme
    # A single letter is a Windows drive.
    return len(scheme) > 1 and scheme not in LOCAL


def _in(place: str, given: Mapping[str, Any]) -> bool:
    """Return whether a place is in a folder that the user gave."""
    folders = [
        Path(value).expanduser() for value in given.values() if isinstance(value, str) and value
    ]
    whole = Path(os.path.abspath(place))
    return any(whole.is_relative_to(os.path.abspath(folder)) for folder in folders)


def _another_owner(paths: Iterable[Path]) -> str | None:
    """Return the owner of one of these files who is neither this user nor root; None if there is none."""
    if not hasattr(os, "geteuid"):
        return None
    for path in paths:
        try:
            owner = path.lstat().st_uid
        except OSError:
            continue
        if owner not in (os.geteuid(), ROOT):
            return _user_name(owner)
    return None


def _user_name(user: int) -> str:
    try:
        import pwd

        return pwd.getpwuid(user).pw_name
    except (ImportError, KeyError):
        return f"user {user}"
