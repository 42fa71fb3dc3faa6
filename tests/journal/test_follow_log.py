"""Following a log: each record is returned once, to its loggers, and again between two cursors."""

from __future__ import annotations

import math
import random
import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell import Run
from stepwell.follower.log import LogFollower
from stepwell.follower.records import ItemRecord, MetricRecord, StatusRecord
from stepwell.journal.format import ROW_BYTES
from stepwell.journal.pump import Pump
from stepwell.journal.state import current_lane
from tests.durability.helpers import Child
from tests.journal.logging_rows import all_of, folder_of, log_for, through_json, write_line

pytestmark = pytest.mark.usefixtures("slots")


def follow(run: Run | Path, number: int | None = None, **more: Any) -> LogFollower:
    return LogFollower(folder_of(run.path if isinstance(run, Run) else run), number, **more)


def seen(records: list[Any]) -> list[tuple[Any, ...]]:
    """Name, step and value of metrics."""
    return [(r.name, r.step, r.value) for r in records if isinstance(r, MetricRecord)]


# Records


def test_each_logger_gets_what_is_for_it(recorded: Run) -> None:
    """A plain log() is for none of them; a follower of everything gets that too."""
    log_for("1", "loss", 0.5, 0)
    log_for("1+3", "loss", 0.25, 1)
    log_for("3", "accuracy", 0.9, 1)
    log_for("13", "other", 1.0, 1)
    stepwell.log({"plain": 7.0}, step=4)
    assert seen(all_of(follow(recorded, 1))) == [("loss", 0, 0.5), ("loss", 1, 0.25)]
    assert seen(all_of(follow(recorded, 3))) == [("loss", 1, 0.25), ("accuracy", 1, 0.9)]
    assert seen(all_of(follow(recorded, 2))) == []
    assert len(all_of(follow(recorded))) == 5
    audiences = [record.audience for record in all_of(follow(recorded))]
    assert audiences == [(1,), (1, 3), (3,), (13,), ()]


def test_a_metric_has_its_step_epoch_time_and_thread(recorded: Run) -> None:
    """Without a step it is the count of earlier values; the epoch is that of its time."""
    stepwell.log({"a": 1.0})
    stepwell.log({"a": 2.0})
    stepwell.set_step(10, epoch=0)
    stepwell.log({"a": 3.0})
    stepwell.set_step(11)
    stepwell.log({"a": 4.0}, step=-5)
    stepwell.set_step(12, epoch=1)
    thread = threading.Thread(target=stepwell.log, args=({"a": 5.0},), name="worker")
    thread.start()
    thread.join()
    records = all_of(follow(recorded))
    assert [(r.value, r.step, r.epoch, r.thread) for r in records] == [
        (1.0, 0, None, "MainThread"),
        (2.0, 1, None, "MainThread"),
        (3.0, 10, 0, "MainThread"),
        (4.0, -5, 0, "MainThread"),
        (5.0, 12, 1, "worker"),
    ]
    times = [r.time_ns for r in records]
    assert times == sorted(times)


def test_numbers_that_are_none_are_exact(recorded: Run) -> None:
    """NaN and infinities are what they were."""
    for value in (math.inf, -math.inf, math.nan, -0.0, 5e-324):
        log_for("1", "x", value, 0)
    values = [record.value for record in all_of(follow(recorded, 1))]
    assert values[:2] == [math.inf, -math.inf]
    assert math.isnan(values[2])
    assert math.copysign(1, values[3]) == -1
    assert values[4] == 5e-324


def test_items_come_with_what_is_known_of_them(recorded: Run) -> None:
    """Items are ordered by time among the metrics; unknown fields stay in the attributes."""
    write_line("item", "lr", item="param", audience=[1, 2], step=None, epoch=None, value=0.1)
    log_for("2", "loss", 0.5, 3)
    file_fields = {"content": "ab" * 32, "file": "c.png", "media": "image/png", "size": 3}
    write_line("item", "c", item="figure", audience=[2], step=3, epoch=1, dpi=80, **file_fields)
    write_line("item", "other", item="text", audience=[1], value="for somebody else")
    write_line("event", "no item")
    param, loss, figure = all_of(follow(recorded, 2))
    assert (param.kind, param.name, param.value, param.step) == ("param", "lr", 0.1, None)
    assert param.audience == (1, 2)
    assert seen([loss]) == [("loss", 3, 0.5)]
    assert isinstance(figure, ItemRecord)
    assert (figure.content, figure.file, figure.media, figure.size) == tuple(file_fields.values())
    assert (figure.step, figure.epoch, figure.attributes) == (3, 1, {"dpi": 80})


