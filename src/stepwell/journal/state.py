"""The active journal and the lane of each thread: the only global state of the journal."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stepwell._core import errors

if TYPE_CHECKING:
    from stepwell.journal.journal import Journal
    from stepwell.journal.lane import Lane

local = threading.local()
"""``local.lane``: the lane of this thread. Missing until the thread first records."""


class State:
    """The active journal, or a function that opens one when this process first records."""

    __slots__ = ("enabled", "journal", "keep_value", "opener", "opening", "switches")

    def __init__(self) -> None:
        self.enabled = False
        self.journal: Journal | None = None
        self.opener: Callable[[], Journal | None] | None = None
        self.opening: threading.RLock | None = None
        self.keep_value: Callable[[Journal, str, Any, int | None], bool] | None = None
        """Stores a logged value that is not a number in another form, and returns whether it did."""
        self.switches: list[Callable[[bool], None]] = []

    def activate(self, journal: Journal | None) -> None:
        """Record into this journal from now on; None stops recording."""
        self.journal = journal
        self.opener = self.opening = None
        self._enable(journal is not None)

    def open_when_used(self, opener: Callable[[], Journal | None]) -> None:
        """Call ``opener`` at the first record of this process."""
        self.journal = None
        self.opener = opener
        self.opening = threading.RLock()
        self._enable(True)

    def _enable(self, enabled: bool) -> None:
        self.enabled = enabled
        for switch in self.switches:
            switch(enabled)


state = State()


def _record_problem(name: str, attributes: dict[str, str]) -> None:
    if state.journal is not None:
        state.journal.write_event("event", name, attributes)


errors.set_recorder(_record_problem)


def is_failing() -> bool:
    """Return whether the folder of the journal cannot be written at the moment; a warning was logged."""
    return state.journal is not None and state.journal.failing is not None


def current_journal() -> Journal | None:
    """Return the active journal; open it if this is the first record of a worker."""
    if state.journal is None and state.opening is not None:
        # If several threads of a worker record first at once, one opens the journal and the others wait.
        with state.opening:
            opener, state.opener = state.opener, None
            if opener is not None:
                state.activate(opener())
    return state.journal


def current_lane() -> Lane | None:
    """Return the lane of this thread in the active journal; create it if necessary."""
    lane: Lane | None = getattr(local, "lane", None)
    journal = current_journal()
    if lane is None or lane.journal is not journal:
        lane = None if journal is None else _open_lane(journal)
        forget_lane()
        if lane is not None:
            local.lane = lane
    return lane


def _open_lane(journal: Journal) -> Lane:
    """Return a new lane; while the lane of this thread is hidden, the second lane for signal handlers."""
    hidden: Lane | None = getattr(local, "hidden", None)
    if hidden is None or hidden.journal is not journal:
        return journal.open_lane()
    if hidden.second is None:
        second = journal.open_lane()
        second.depth = hidden.depth + 1
        hidden.second = second
    return hidden.second


def is_current(lane: Lane) -> bool:
    """Return whether this thread records into this lane."""
    return local.__dict__.get("lane") is lane


def hide_lane(lane: Lane) -> None:
    """Hide the lane of this thread from signal handlers while it is changed in several steps.

    A signal handler or a finalizer may record between any two of these steps; it gets a second lane. An
    interrupt may also occur there. So the caller asks ``is_current`` before a ``try``, calls this inside it,
    and stores ``local.lane = lane`` in the ``finally``, without a call, which an interrupt could prevent.
    """
    space = local.__dict__
    space["hidden"] = lane
    space.pop("lane", None)


def forget_lane() -> None:
    """Make the next record of this thread look up its lane again."""
    local.__dict__.pop("lane", None)
