"""Any sequence of records, by any number of threads and tasks, is read back as recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stepwell
from stepwell import Run
from tests.in_memory import folder_in_memory
from tests.reading.model import Expected, Model, Worker, as_json, check, merged, roll

THREADS = 3
TEXT = st.text(max_size=20) | st.sampled_from(["\ud800", "\0", "\u2028", "x" * 9000, '"\n'])
SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(width=64) | TEXT
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=3)
    ),
    max_leaves=5,
)
ATTRIBUTES = st.dictionaries(st.text("klmn", min_size=1, max_size=3), VALUES, max_size=3)
NAMES = st.sampled_from(["a", "b", "c", "a/b", 'q"', "line\n", "\u2028", "ü🙂"])
STEPS = st.none() | st.integers(-(2**62) + 1, 2**62 - 1)

OPERATION = st.one_of(
    st.tuples(st.just("enter"), NAMES, ATTRIBUTES),
    st.tuples(st.just("enter"), NAMES, st.just({})),
    st.tuples(st.just("exit"), st.booleans()),
    st.tuples(st.just("exit"), st.just(False)),
    st.tuples(st.just("set"), ATTRIBUTES),
    st.tuples(st.just("log"), NAMES, st.floats(), STEPS),
    st.tuples(st.just("event"), NAMES, ATTRIBUTES),
    st.tuples(st.just("step"), st.integers(0, 2**39 - 2), st.none() | st.integers(0, 2**24 - 2)),
    st.tuples(st.just("roll")),
)
PROGRAM = st.lists(st.tuples(st.integers(0, THREADS - 1), OPERATION), max_size=40)

quietly = settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@contextmanager
def recording() -> Iterator[Run]:
    with pytest.MonkeyPatch.context() as patch, folder_in_memory() as folder:
        patch.setenv("STEPWELL_STRICT", "1")
        run = stepwell.init("round trip", dir=Path(folder))
        try:
            yield run
        finally:
            run.finish()


class Boom(Exception):
    pass


class Player:
    """One line of control: its open spans, as the program and as the model know them."""

    def __init__(self, run: Run, model: Model, name: str) -> None:
        self.run, self.model, self.name = run, model, name
        self.stack: list[tuple[Any, Expected]] = []

    @property
    def inside(self) -> Expected | None:
        return self.stack[-1][1] if self.stack else None

    def play(self, kind: str, *arguments: Any) -> None:
        getattr(self, kind)(*arguments)

    def enter(self, name: str, attributes: dict[str, Any]) -> None:
        span = self.run.span(name, **attributes)
        span.__enter__()
        self.stack.append((span, self.model.enter(name, self.inside, attributes, self.name)))

    def exit(self, fails: bool) -> None:
        if not self.stack:
            return
        span, expected = self.stack.pop()
        error = Boom("bang") if fails else None
        span.__exit__(type(error) if error else None, error, None)
        expected.status = "error" if fails else "ok"
        if fails:
            details = {"exception_type": "Boom", "exception_message": "bang"}
            self.model.events.append((self.name, "error", details, expected, self.model.step))

    def set(self, attributes: dict[str, Any]) -> None:
        if self.stack:
            span, expected = self.stack[-1]
            span.set(**attributes)
            expected.attributes = merged(expected.attributes, attributes)

    def log(self, name: str, value: float, step: int | None) -> None:
        self.run.log({name: value}, step=step)
        self.model.log(name, value, step, self.name)

    def event(self, name: str, attributes: dict[str, Any]) -> None:
        self.run.event(name, **attributes)
        details = as_json(attributes)
        self.model.events.append((self.name, name, details, self.inside, self.model.step))

    def step(self, step: int, epoch: int | None) -> None:
        self.run.set_step(step, epoch=epoch)
        self.model.step = step
        self.model.epoch = self.model.epoch if epoch is None else epoch

    def roll(self) -> None:
        roll()


@quietly
@given(program=PROGRAM, looks=st.sets(st.integers(0, 40), max_size=3), finish=st.booleans())
def test_threads_that_interleave(program: list[Any], looks: set[int], finish: bool) -> None:
    """Spans, attributes, values, events and steps of three threads are read as recorded: while it
    runs, at any moment, and after it finished, with whatever was open then.
    """
    workers = [Worker(f"worker {n}") for n in range(THREADS)]
    with recording() as run:
        model = Model()
        players = [Player(run, model, worker.name) for worker in workers]
        try:
            for at, (number, (kind, *arguments)) in enumerate(program):
                player = players[number]
                workers[number].do(lambda p=player, k=kind, a=arguments: p.play(k, *a))
                if at in looks:
                    check(run, model)
            check(run, model)
            if finish:
                run.finish()
                check(run, model, ended=True)
        finally:
            for worker in workers:
                worker.stop()


@quietly
@given(program=PROGRAM, finish=st.booleans())
def test_tasks_that_interleave(program: list[Any], finish: bool) -> None:
    """The same for three tasks of one event loop, whose spans nest each in their own task, below the
    span that they were started in.
    """
    with recording() as run:
        model = Model()
        asyncio.run(play_in_tasks(run, model, program, finish))


async def play_in_tasks(run: Run, model: Model, program: list[Any], finish: bool) -> None:
    base = Player(run, model, "MainThread")
    base.enter("base", {"in": "loop"})
    queues: list[asyncio.Queue[Any]] = [asyncio.Queue() for _ in range(THREADS)]
    done: asyncio.Queue[None] = asyncio.Queue()

    async def task(number: int) -> None:
        player = Player(run, model, "MainThread")
        player.stack.extend(base.stack)
        while (operation := await queues[number].get()) is not None:
            if not (operation[0] == "exit" and len(player.stack) == 1):
                player.play(*operation)
            await done.put(None)

    tasks = [asyncio.create_task(task(number)) for number in range(THREADS)]
    for number, operation in program:
        await queues[number].put(operation)
        await done.get()
    check(run, model)
    if finish:
        run.finish()
        check(run, model, ended=True)
    for q in queues:
        await q.put(None)
    await asyncio.gather(*tasks)


@pytest.mark.full
@settings(quietly, max_examples=8)
@given(
    program=st.lists(st.tuples(st.integers(0, 1), OPERATION), min_size=5, max_size=20),
    filler=st.integers(16_360, 16_400),
)
def test_a_segment_that_fills_up_by_itself(program: list[Any], filler: int) -> None:
    """Nothing changes where a lane runs out of slots in the middle of it all."""
    workers = [Worker(f"worker {n}") for n in range(2)]
    with recording() as run:
        model = Model()
        players = [Player(run, model, worker.name) for worker in workers]

        def fill() -> None:
            span = run.span("filler")
            for _ in range(filler):
                with span:
                    pass

        try:
            for player, worker in zip(players, workers, strict=True):
                worker.do(lambda p=player: p.play("enter", "long", {"a": 1}))
                worker.do(fill)
            for number, (kind, *arguments) in program:
                workers[number].do(lambda p=players[number], k=kind, a=arguments: p.play(k, *a))
            without_filler(run, model)
        finally:
            for worker in workers:
                worker.stop()


def without_filler(run: Run, model: Model) -> None:
    """Compare all but the fillers, which have only to be as many as were written."""
    import polars as pl

    from stepwell import open_run

    spans = open_run(run.path).spans().collect()
    kept = spans.filter(pl.col("name") != "filler").sort("start_ns", maintain_order=True)
    assert kept["name"].to_list() == [span.name for span in model.spans]
    assert kept["depth"].to_list() == [span.depth for span in model.spans]
    expected = [None if s.parent is None else s.parent.name for s in model.spans]
    names = dict(zip(spans["id"], spans["name"], strict=True))
    assert [None if p is None else names[p] for p in kept["parent"]] == expected
    fillers = spans.filter(pl.col("name") == "filler")
    assert (fillers["status"] == "ok").all()
    assert (fillers["depth"] == 1).all()
