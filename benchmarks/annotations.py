"""The `ai` tree, used in every way."""

from __future__ import annotations

from statistics import median

from benchmarks.floor import SPANS, Measured, compare, cpu_ns, floor_ns, summarize
from benchmarks.recording import recording
from benchmarks.row import Effort
from stepwell import ai


def bare(effort: Effort) -> Measured:
    with recording():
        return compare(_bare, rounds=effort.rounds)


def decorated(effort: Effort) -> Measured:
    with recording():
        return compare(_calls, rounds=effort.rounds)


def arguments(effort: Effort) -> Measured:
    def block(count: int) -> None:
        for i in range(count):
            with ai.compute.forward(args={"batch": i, "size": 32, "split": "train"}):
                pass

    with recording():
        return compare(block, rounds=effort.rounds)


def update(effort: Effort) -> Measured:
    def block(count: int) -> None:
        for i in range(count):
            ai.compute.forward.update(epoch=1, step=i, size=32)
            with ai.compute.forward:
                pass

    with recording():
        measured = compare(block, rounds=effort.rounds)
    ai.compute.forward.update(epoch=None, step=None, size=None)
    return measured


def iterate(effort: Effort) -> Measured:
    with recording():
        return compare(_loop, rounds=effort.rounds)


def bare_off(effort: Effort) -> Measured:
    with recording():
        ai.compute.disable()
        measured = compare(_bare, rounds=effort.rounds)
    ai.enable()
    return measured


def iterate_off(effort: Effort) -> Measured:
    """What a disabled loop costs beside the same loop without it, an item."""

    def plain(count: int) -> None:
        for _ in range(count):
            pass

    with recording():
        ai.dataloader.disable()
        floors = [floor_ns() for _ in range(3)]
        added = [
            (cpu_ns(_loop, SPANS) - cpu_ns(plain, SPANS)) / median(floors)
            for _ in range(effort.rounds)
        ]
    ai.enable()
    return summarize(added, median(floors))


def _bare(count: int) -> None:
    for _ in range(count):
        with ai.compute.forward:
            pass


@ai.compute.forward
def _forward() -> None:
    pass


def _calls(count: int) -> None:
    for _ in range(count):
        _forward()


def _loop(count: int) -> None:
    for _ in ai.dataloader.fetch.iter(range(count)):
        pass
