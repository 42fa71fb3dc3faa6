"""Child processes, forked or spawned, which record as workers of their parent.

A forked child inherits mapped memory and locks of its parent; it releases both, and opens its own journal
when it first records. A spawned child gets its parent's run from the configuration that multiprocessing
passes to every child.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell._core import clock
from stepwell._core.errors import report
from stepwell._core.system import process_start
from stepwell.journal.document import ProcessDocument
from stepwell.journal.format import PROCESS, WORKERS
from stepwell.journal.journal import Journal
from stepwell.journal.metrics import context
from stepwell.journal.names import names
from stepwell.journal.state import current_journal, forget_lane, state

if TYPE_CHECKING:
    from stepwell.telemetry.run import Run

KEY = "stepwell"
INHERITED = ("run", "attempt", "rank", "local_rank", "world_size", "node_rank", "host", "boot")


class _Inheritance:
    """What children inherit from this process: the folder of its live files, and its identity."""

    token: dict[str, Any] | None = None
    hooked = False


def adopt_children(folder: Path, document: dict[str, Any], run: Run) -> None:
    """Let children created from now on record as workers; ``document`` is this process.json."""
    inherited = {key: document[key] for key in (*INHERITED, "process")}
    _Inheritance.token = {"folder": str(folder), "document": inherited, "run": run}
    _hand_down(_Inheritance.token)
    _hook_forks()


def _hook_forks() -> None:
    if not _Inheritance.hooked and hasattr(os, "register_at_fork"):
        _Inheritance.hooked = True
        os.register_at_fork(after_in_child=_after_fork)


def release_children() -> None:
    """Let children created from now on record nothing."""
    _Inheritance.token = None
    _hand_down(None)


def join_parent_when_used() -> None:
    """In a spawned child, join the parent's run when something is first recorded."""
    state.open_when_used(_open_spawned)
    _hook_forks()


def is_worker() -> bool:
    """Return whether this process records as a worker. Joins the parent's run if it has not yet."""
    journal = current_journal() if state.enabled else None
    return journal is not None and journal.document is not None


def _hand_down(token: dict[str, Any] | None) -> None:
    from multiprocessing import process

    # Each Process copies this dict when it is created, and passes it on however it is started.
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
    token = _Inheritance.token
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

    _Inheritance.token = token
    adopt_run(token["run"])
    return _open_worker(token)


def _open_worker(token: dict[str, Any]) -> Journal | None:
    """Return a journal for this process below its parent's, None if it cannot be created."""
    parent = token["document"]["process"]
    pid = os.getpid()
    number = _data_worker()
    role = "child" if number is None else f"worker-{number}"
    folder = Path(token["folder"]) / WORKERS / f"{parent}.{role}.pid-{pid}"
    journal = Journal(folder, keeps_segments=True)
    document = {
        **token["document"],
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
        journal.document = ProcessDocument(folder / PROCESS, document, 0.0)
        journal.document.write()
    except OSError as error:
        report("child process", error)
        return None
    return journal


def _data_worker() -> int | None:
    """Return the number of this DataLoader worker, None in any other process."""
    data = sys.modules.get("torch.utils.data")
    info = data.get_worker_info() if data is not None else None
    return None if info is None else int(info.id)
