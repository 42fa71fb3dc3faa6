"""Delivering a recorded run's log to a backend afterwards: the rest of it, or all for the first time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell.journal.errors import StepwellError
from stepwell.journal.follow_document import FollowedDocument
from stepwell.journal.follow_log import LogFollower
from stepwell.journal.journal import EVENTS, LOGGER
from stepwell.journal.records import StatusRecord
from stepwell.journal.tail import Tail, parse_object
from stepwell.journal.values import shown
from stepwell.loggers.delivery.places import check_places
from stepwell.telemetry.exporter import reads_log
from stepwell.telemetry.exporter_loading import BUILT_IN as EXPORTERS
from stepwell.telemetry.exporter_loading import find_class, make_exporter
from stepwell.telemetry.forwarding import end_sending, recorded_processes, send_all
from stepwell.telemetry.sidecar_notes import remove_notes_of

BACKENDS = {
    "mlflow": "stepwell.loggers.backends.mlflow.backend.MLFlowBackend",
    "wandb": "stepwell.loggers.backends.wandb.backend.WandBBackend",
    "tensorboard": "stepwell.loggers.backends.tensorboard.backend.TensorBoardBackend",
    "prov": "stepwell.loggers.prov.backend.ProvBackend",
    "console": "stepwell.loggers.backends.console.ConsoleBackend",
}


@dataclass(frozen=True)
class Registered:
    """A logger that a process had: its number, where it delivered to, and how the backend was made."""

    folder: Path
    number: int | None
    to: str
    made_by: str
    options: dict[str, Any]


@dataclass(frozen=True)
class ForwardedLog:
    """What was delivered of one logger; ``running``: its process still logs, and there will be more."""

    process: str
    records: int
    running: bool


def is_backend(run: str | os.PathLike[str], to: str) -> bool:
    """Whether this name, or ``package.module.Class``, stands for a backend rather than an exporter.

    ``console`` is both: the backend where the run has such a logger.
    """
    if to in BACKENDS and to not in EXPORTERS:
        return True
    if to in BACKENDS:
        return bool(_registered_for(recorded_processes(Path(run).expanduser()), to))
    _refuse_name_of_own(run, to)
    return to not in EXPORTERS and reads_log(find_class(to, "forward", BACKENDS))


def _refuse_name_of_own(run: str | os.PathLike[str], to: str) -> None:
    """The name of somebody's own logger is not enough: the folder does not say which code to run."""
    if to in EXPORTERS or "." in to:
        return
    for logger in _registered_for(recorded_processes(Path(run).expanduser()), to):
        raise StepwellError(
            f"the backend of {to!r} is none of stepwell's own: write --to with its class, which the run "
            f"calls {shown(logger.made_by)}"
        )


def forward_log(
    run: str | os.PathLike[str], to: str, options: Mapping[str, Any] | None = None
) -> list[ForwardedLog]:
    """Deliver what was logged in this run folder and has not been delivered yet.

    Args:
        run: the run folder.
        to: a backend by its name (``"mlflow"``) or as ``package.module.Class``.
        options: what it is made with, in place of what its logger said.

    Each logger of that kind goes on where it was. Where the run has none, a new run is made in the
    backend with everything that was logged; forwarding again goes on with that one. A backend that
    does not take it raises ``NotTaken``.
    """
    folders = recorded_processes(Path(run).expanduser())
    found = _registered_for(folders, to) or list(_as_a_whole(folders, to))
    return [_deliver(logger, BACKENDS.get(to, to), options or {}) for logger in found]


def _deliver(logger: Registered, made_by: str, options: Mapping[str, Any]) -> ForwardedLog:
    # The class is the one that was asked for: what stands in a run folder says nothing of code to run.
    own = {**logger.options, "number": logger.number, **options}
    backend = make_exporter(made_by, own)
    if not reads_log(backend):
        raise StepwellError(f"{made_by} is no backend of loggers")
    check_places(logger.folder, backend, options)
    feed = backend.feed(logger.folder)

    def sent() -> str:
        return f"{feed.sent} records"

    send_all(feed, sent)
    end_sending(feed, sent)
    if feed.over:
        remove_notes_of(logger.folder, feed.name)
    return ForwardedLog(logger.folder.name, feed.sent, not feed.over)


def _registered_for(folders: list[Path], to: str) -> list[Registered]:
    loggers = [logger for folder in folders for logger in registered_loggers(folder)]
    return [logger for logger in loggers if to in (logger.to, logger.made_by)]


def registered_loggers(folder: Path) -> Iterator[Registered]:
    """The loggers with a backend that a process has had, in the order of their numbers."""
    tail, paths = Tail(), [place / EVENTS for place in FollowedDocument(folder).folders()]
    seen: set[int] = set()
    while True:
        for line in tail.read(paths):
            if b'"logger"' not in line:
                continue
            found = _registered(folder, parse_object(line) or {})
            if found is not None and found.number not in seen:
                seen.add(found.number or 0)
                yield found
        if not tail.more:
            return


def _registered(folder: Path, line: dict[str, Any]) -> Registered | None:
    about = line.get("attributes")
    if line.get("kind") != LOGGER or not isinstance(about, dict):
        return None
    number, options, made_by = about.get("number"), about.get("options"), about.get("class")
    if type(number) is not int or not isinstance(options, dict) or not isinstance(made_by, str):
        return None
    return Registered(folder, number, str(about.get("to")), made_by, options)


def _as_a_whole(folders: list[Path], to: str) -> Iterator[Registered]:
    """Every process that logged anything, as if it had had one logger for all of it."""
    logged = [folder for folder in folders if _has_logged(folder)]
    ranks = {folder: int(FollowedDocument(folder).about.get("rank") or 0) for folder in logged}
    for folder, rank in ranks.items():
        options = {"rank": rank, "ranks": sorted(set(ranks.values()))}
        yield Registered(folder, None, to, "", options)


def _has_logged(folder: Path) -> bool:
    records = LogFollower(folder, limit=1).poll()
    return bool(records) and not isinstance(records[0], StatusRecord)
