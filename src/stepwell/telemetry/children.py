"""Child processes: forked or spawned, they record too, as workers of the process that made them.

A forked child inherits mapped memory and locks that are not its own; it lets go of both and opens a
journal when it first records. A spawned one learns of its parent's run from the configuration that
multiprocessing hands down to every child.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.journal import clock
from stepwell.journal.document import PROCESS, ProcessDocument
from stepwell.journal.errors import report
from stepwell.journal.journal import Journal
from stepwell.journal.metrics import context
from stepwell.journal.names import names
from stepwell.journal.state import current_journal, forget_lane, state
from stepwell.journal.system import process_start
from stepwell.journal.workers import WORKERS

if TYPE_CHECKING:
    from stepwell.telemetry.run import Run

KEY = "stepwell"
INHERITED = ("run", "attempt", "rank", "local_rank", "world_size", "node_rank", "host", "boot")


class _Family:
    """What this process tells its children: where its live files are, and who it is."""

    token: dict[str, Any] | None = None
    hooked = False


def adopt_children(folder: Path, about: dict[str, Any], run: Run) -> None:
    """Let children made from now on record as workers of the process that ``about`` describes."""
    kept = {key: about[key] for key in (*INHERITED, "process")}
    _Family.token = {"folder": str(folder), "about": kept, "run": run}
    _hand_down(_Family.token)
    _hook_forks()


def _hook_forks() -> None:
    if not _Family.hooked and hasattr(os, "register_at_fork"):
        _Family.hooked = True
        os.register_at_fork(after_in_child=_after_fork)


def release_children() -> None:
    """Let children made from now on record nothing."""
    _Family.token = None
    _hand_down(None)


def join_parent_when_used() -> None:
    """In a spawned child: let the first record look for the parent's run."""
    state.open_when_used(_open_spawned)
    _hook_forks()


def is_worker() -> bool:
    """Return whether this process records as a worker of another one, which it joins if it has not yet."""
    journal = current_journal() if state.enabled else None
    return journal is not None and journal.document is not None


def _hand_down(token: dict[str, Any] | None) -> None:
    from multiprocessing import process

    # Each Process copies this dict when it is made, and takes it along however it is started.
    config: dict[str, Any] = process.current_process()._config  # type: ignore[attr-defined]
    if token is None:
        config.pop(KEY, None)
    else:
        config[KEY] = token


def _after_fork() -> None:
    fd = names.detach()
    if fd >= 0:
        os.close(fd)
    if state.journal is not None:
        state.journal.leave_to_parent()
    names.renew_lock()
    forget_lane()
    context.clear()
    token = _Family.token
    if state.enabled and token is not None:
        state.open_when_used(lambda: _open_worker(token))
    else:
        state.activate(None)


def _open_spawned() -> Journal | None:
    from multiprocessing import process

    token = process.current_process()._config.get(KEY)  # type: ignore[attr-defined]
    if token is None:
        return None
    from stepwell.telemetry.run import adopt_run

    _Family.token = token
    adopt_run(token["run"])
    return _open_worker(token)


def _open_worker(token: dict[str, Any]) -> Journal | None:
    """A journal for this process below its parent's, or None when that cannot be had."""
    parent = token["about"]["process"]
    pid = os.getpid()
    number = _data_worker()
    role = "child" if number is None else f"worker-{number}"
    folder = Path(token["folder"]) / WORKERS / f"{parent}.{role}.pid-{pid}"
    journal = Journal(folder, keeps_segments=True)
    about = {
        **token["about"],
        "process": folder.name,
        "parent": parent,
        "role": "worker",
        "worker": number,
        "pid": pid,
        "start": process_start(pid),
        "started": clock.wall(),
        "spool": None,
    }
    try:
        journal.open()
        journal.document = ProcessDocument(folder / PROCESS, about, 0.0)
        journal.document.write()
    except OSError as error:
        report("child process", error)
        return None
    return journal


def _data_worker() -> int | None:
    """Number of this DataLoader worker, None in any other process."""
    data = sys.modules.get("torch.utils.data")
    info = data.get_worker_info() if data is not None else None
    return None if info is None else int(info.id)
