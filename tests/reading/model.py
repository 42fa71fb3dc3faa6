"""A model of what a run holds: programs of recording calls, and what reading must give back.

Expected values come from here, written by hand, and never from the code under test.
"""

from __future__ import annotations

import json
import math
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stepwell import Run, open_run
from stepwell.journal.state import local


@dataclass
class Expected:
    """One span as it should be read."""

    name: str
    parent: Expected | None
    attributes: dict[str, Any]
    step: int | None
    epoch: int | None
    thread: str
    status: str = "open"

    @property
    def depth(self) -> int:
        return 0 if self.parent is None else self.parent.depth + 1


@dataclass
class Model:
    """Everything that was recorded so far."""

    spans: list[Expected] = field(default_factory=list)
    metrics: list[tuple[str, str, int, float]] = field(default_factory=list)
    events: list[tuple[str, str, dict[str, Any], Expected | None, int | None]] = field(
        default_factory=list
    )
    step: int | None = None
    epoch: int | None = None
    counts: dict[str, int] = field(default_factory=dict)

    def enter(
        self, name: str, parent: Expected | None, values: dict[str, Any], thread: str
    ) -> Expected:
        span = Expected(name, parent, as_json(values), self.step, self.epoch, thread)
        self.spans.append(span)
        return span

    def log(self, name: str, value: float, step: int | None, thread: str) -> None:
        if step is None and self.step is None:
            step = self.counts.get(name, 0)
            self.counts[name] = step + 1
        self.metrics.append((thread, name, self.step if step is None else step, value))  # type: ignore[arg-type]


def as_json(value: Any) -> Any:
    """The converted attributes, by the rules of the documentation."""
    flags: dict[str, str] = {}

    def convert(value: Any, path: str) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            flags[path] = repr(value)
            return None
        if isinstance(value, str):
            return (
                value if len(value) <= 8192 else value[:8192] + f"…<cut: {len(value)} characters>"
            )
        if isinstance(value, dict):
            return {str(k): convert(v, f"{path}.{k}" if path else str(k)) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [convert(v, f"{path}.{i}") for i, v in enumerate(value)]
        return value

    converted = convert(value, "")
    return {**converted, "nonfinite": flags} if flags else converted


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Attributes after ``set``: new values and their flags replace old ones."""
    added = as_json(new)
    flags = {k: v for k, v in old.get("nonfinite", {}).items() if k.split(".")[0] not in new}
    flags |= added.get("nonfinite", {})
    result = {k: v for k, v in {**old, **added}.items() if k != "nonfinite"}
    return {**result, "nonfinite": flags} if flags else result


class Worker:
    """A thread that executes one call at a time on request."""

    def __init__(self, name: str) -> None:
        self._tasks: queue.Queue[Callable[[], Any] | None] = queue.Queue()
        self._answers: queue.Queue[Any] = queue.Queue()
        self.name = name
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                self._answers.put((task(), None))
            except BaseException as error:
                self._answers.put((None, error))

    def do(self, task: Callable[[], Any]) -> Any:
        self._tasks.put(task)
        answer, error = self._answers.get(timeout=60)
        if error is not None:
            raise error
        return answer

    def stop(self) -> None:
        self._tasks.put(None)
        self._thread.join(60)


def roll() -> None:
    """Make the calling thread switch to new segments."""
    lane = getattr(local, "lane", None)
    if lane is not None:
        assert lane.roll()
        assert lane.roll_metrics()


def check(run: Run, model: Model, ended: bool = False) -> None:
    """The tables have exactly the recorded data."""
    read = open_run(run.path)
    spans = read.spans().sort("start_ns", maintain_order=True).collect().to_dicts()
    by_id = {row["id"]: row for row in spans}
    assert len(by_id) == len(spans)
    for row in spans:
        if row["parent"] is not None:
            assert row["parent"] in by_id
    positions = {id(span): i for i, span in enumerate(model.spans)}
    recorded_rows = [
        (
            row["name"],
            None if row["parent"] is None else spans.index(by_id[row["parent"]]),
            row["depth"],
            json.loads(row["attributes"] or "{}"),
            row["step"],
            row["epoch"],
            row["thread"],
            row["status"],
        )
        for row in spans
    ]
    last = "unfinished" if ended else "open"
    assert recorded_rows == [
        (
            span.name,
            None if span.parent is None else positions[id(span.parent)],
            span.depth,
            span.attributes,
            span.step,
            span.epoch,
            span.thread,
            last if span.status == "open" else span.status,
        )
        for span in model.spans
    ]
    assert all((row["duration_ns"] is None) == (row["status"] == "open") for row in spans)
    still_open = read.open_spans().sort("start_ns", maintain_order=True).collect()
    expected = [] if ended else [s.name for s in model.spans if s.status == "open"]
    assert still_open["name"].to_list() == expected
    metrics = read.metrics().sort("time_ns", maintain_order=True).collect()
    columns = ("thread", "name", "step", "value")
    assert repr(metrics.select(columns).rows()) == repr(model.metrics)
    events = read.events().sort("time_ns", maintain_order=True).collect().to_dicts()
    assert [
        (
            row["thread"],
            row["name"],
            json.loads(row["attributes"] or "{}"),
            None if row["span"] is None else spans.index(by_id[row["span"]]),
            row["step"],
        )
        for row in events
    ] == [
        (thread, name, event_attributes, None if span is None else positions[id(span)], step)
        for thread, name, event_attributes, span, step in model.events
    ]