def test_what_comes_later_is_given_later(recorded: Run) -> None:
    """Nothing twice, nothing left out, and nothing when nothing is new."""
    follower = follow(recorded, 1)
    assert follower.poll() == []
    for i in range(5):
        log_for("1", "loss", float(i), i)
        log_for("2", "loss", float(i), i)
        assert seen(all_of(follower)) == [("loss", i, float(i))]
        assert follower.poll() == []


def test_a_row_that_is_written_late_is_not_passed_over(recorded: Run) -> None:
    """A signal handler may log between reserving a row and writing it."""
    log_for("1", "loss", 1.0, 1)
    follower = follow(recorded, 1)
    lane = current_lane()
    assert lane is not None
    reserved = lane.row_next
    lane.row_next += ROW_BYTES
    log_for("1", "loss", 3.0, 3)
    before = follower.cursor
    assert seen(all_of(follower)) == [("loss", 1, 1.0), ("loss", 3, 3.0)]
    middle = follower.cursor
    behind, lane.row_next = lane.row_next, reserved
    log_for("1", "loss", 2.0, 2)
    lane.row_next = behind
    # Its time lies in the past, but it is new.
    again = follow(recorded, 1, cursor=through_json(middle))
    assert seen(all_of(again)) == [("loss", 2, 2.0)]
    assert seen(follower.between(before, middle)) == [("loss", 1, 1.0), ("loss", 3, 3.0)]
    assert seen(follower.between(middle, again.cursor)) == [("loss", 2, 2.0)]


def test_what_is_no_number_leaves_a_gap_and_stops_nothing(recorded: Run) -> None:
    """Its row stays empty for good."""
    follower = follow(recorded)
    for i in range(100):
        stepwell.log({"text": "abc", "loss": float(i)}, step=i)
        assert seen(all_of(follower)) == [("loss", i, float(i))]
    assert len(str(follower.cursor)) < 500


# Between cursors


