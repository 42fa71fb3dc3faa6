"""Jobs with deliberate misuse, each followed by a correct job that must be unaffected."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

import stepwell
from stepwell import training
from stepwell._core import errors
from stepwell.testing import FakeClock
from stepwell.training import (
    application,
    checkpoint_save,
    data_loading,
    model_forward,
    model_init,
    on_save_checkpoint_end,
    on_save_checkpoint_start,
    on_save_checkpoint_success,
    training_iteration,
    training_loop,
    validation_iteration,
    validation_loop,
)
from stepwell.training.calls import current
from tests.nesting.tree import check_tree

Case = Callable[[FakeClock], object]
BETWEEN = "between"


def right_job(clock: FakeClock) -> None:
    """A job in which everything is called as it should be."""
    with application():
        with model_init():
            clock.advance(3)
        with training_loop(train_iterations_start=4):
            for took in (0.25, 0.5, 1.5):
                with training_iteration(samples=8):
                    with data_loading():
                        clock.advance(took)
                    with model_forward():
                        clock.advance(1)
                clock.advance(0.125)
            with validation_loop():
                for took in (1, 2):
                    with validation_iteration():
                        clock.advance(took)
            with checkpoint_save(7):
                clock.advance(2)
            on_save_checkpoint_start(8, strategy="async")
            clock.advance(0.5)
            on_save_checkpoint_end()
            on_save_checkpoint_success(8)
        with training.testing_loop(), training.testing_iteration():
            clock.advance(1)


@dataclass
class Recorded:
    """The records of a case, and those of the correct job after it."""

    spans: pl.DataFrame
    events: list[tuple[str, str | None, dict[str, Any]]]
    after: tuple[list[Any], list[Any]]
    warnings: list[str]
    problems: int
    status: str

    @property
    def edges(self) -> Counter[tuple[str, str | None]]:
        """How often a span of a name is inside one of another name."""
        names = dict(self.spans.select("id", "name").iter_rows())
        pairs = self.spans.select("name", "parent").iter_rows()
        return Counter((name, names.get(parent)) for name, parent in pairs)

    @property
    def complaints(self) -> list[str]:
        """The messages of the events about the telemetry itself."""
        found = [e for e in self.events if e[0] == errors.TELEMETRY_ERROR]
        return [f"{about['error_type']}: {about['error_message']}" for _, _, about in found]

    def attributes(self, event: str) -> list[dict[str, Any]]:
        """The attributes of the events of this name."""
        return [about for name, _, about in self.events if name == event]

    def statuses(self) -> dict[str, str]:
        """Status by the name of the span."""
        return dict(self.spans.select("name", "status").iter_rows())


def record(folder: Path, case: Case | None = None, then: Case | None = right_job) -> Recorded:
    """Record a case and then the correct job; both on a stopped clock."""
    errors.counts.clear()
    said = _Keep()
    logging.getLogger("stepwell").addHandler(said)
    try:
        with FakeClock() as clock:
            run = stepwell.init("misuse", dir=folder)
            if case is not None:
                case(clock)
            end_what_is_open()
            clock.advance(1000)
            stepwell.event(BETWEEN)
            clock.advance(1000)
            if then is not None:
                then(clock)
            run.finish()
    finally:
        logging.getLogger("stepwell").removeHandler(said)
    return _read(stepwell.open_run(run.path), said.messages)


def end_what_is_open() -> None:
    """End the application if a case left it open, as a program would at last."""
    job = current.job
    if job is not None:
        job.close("finished")


class _Keep(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def _read(run: Any, warnings: list[str]) -> Recorded:
    spans = run.spans().collect().sort("start_ns", "id")
    check_tree(spans)
    events = run.events().collect().sort("time_ns")
    names = dict(spans.select("id", "name").iter_rows())
    (between,) = events.filter(pl.col("name") == BETWEEN)["time_ns"]
    before = pl.col("start_ns") < between
    own = spans.filter(before)
    told = [
        (name, names.get(span), json.loads(text) if text else {})
        for name, span, text in events.filter(pl.col("time_ns") < between)
        .select("name", "span", "attributes")
        .iter_rows()
    ]
    (process,) = run.path.glob("rank-*/process.json")
    about = json.loads(process.read_text())
    return Recorded(
        own,
        told,
        _relative(spans.filter(~before), events.filter(pl.col("time_ns") > between), between),
        warnings,
        about["problems"],
        about["status"],
    )


def _relative(spans: pl.DataFrame, events: pl.DataFrame, begin: int) -> tuple[list[Any], list[Any]]:
    """Spans and events in a form that does not depend on the start of the run or on earlier records."""
    names = dict(spans.select("id", "name").iter_rows())
    columns = ("name", "parent", "start_ns", "duration_ns", "status", "attributes")
    rows = [
        (name, names.get(parent), start - begin, *more)
        for name, parent, start, *more in spans.select(columns).iter_rows()
    ]
    told = [
        (name, names.get(span), time - begin, _without_dates(text, begin))
        for name, span, time, text in events.select(
            "name", "span", "time_ns", "attributes"
        ).iter_rows()
    ]
    return rows, sorted(told, key=lambda row: (row[2], row[0], str(row)))


def _without_dates(text: str | None, begin: int) -> dict[str, Any]:
    about: dict[str, Any] = json.loads(text) if text else {}
    for name in about:
        if name.endswith("_timestamp_sec"):
            about[name] = round(about[name] - begin / 1e9, 3)
    return about


def in_thread(function: Callable[[], object]) -> None:
    """Call a function in a thread that has ended when this returns."""
    problems: list[BaseException] = []

    def call() -> None:
        try:
            function()
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    if problems:
        raise problems[0]
