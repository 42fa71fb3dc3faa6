"""Late arrivals, calculated by hand: ranks that wait for each other in many ways, at exact times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from stepwell.analysis.findings import findings
from stepwell.analysis.ranks import stragglers
from stepwell.reading import RecordedRun
from tests.analysis.timeline.writing import Process, Thread, Written, write_run

MS = 1_000_000
STEPS = 100
Body = Callable[["Ranks", int], None]


class Ranks:
    """The clocks and spans of some ranks, in milliseconds."""

    def __init__(self, count: int, offset: int = 0) -> None:
        # Error of the clock of the last rank.
        self.now = [0] * (count - 1) + [offset]
        self.offset = offset
        self.spans: list[list[Written]] = [[] for _ in range(count)]
        self.steps_set: list[list[tuple[int, int | None, int | None]]] = [[] for _ in range(count)]

    def work(self, name: str | None, *times: int) -> None:
        """A span of this duration on each rank; without a name, time in no span."""
        for rank, ms in enumerate(times):
            self._span(rank, name, self.now[rank] + ms)

    def meet(self, name: str | None, ms: int = 1, after: int | None = None) -> None:
        """A span that all ranks leave together, this long after the last one or after the root arrives."""
        shifts = [0] * (len(self.now) - 1) + [self.offset]
        times = [now - shift for now, shift in zip(self.now, shifts, strict=True)]
        ready = max(times) if after is None else times[after]
        for rank, shift in enumerate(shifts):
            self._span(rank, name, max(ready, times[rank]) + ms + shift)

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """A span around the spans of the body."""
        begun, places = self.now.copy(), [len(spans) for spans in self.spans]
        yield
        for rank, (start, place) in enumerate(zip(begun, places, strict=True)):
            self.spans[rank].insert(place, Written(name, start * MS, self.now[rank] * MS))
            for child in self.spans[rank][place + 1 :]:
                child.parent = place

    def _span(self, rank: int, name: str | None, end: int) -> None:
        if name is not None:
            self.spans[rank].append(Written(name, self.now[rank] * MS, end * MS))
        self.now[rank] = end

    def record(self, folder: Path, body: Body) -> RecordedRun:
        for step in range(STEPS):
            for rank, now in enumerate(self.now):
                self.steps_set[rank].append((now * MS, step, None))
            body(self, step)
        return write_run(
            folder,
            *(
                Process([Thread(spans)], self.now[rank] * MS, self.steps_set[rank], rank)
                for rank, spans in enumerate(self.spans)
            ),
        )


def named(run: RecordedRun) -> list[tuple[int, str, int, int]]:
    """Return rank, phase, number of steps and milliseconds of each straggler."""
    return [(s.rank, s.phase, len(s.steps), round(s.ns / MS)) for s in stragglers(run)]


def every(step: int, period: int) -> bool:
    return step % period == period - 1


def ddp(ranks: Ranks, step: int) -> None:
    """A step of two ranks; rank 0 does something alone after every tenth step."""
    ranks.work("forward", 10, 10)
    ranks.meet("backward", 20)
    ranks.work("optimizer", 2, 2)
    ranks.work("checkpoint" if every(step, 10) else None, 500 if every(step, 10) else 0, 0)


def test_the_rank_that_waits_in_a_pass_is_not_named(tmp_path: Path) -> None:
    """After the last step no rank waits."""
    assert named(Ranks(2).record(tmp_path, ddp)) == [(0, "checkpoint", 9, 9 * 500)]


@pytest.mark.parametrize("offset", [3, 100, 2000])
def test_a_clock_that_is_wrong(tmp_path: Path, offset: int) -> None:
    """A healthy run has no straggler; otherwise the rank with the wrong clock is not blamed."""
    healthy = Ranks(2, offset).record(tmp_path, lambda ranks, _: ddp(ranks, 0))
    assert named(healthy) == []
    assert {rank for rank, *_ in named(Ranks(2, offset).record(tmp_path, ddp))} <= {0}


def on_gpu(ranks: Ranks, step: int) -> None:
    """Passes only launch work; ranks wait where they fetch the loss, which no span covers."""
    ranks.work("forward", 2, 2)
    ranks.work("backward", 3, 3)
    ranks.meet(None, 20)
    ranks.work("optimizer", 1, 1)
    ranks.work(None, 500 if every(step, 10) else 1, 1)


def test_ranks_that_wait_in_no_span(tmp_path: Path) -> None:
    """The rank that begins a step late is named, not the one whose step takes long."""
    assert named(Ranks(2).record(tmp_path, on_gpu)) == [(0, "idle", 9, 9 * 499)]


def pipeline(ranks: Ranks, step: int) -> None:
    """Two stages that wait for each other."""
    ranks.work("forward", 10, 0)
    ranks.meet("all_reduce")
    ranks.work("forward", 0, 10)
    ranks.work("backward", 0, 20)
    ranks.meet("all_reduce")
    ranks.work("backward", 20, 0)
    ranks.work("optimizer", 1, 1)


def test_stages_of_a_pipeline(tmp_path: Path) -> None:
    """They take equally long for the same work, one after the other."""
    assert named(Ranks(2).record(tmp_path, pipeline)) == []


def broadcast(ranks: Ranks, step: int) -> None:
    """Rank 0 sends buffers before the forward pass and does not wait for the receivers."""
    ranks.work("data_loading", 300 if every(step, 10) else 1, 400 if every(step, 20) else 1)
    ranks.meet("model_forward", 10, after=0)
    ranks.meet("model_backward", 20)


def test_a_root_that_does_not_wait(tmp_path: Path) -> None:
    """Rank 0 is late in every tenth step; in every twentieth rank 1 is 100 ms later than rank 0."""
    result = Ranks(2).record(tmp_path, broadcast)
    assert named(result) == [(0, "data", 5, 5 * 299), (1, "data", 5, 5 * 100)]


def buckets(ranks: Ranks, step: int) -> None:
    """Gradients are averaged in three pieces; the backward pass of rank 1 is slow before the second."""
    ranks.work("forward", 10, 10)
    with ranks.inside("backward"):
        for times in ((10, 10), (10, 40), (10, 10)):
            ranks.work(None, *times)
            ranks.meet("all_reduce", 2)


def test_a_slow_backward_pass_with_collectives(tmp_path: Path) -> None:
    """If the collectives in it are recorded, the rank that computes longer is named."""
    assert named(Ranks(2).record(tmp_path, buckets)) == [(1, "backward", STEPS, STEPS * 30)]


def test_nobody_is_late_at_the_first_steps(tmp_path: Path) -> None:
    """A rank that takes longer to start or compile is not a straggler."""

    def warm_up(ranks: Ranks, step: int) -> None:
        ranks.work("forward", 10, 3000 if step == 0 else 10)
        ranks.meet("backward", 20)

    ranks = Ranks(2)
    ranks.now[0] = 5000
    assert named(ranks.record(tmp_path, warm_up)) == []


def test_code_that_no_span_covers_in_each_step(tmp_path: Path) -> None:
    """20 ms between the passes of rank 1, within the iteration, in all steps."""

    def body(ranks: Ranks, step: int) -> None:
        with ranks.inside("train step"):
            ranks.work("forward", 5, 5)
            ranks.work(None, 1, 21 + step % 3)
            ranks.meet("backward", 10)

    ((rank, phase, steps, ms),) = named(Ranks(2).record(tmp_path, body))
    assert (rank, phase, steps) == (1, "training", STEPS)
    assert ms == sum(20 + step % 3 for step in range(STEPS))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("count", [2, 4])
def test_a_busy_machine(tmp_path: Path, count: int, seed: int) -> None:
    """Random delays of parts of steps, for up to ten steps in a row: no rank is named."""
    random = Random(seed)

    def times(ms: int) -> list[int]:
        held_up = [random.random() < 0.02 * ms for _ in range(count)]
        return [ms + is_held * min(300, int(10 * random.paretovariate(1.1))) for is_held in held_up]

    def body(ranks: Ranks, _: int) -> None:
        with ranks.inside("train step"):
            for name, ms in (("data_loading", 2), ("forward", 10), (None, 1), ("forward", 5)):
                ranks.work(name, *times(ms))
            ranks.meet("backward", 20)
            ranks.work("optimizer", *times(2))

    run = Ranks(count).record(tmp_path, body)
    assert named(run) == []
    assert [f.sentence for f in findings(run) if f.rule != "low-goodput"] == []


def test_a_rank_that_is_late_now_and_then_and_early_otherwise(tmp_path: Path) -> None:
    """It is not a straggler if it takes no longer in that phase over all steps."""
    late = set(Random(1).sample(range(5, 95), 12))

    def body(ranks: Ranks, step: int) -> None:
        ranks.work("forward", 12, 30 if step in late else 10)
        ranks.meet("backward", 20)
        ranks.work("optimizer", 2, 2)

    assert named(Ranks(2).record(tmp_path, body)) == []


def test_all_steps_in_which_a_rank_is_slower_are_counted(tmp_path: Path) -> None:
    """Also steps in which it is less slow: 20 ms here and 60 ms there, compared with 2 ms."""
    random = Random(2)

    def body(ranks: Ranks, step: int) -> None:
        ranks.work("wait for data", 2, 20 if random.random() < 0.3 else 60)
        ranks.work("forward", 10, 10)
        ranks.meet("backward", 20)
        ranks.work("optimizer", 2, 2)

    (result,) = findings(Ranks(2).record(tmp_path, body))
    assert result.sentence.startswith(
        "Rank 1 is slower than the others in nearly all steps: getting its data takes "
    )
    assert result.sentence.count(" instead of 2 ms. Waiting for it costs the other rank ") == 1