def busy(run: Run, seed: int) -> None:
    """A few threads that log for two loggers, and params in between."""
    stepwell.set_step(0, epoch=seed)

    def work(number: int) -> None:
        chance = random.Random(f"{seed} {number}")
        for i in range(700):
            log_for(chance.choice(["1", "2", "1+2"]), f"m{chance.randrange(5)}", chance.random(), i)
            if i % 97 == 0:
                write_line("item", f"p{i}", item="param", audience=[1], value=i)
                stepwell.set_step(i, epoch=seed + i)

    threads = [threading.Thread(target=work, args=(n,), name=f"t{n}") for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_between_two_cursors_is_always_the_same(recorded: Run, tmp_path: Path) -> None:
    """While it is live, when it is sealed, after its end: same records, same order, none left out."""
    follower = follow(recorded, 1, limit=101)
    cursors, batches = [through_json(follower.cursor)], []
    for seed in range(3):
        busy(recorded, seed)
        while records := follower.poll():
            cursors.append(through_json(follower.cursor))
            batches.append(records)
    for stage in ("live", "flushed", "finished"):
        if stage == "flushed":
            assert recorded.flush()
        elif stage == "finished":
            recorded.finish()
        other = follow(recorded, 1)
        for i in random.Random(1).sample(range(len(batches)), 12):
            assert other.between(cursors[i], cursors[i + 1]) == batches[i]
            # And continues after it.
            if i + 1 < len(batches):
                other.limit = 101
                assert other.poll()[:1] == batches[i + 1][:1]
    # Times too, also for a new follower without the state of the first one.
    assert follow(recorded, 1).between({}, cursors[1]) == batches[0]
    given = [record for batch in batches for record in batch]
    whole = all_of(follow(recorded, 1, cursor=cursors[0]))
    assert isinstance(whole.pop(), StatusRecord)
    assert Counter(map(key, given)) == Counter(map(key, whole))
    assert len({key(record) for record in whole}) == len(whole)


def key(record: Any) -> tuple[Any, ...]:
    return record.type, record.name, record.step, record.value, record.time_ns, record.thread


def test_a_follower_that_begins_again_all_the_time_misses_nothing(recorded: Run) -> None:
    """Every batch is read by another one, which knows the cursor alone, while segments are sealed."""
    cursor: dict[str, Any] = {}
    given: list[Any] = []
    stop = threading.Event()

    def read() -> None:
        nonlocal cursor
        while True:
            last = stop.is_set()
            follower = follow(recorded, 1, cursor=through_json(cursor))
            given.extend(follower.poll())
            cursor = follower.cursor
            if last and not follower.poll():
                return

    reader = threading.Thread(target=read)
    reader.start()
    for i in range(6000):
        log_for("1", "loss", float(i), i)
    stop.set()
    reader.join(120)
    assert sorted(record.step for record in given) == list(range(6000))


def test_a_sealed_segment_whose_file_is_still_there_counts_once(
    recorded: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill between sealing and removing a segment, a new follower must not read it twice."""
    # A full segment and one in use, none of them sealed yet.
    seal = Pump.seal_retired
    monkeypatch.setattr(Pump, "seal_retired", lambda pump: None)
    for i in range(1500):
        log_for("1", "loss", float(i), i)
    folder = folder_of(recorded.path)
    copies = folder / "copies"
    copies.mkdir()
    for path in folder.glob("metrics-*.live"):
        shutil.copy(path, copies)
    assert len(list(copies.iterdir())) == 2
    follower = follow(recorded, 1)
    assert len(all_of(follower)) == 1500
    middle = through_json(follower.cursor)
    monkeypatch.setattr(Pump, "seal_retired", seal)
    recorded.finish()
    for path in copies.iterdir():
        shutil.copy(path, folder)
    assert [r.type for r in all_of(follower)] == ["status"]
    for cursor in (middle, {**through_json(follower.cursor), "over": False}):
        assert [r.type for r in all_of(follow(recorded, 1, cursor=cursor))] == ["status"]
    assert len(all_of(follow(recorded, 1))) == 1501


# How it ends


def test_the_status_of_a_logger_that_ended_comes_last(recorded: Run) -> None:
    """The run continues, and so does the other logger."""
    log_for("1+2", "loss", 1.0, 0)
    write_line("logger", "mlflow", number=1, to="mlflow")
    write_line("logger", "mlflow", number=1, status="failed")
    first, second = follow(recorded, 1), follow(recorded, 2)
    *records, status = all_of(first)
    assert seen(records) == [("loss", 0, 1.0)]
    assert (status.type, status.status) == ("status", "failed")
    assert first.over
    assert seen(all_of(second)) == [("loss", 0, 1.0)]
    assert not second.over
    assert follow(recorded, 1, cursor=through_json(first.cursor)).poll() == []


@pytest.mark.parametrize("status", ["finished", "failed", "killed"])
def test_a_logger_that_says_nothing_ends_as_its_process_does(recorded: Run, status: str) -> None:
    """The status is returned after all records."""
    log_for("1", "loss", 1.0, 0)
    follower = follow(recorded, 1)
    assert len(all_of(follower)) == 1
    log_for("1", "loss", 2.0, 1)
    recorded.finish(status)
    *records, end = all_of(follower)
    assert seen(records) == [("loss", 1, 2.0)]
    assert (end.status, follower.over) == (status, True)


@pytest.mark.parametrize("spooled", [False, True])
def test_after_a_kill_everything_is_there(tmp_path: Path, spooled: bool) -> None:
    """All that was logged before, also what lay in a spool, and that it was killed."""
    variables = {"STEPWELL_SPOOL": str(tmp_path / "spool")} if spooled else {}
    with Child(tmp_path, **variables) as child:
        run = Path(
            child.do(
                "from tests.journal.logging_rows import log_for, write_line\n"
                "run = init('t', dir='runs')\n"
                "for i in range(20000): log_for('1', 'loss', float(i), i)\n"
                "write_line('item', 'lr', item='param', audience=[1], value=0.5)\n"
                "answer = str(run.path)"
            )
        )
        follower = follow(run, 1)
        given = [] if spooled else all_of(follower)
        child.kill()
    given += all_of(follower)
    assert given.pop().status == "killed"
    assert [r.step for r in given if r.type == "metric"] == list(range(20_000))
    assert [(r.name, r.value) for r in given if r.type == "item"] == [("lr", 0.5)]


def test_what_is_long_ago_can_be_left_out(recorded: Run, slots: int) -> None:
    """It begins with the latest segments, and reports each step to ``on_context``."""
    contexts: list[tuple[int, int | None, int | None]] = []
    for i in range(3 * slots):
        recorded.set_step(i, 7)
        stepwell.log({"loss": float(i)})
    recorded.flush()
    follower = follow(recorded)
    follower.on_context = lambda *context: contexts.append(context)
    everything = seen(all_of(follower))
    assert [step for _, step, _ in everything] == list(range(3 * slots))
    assert [(step, epoch) for _, step, epoch in contexts] == [(i, 7) for i in range(3 * slots)]
    assert [time for time, _, _ in contexts] == sorted(time for time, _, _ in contexts)
    recent = follow(recorded)
    recent.skip_older(0, most_segments=1)
    given = seen(all_of(recent))
    assert 0 < len(given) < len(everything)
    assert given == everything[-len(given) :]
