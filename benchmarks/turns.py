"""Two trainings of a framework's own loop, one recorded and one not, that take turns in one process.

Such a loop cannot be stopped and gone on with from outside. So each of the two has a thread of its own, and
lets the other one go on after every few steps: CPU time of the thread that trains, from step to step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from statistics import median
from time import thread_time_ns

from benchmarks.floor import Measured, summarize

STEPS = 10
"""For each turn."""
TURNS = 40
WARM = 3
"""Turns at the beginning that are left out."""

Tick = Callable[[], None]
"""To be called at the same place of every step."""
Training = Callable[[Tick, int], object]
"""Trains this number of steps."""


class Side:
    """One of the two: how long its turns took."""

    def __init__(self) -> None:
        self.times: list[int] = []
        self._go: SimpleQueue[None] = SimpleQueue()
        self._other = self
        self._count = self._begun = 0
        self._is_alone = False
        self._error: BaseException | None = None

    def tick(self) -> None:
        """A step begins; after some of them it is the other one's turn."""
        if self._count % STEPS == 0:
            now = thread_time_ns()
            if self._count:
                self.times.append(now - self._begun)
            if not self._is_alone:
                self._other.let_go()
                self._go.get()
            self._begun = thread_time_ns()
        self._count += 1

    def let_go(self) -> None:
        """It is this one's turn."""
        self._go.put(None)

    def start(self, train: Training, other: Side) -> threading.Thread:
        """Train in a thread, from the first turn on."""
        self._other = other
        thread = threading.Thread(target=self._run, args=(train,))
        thread.start()
        return thread

    def _run(self, train: Training) -> None:
        self._go.get()
        try:
            # The last tick begins a step that is in no turn.
            train(self.tick, TURNS * STEPS + 1)
        except BaseException as error:
            self._error = error
        finally:
            self._other._is_alone = True
            self._other.let_go()

    def result(self) -> list[int]:
        """The turns that count."""
        if self._error is not None:
            raise self._error
        return self.times[WARM:]


def compare(plain: Training, ours: Training, rounds: int) -> Measured:
    """What ``ours`` takes beyond ``plain``, in per cent of that: median and quartiles of all turns."""
    pairs: list[tuple[int, int]] = []
    for i in range(rounds + 1):
        found = _pairs(plain, ours, bool(i % 2))
        if i:  # the first round warms up
            pairs += found
    added = median(b - a for a, b in pairs) / STEPS / 1000
    step = median(a for a, _ in pairs) / STEPS / 1000
    return summarize([100 * (b / a - 1) for a, b in pairs], note=f"{added:.0f} µs of {step:.0f} µs")


def _pairs(plain: Training, ours: Training, swapped: bool) -> list[tuple[int, int]]:
    sides = Side(), Side()
    threads = [
        sides[0].start(plain, sides[1]),
        sides[1].start(ours, sides[0]),
    ]
    sides[swapped].let_go()
    for thread in threads:
        thread.join()
    return list(zip(sides[0].result(), sides[1].result(), strict=True))
