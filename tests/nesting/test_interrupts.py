"""Ctrl-C at any moment, also inside the recorder itself."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import stepwell
from tests.harness import run_script
from tests.harness.marks import others_in_full
from tests.nesting.tree import SLOTS

SCRIPT = """
import signal, sys
import stepwell
from stepwell.journal.state import local

INTERRUPTS = 1000
interrupts = 0
armed = False

def interrupt(number, frame):
    # Once while the loop runs: elsewhere it would hit the test, not the recorder.
    global armed
    if armed:
        armed = False
        raise KeyboardInterrupt

def spans(rounds):
    step, inner = stepwell.span("step"), stepwell.span("inner")
    for i in range(rounds):
        with step:
            with inner, stepwell.span("attributed", i=i):
                pass

def storm():
    global interrupts, armed
    while interrupts < INTERRUPTS:
        try:
            armed = True
            spans(10_000)
            armed = False
        except KeyboardInterrupt:
            interrupts += 1

run = stepwell.init(dir=sys.argv[1], run_id="storm")
signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0007)
if sys.argv[2] == "inside":
    with stepwell.span("around"):
        storm()
else:
    storm()
signal.setitimer(signal.ITIMER_REAL, 0)
lane = local.lane
assert len(lane.orphans) <= 64, len(lane.orphans)
assert len(lane.stack) <= 3 * INTERRUPTS, len(lane.stack)
for _ in range(int(sys.argv[3])):
    with stepwell.span("filler"):
        pass
for i in range(100):
    with stepwell.span("after", i=i):
        with stepwell.span("after inside"):
            stepwell.event("ping", i=i)
assert len(lane.stack) <= 2 * INTERRUPTS + 1, len(lane.stack)
run.finish()
"""


def weather(tmp_path: Path, where: str, fill: int = 0) -> pl.DataFrame:
    """The spans of a process that was interrupted 1,000 times in a loop of nothing but spans."""
    done = run_script(SCRIPT, tmp_path, where, str(fill))
    assert (done.returncode, done.stderr) == (0, "")
    return stepwell.open_run(tmp_path / "storm").spans().collect().sort("start_ns")


def parents_of(spans: pl.DataFrame, name: str) -> list[str | None]:
    above = spans.select(parent="id", above="name")
    children = spans.filter(pl.col("name") == name).join(above, on="parent", how="left")
    return children["above"].to_list()


def test_interrupts_inside_a_span_leave_the_tree_right(tmp_path: Path) -> None:
    """When the span around the storm is left, what comes next is at the root again."""
    spans = weather(tmp_path, "inside")
    assert spans["id"].n_unique() == spans.height
    assert parents_of(spans, "around") == [None]
    assert parents_of(spans, "after") == [None] * 100
    assert parents_of(spans, "after inside") == ["after"] * 100
    assert set(spans.filter(pl.col("name").str.starts_with("after"))["status"]) == {"ok"}
    assert stepwell.open_run(tmp_path / "storm").open_spans().collect().height == 0
    events = stepwell.open_run(tmp_path / "storm").events().filter(pl.col("name") == "ping")
    on = events.collect().join(spans.select(span="id", on="name"), on="span")["on"]
    assert on.to_list() == ["after inside"] * 100


@pytest.mark.parametrize("fill", others_in_full([0, 2 * SLOTS], [0]))
def test_interrupts_at_the_root_leave_the_recorder_working(tmp_path: Path, fill: int) -> None:
    """Without a span around the interrupts the recorder continues, also over roll-overs.

    An interrupt on the very first instruction of leaving a span cannot be told from a span that is
    still open, so one of those may stay around all that follows until an outer span is left.
    """
    spans = weather(tmp_path, "root", fill)
    assert parents_of(spans, "after inside") == ["after"] * 100
    around = set(parents_of(spans, "after"))
    assert len(around) == 1
    assert around <= {None, "step", "inner", "attributed"}
    assert spans["id"].n_unique() == spans.height
