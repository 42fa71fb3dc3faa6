"""A roll-over that is cut off, or interrupted by a handler that records, at every single place.

The programs trace their own bytecodes inside the journal. Mapped pages outlive ``os._exit``, as they outlive
``kill -9``, so a program that exits at bytecode N leaves what a process killed there leaves.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stepwell
from stepwell.journal.recovery import recover_process
from tests.harness import run_script

SLOTS = 64
"""Of a segment, so that a roll-over comes soon."""

PROGRAM = """
import dis, os, sys
import stepwell
from stepwell.journal import lane as lane_module
from stepwell.journal.state import current_lane

lane_module.SPAN_SLOTS = {slots}
CALLS = {{dis.opmap[name] for name in ("CALL", "RESUME", "JUMP_BACKWARD") if name in dis.opmap}}


class Places:
    '''Counts bytecodes of the journal, and does something at one of them.'''

    def __init__(self, number, action, only_calls):
        self.left = number
        self.action = action
        self.only_calls = only_calls
        self.last = {{}}

    def trace(self, frame, event, argument):
        if not frame.f_globals.get("__name__", "").startswith("stepwell.journal"):
            return None
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        if event == "opcode":
            before = self.last.get(frame)
            self.last[frame] = frame.f_code.co_code[frame.f_lasti]
            # Python calls signal handlers after calls and jumps only.
            if not self.only_calls or before in CALLS:
                if self.left == 0:
                    self.action()
                self.left -= 1
        elif event == "return":
            self.last.pop(frame, None)
        return self.trace


def fill(lane):
    '''Use up the segment but for a few slots.'''
    while lane.next + 2 < lane.limit:
        with stepwell.span("child"):
            pass


def roll_over(places):
    with stepwell.span("outer", number=1), stepwell.span("inner", number=2):
        fill(current_lane())
        sys.settrace(places.trace)
        for number in range(3, 6):
            with stepwell.span("after", number=number), stepwell.span("plain"):
                pass
        sys.settrace(None)


def attempt(number):
    '''Return whether the program reached its end before the place.'''
    pid = os.fork()
    if not pid:
        try:
            run = stepwell.init(f"place-{{number}}", dir={dir!r}, quiet=True)
            act(run, number)
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(7)
        os._exit(3)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (3, 9), (number, code)
    return code == 3

{act}

number = {first}
while not attempt(number):
    number += {every}
print(number)
"""

KILLED = """
def act(run, number):
    places = Places(number, lambda: os._exit(9), only_calls=False)
    roll_over(places)
"""

HANDLED = """
def act(run, number):
    def handler():
        sys.settrace(None)
        with stepwell.span("handler", number=100 + number):
            stepwell.log({"handled": number})
        stepwell.event("handled", number=number)
        places.was_called = True
        sys.settrace(places.trace)

    places = Places(number, handler, only_calls=True)
    places.was_called = False
    roll_over(places)
    run.finish()
    if places.was_called:
        os._exit(9)
"""

INTERRUPTED = """
def act(run, number):
    def interrupt():
        places.was_called = True
        raise KeyboardInterrupt

    with stepwell.span("before"):
        lane = current_lane()
    places = Places(number, interrupt, only_calls=True)
    places.was_called = False
    try:
        roll_over(places)
    except KeyboardInterrupt:
        sys.settrace(None)
    assert current_lane() is lane, "it goes on in another lane"
    if places.was_called:
        os._exit(9)
"""


def run_everywhere(folder: Path, act: str, first: int, every: int) -> list[Path]:
    """Run the program once for each place; return the folders of its runs."""
    code = PROGRAM.format(slots=SLOTS, dir=str(folder), act=act, first=first, every=every)
    done = run_script(code, timeout=3000)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 200
    return sorted(folder.iterdir())


def rows(run: Any) -> tuple[list[Any], list[Any]]:
    """Return the spans with their parents' names and attributes, and the open ones."""
    spans = run.spans().collect()
    names = dict(zip(spans["id"], spans["name"], strict=True))
    table = [
        (
            *(row["name"], names.get(row["parent"]), json.loads(row["attributes"] or "{}")),
            *(row["start_ns"], row["duration_ns"], row["status"]),
        )
        for row in spans.iter_rows(named=True)
    ]
    return sorted(table, key=repr), sorted(run.open_spans().lazy().collect()["name"])


@pytest.mark.parametrize(
    ("first", "every"),
    [
        pytest.param(30, 300, id="few"),
        pytest.param(3, 13, id="many", marks=pytest.mark.full),
        pytest.param(0, 1, id="all", marks=pytest.mark.torture),
    ],
)
def test_killed_at_any_place_of_a_roll_over(tmp_path: Path, first: int, every: int) -> None:
    """Nothing that had ended or was open is lost, and recovering changes nothing that is read."""
    for path in run_everywhere(tmp_path, KILLED, first, every):
        before = rows(stepwell.open_run(path))
        spans, _ = before
        by_name = pl.Series([name for name, *_ in spans]).value_counts()
        assert dict(by_name.iter_rows())["child"] == SLOTS - 5, path
        assert {name for name, *_ in spans} >= {"outer", "inner"}, path
        assert all(parent == "inner" for name, parent, *_ in spans if name in ("child", "after")), (
            path
        )
        for process in path.glob("rank-*"):
            recover_process(process)
        assert rows(stepwell.open_run(path)) == before, path


@pytest.mark.parametrize(
    ("first", "every"),
    [
        pytest.param(3, 46, id="few"),
        pytest.param(1, 3, id="many", marks=pytest.mark.full),
        pytest.param(0, 1, id="all", marks=pytest.mark.torture),
    ],
)
def test_a_handler_records_at_any_place_of_a_roll_over(
    tmp_path: Path, first: int, every: int
) -> None:
    """Every span has its own attributes and its own parent, the handler's and those it interrupts."""
    for path in run_everywhere(tmp_path, HANDLED, first, every):
        run = stepwell.open_run(path)
        spans, _ = rows(run)
        number = int(path.name.split("-")[1])
        expected = {"outer": [1], "inner": [2], "after": [3, 4, 5]}
        handled = run.events().filter(pl.col("name") == "handled").collect().height
        if handled:
            expected["handler"] = [100 + number]
            assert run.metrics().filter(pl.col("name") == "handled").collect().height == 1, path
        for name, numbers in expected.items():
            values = [attributes["number"] for n, _, attributes, *_ in spans if n == name]
            assert sorted(values) == numbers, (path, name)
        assert sum(name == "child" for name, *_ in spans) == SLOTS - 5, path
        assert {parent for name, parent, *_ in spans if name in ("child", "after")} == {"inner"}, (
            path
        )
        assert {parent for name, parent, *_ in spans if name == "plain"} == {"after"}, path


@pytest.mark.parametrize(
    ("first", "every"),
    [
        pytest.param(1, 46, id="few"),
        pytest.param(0, 1, id="all", marks=pytest.mark.full),
    ],
)
def test_an_interrupt_at_any_place_of_a_roll_over_leaves_the_thread_its_lane(
    tmp_path: Path, first: int, every: int
) -> None:
    """A program that catches Ctrl-C and continues records inside the spans that were open before."""
    run_everywhere(tmp_path, INTERRUPTED, first, every)
