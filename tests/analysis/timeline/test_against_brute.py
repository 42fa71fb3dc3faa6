"""Random runs: the ledger and the table of steps compared with a slow reference implementation."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.analysis.timeline import PHASES, ledger, steps, timelines
from tests.analysis.timeline.brute import NAMES, Slow
from tests.analysis.timeline.writing import WALL, Process, Thread, Written, write_run

END = 200


@st.composite
def nested(draw: Any) -> list[Written]:
    """Nested spans, as from ``with`` statements."""
    spans: list[Written] = []
    stack: list[int] = []
    now = draw(st.integers(0, 20))
    for _ in range(draw(st.integers(0, 40))):
        now = min(now + draw(st.integers(0, 9)), END)
        if stack and draw(st.booleans()):
            spans[stack.pop()].end = now
        elif len(stack) < 6:
            parent = stack[-1] if stack else None
            stack.append(len(spans))
            spans.append(Written(draw(st.sampled_from(NAMES)), now, None, parent))
    for number in stack:
        # Some never end.
        spans[number].end = None
    return spans


@st.composite
def tangled(draw: Any) -> list[Written]:
    """Spans that overlap in any way, with any earlier span as the parent: tasks, children that outlive it."""
    count = draw(st.integers(1, 25))
    begins = sorted(draw(st.lists(st.integers(0, END - 1), min_size=count, max_size=count)))
    spans = []
    for number, start in enumerate(begins):
        end = min(start + draw(st.integers(0, 60)), END)
        parent = draw(st.none() | st.integers(0, number - 1)) if number else None
        spans.append(Written(draw(st.sampled_from(NAMES)), start, end, parent))
    return spans


pauses = st.lists(st.tuples(st.integers(0, END), st.integers(0, 15)), max_size=4)


@settings(max_examples=50, deadline=None)
@given(st.one_of(nested(), tangled()), pauses)
def test_every_instant_has_the_phase_and_step_of_the_reference(
    spans: list[Written], collections: list[tuple[int, int]]
) -> None:
    """Equal to the nanosecond, and the sum is the wall time."""
    gc = [Written("gc", a, min(a + b, END), None, "runtime") for a, b in collections]
    _compare(Process([Thread(spans), Thread(gc, "gc")], END))


@settings(max_examples=50, deadline=None)
@given(st.one_of(nested(), tangled()), st.sets(st.integers(0, END - 1), max_size=8))
def test_steps_that_were_set_are_those_of_the_reference(
    spans: list[Written], times: set[int]
) -> None:
    """Without standard iterations, the computation of a step is one."""
    for span in spans:
        if span.name == "training_single_iteration":
            span.name = "model_backward"
    spans.append(Written("model_forward", END - 1, END))
    changes = [(time, step, None) for step, time in enumerate(sorted(times))]
    _compare(Process([Thread(spans)], END, steps=list(changes)))


def _compare(process: Process) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder), process)
        slow = Slow(run, [WALL + time for time, _, _ in process.steps])
        expected = slow.ledger()
        result = timelines(run)
        iterations = slow.iterations()
        table = steps(result)
        assert table["start_ns"].to_list() == [i["start"] for i in iterations]
        assert table["duration_ns"].to_list() == [i["end"] - i["start"] for i in iterations]
        part = result[0]
        assert part.cells.sum() == part.wall_ns == END
        by_row = {
            (row - 1 if 0 < row <= len(iterations) else None, phase): int(ns)
            for code, phase in enumerate(part.phases)
            for row, ns in enumerate(part.cells[code])
            if ns and iterations
        }
        in_all = dict(ledger(result).select("phase", "ns").rows())
        if iterations:
            # The time before the first step and after the last one has no step.
            outside = {p: int(part.cells[c, [0, -1]].sum()) for c, p in enumerate(part.phases)}
            by_row |= {(None, phase): ns for phase, ns in outside.items() if ns}
            assert by_row == expected
        for phase in (*PHASES, "span:my own", "span:helper"):
            assert in_all.get(phase, 0) == sum(n for (_, p), n in expected.items() if p == phase)
        phases = table.select(pl.sum_horizontal(table.columns[8:]).alias("sum"))["sum"]
        assert phases.to_list() == table["period_ns"].to_list()
