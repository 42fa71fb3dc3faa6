"""Which journal records now, and each thread's lane in it. The one piece of global state."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepwell.journal.journal import Journal
    from stepwell.journal.lane import Lane

local = threading.local()
"""``local.lane``: this thread's lane. A thread that never recorded has no such attribute."""


class State:
    """The active journal, or how to open one when this process first records."""

    __slots__ = ("enabled", "journal", "keep_value", "opener", "opening", "switches")

    def __init__(self) -> None:
        self.enabled = False
        self.journal: Journal | None = None
        self.opener: Callable[[], Journal | None] | None = None
        self.opening: threading.RLock | None = None
        self.keep_value: Callable[[Journal, str, Any, int | None], bool] | None = None
        """Keeps a logged value that is no number as an item; whether it did. Others stay values."""
        self.switches: list[Callable[[bool], None]] = []

    def activate(self, journal: Journal | None) -> None:
        """Record into this journal from now on (None: into none)."""
        self.journal = journal
        self.opener = self.opening = None
        self._enable(journal is not None)

    def open_when_used(self, opener: Callable[[], Journal | None]) -> None:
        """Let the first record of this process open its journal."""
        self.journal = None
        self.opener = opener
        self.opening = threading.RLock()
        self._enable(True)

    def _enable(self, enabled: bool) -> None:
        self.enabled = enabled
        for switch in self.switches:
            switch(enabled)


state = State()


def is_failing() -> bool:
    """Whether the run folder cannot be written just now, which was said already."""
    return state.journal is not None and state.journal.failing is not None


def current_journal() -> Journal | None:
    """The active journal; opens it if this is a worker that records for the first time."""
    if state.journal is None and state.opening is not None:
        # Several threads of a worker may be the first; the others wait for the journal.
        with state.opening:
            opener, state.opener = state.opener, None
            if opener is not None:
                state.activate(opener())
    return state.journal


def current_lane() -> Lane | None:
    """This thread's lane in the active journal, made when there is none yet."""
    lane: Lane | None = getattr(local, "lane", None)
    journal = current_journal()
    if lane is None or lane.journal is not journal:
        lane = None if journal is None else _open_lane(journal)
        forget_lane()
        if lane is not None:
            local.lane = lane
    return lane


def _open_lane(journal: Journal) -> Lane:
    """Return a new lane, or the one for handlers that interrupt this thread while its own is hidden."""
    hidden: Lane | None = getattr(local, "hidden", None)
    if hidden is None or hidden.journal is not journal:
        return journal.open_lane()
    if hidden.second is None:
        hidden.second = journal.open_lane()
    return hidden.second


def is_current(lane: Lane) -> bool:
    """Return whether this thread records into this lane."""
    return local.__dict__.get("lane") is lane


def hide_lane(lane: Lane) -> None:
    """Keep this thread's lane from handlers while it is changed in several steps.

    A signal handler or a finalizer may record between any two of these steps. It gets a second lane. An
    interrupt may come there too. So the caller asks ``is_current`` before a ``try``, calls this inside it,
    and stores ``local.lane = lane`` in the ``finally``: not by a call, which an interrupt could prevent.
    """
    space = local.__dict__
    space["hidden"] = lane
    space.pop("lane", None)


def forget_lane() -> None:
    """Let this thread's next record find a lane anew."""
    local.__dict__.pop("lane", None)
