"""The follower beside a process that records, dies, or has its live files elsewhere."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stepwell.journal.recovery import recover_process
from tests.durability.helpers import Child, files_below, only_run
from tests.harness import wait_until
from tests.journal.following import Following, process_folder

WORK = """
from stepwell.journal import lane
lane.SPAN_SLOTS = 1024
most = 20

def small(count):
    one = span("small")
    for _ in range(count):
        with one: pass

def work(begin, count):
    for i in range(begin, begin + count):
        with span("item", i=i) as item:
            small(most)
            event("tick", i=i)
            item.set(done=True)
"""


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    """A process that records."""
    with Child(tmp_path) as child:
        child.do(WORK + "run = init('followed', dir='runs')")
        yield child


@pytest.fixture
def spooled(tmp_path: Path) -> Iterator[Child]:
    """A process that records, with its live files in a spool."""
    with Child(tmp_path, STEPWELL_SPOOL=str(tmp_path / "spool")) as child:
        child.do(WORK + "run = init('followed', dir='runs')")
        yield child


def follow(tmp_path: Path, **options: Any) -> Following:
    return Following(only_run(tmp_path / "runs").path, **options)


def items(following: Following, type: str = "stop") -> list[int]:
    return [record.attributes["i"] for record in following.of(type, "item")]


def test_another_process(child: Child, tmp_path: Path) -> None:
    """A process is followed from another one while it records, and to its end."""
    few = follow(tmp_path, keep=lambda name: name != "small")
    everything = follow(tmp_path)
    for begin in range(0, 300, 30):
        child.do(f"work({begin}, 30)")
        few.poll()
        everything.poll()
        assert items(few) == items(everything) == list(range(begin + 30))
    child.do("run.finish()")
    few.to_end()
    everything.to_end()
    few.check()
    everything.check()


def test_while_it_runs(child: Child, tmp_path: Path) -> None:
    """Looks at any moment of a recording process see nothing torn."""
    following = follow(tmp_path)
    child.do("t = threading.Thread(target=work, args=(0, 200)); t.start()")
    child.do("u = threading.Thread(target=work, args=(1000, 200)); u.start()")
    while child.do("answer = t.is_alive() or u.is_alive()"):
        following.poll()
    child.do("run.finish()")
    following.to_end()
    following.check()


def test_killed(child: Child, tmp_path: Path) -> None:
    """After kill -9 the rest is returned, and open spans stop as unfinished."""
    following = follow(tmp_path, keep=lambda name: name != "small")
    child.do("outer = span('outer', a=1); outer.__enter__(); work(0, 100)")
    following.poll()
    child.do("outer.set(b=2); inner = span('inner'); inner.__enter__(); work(100, 20)")
    assert not following.follower.over
    child.kill()
    following.to_end()
    assert items(following) == list(range(120))
    inner, outer = [r for r in following.records if r.type == "stop"][-2:]
    assert (outer.name, outer.status, outer.attributes) == ("outer", "unfinished", {"a": 1, "b": 2})
    assert (inner.name, inner.status, inner.parent) == ("inner", "unfinished", outer.id)
    last = max(r.end_ns for r in following.of("stop", "item"))
    assert last <= outer.end_ns <= time.time_ns()
    assert following.poll() == []


def test_killed_and_recovered(child: Child, tmp_path: Path) -> None:
    """Recovery while following does not change the records."""
    one, two = follow(tmp_path), follow(tmp_path)
    child.do("outer = span('outer', a=1); outer.__enter__(); work(0, 100)")
    one.poll()
    two.poll()
    child.do("outer.set(b=2); work(100, 50)")
    child.kill()
    one.to_end()
    recover_process(process_folder(two.run))
    two.to_end()
    late = follow(tmp_path)
    late.to_end()
    starts_and_stops = [sorted(map(str, look.records)) for look in (one, two)]
    assert starts_and_stops[0] == starts_and_stops[1]
    assert [(r.type, r.name) for r in late.records] == [(r.type, r.name) for r in one.records]
    assert late.of("stop", "outer")[0].attributes == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    "tenths", [0, 1, *(pytest.param(n, marks=pytest.mark.full) for n in range(2, 6))]
)
def test_killed_in_the_midst(child: Child, tmp_path: Path, tenths: int) -> None:
    """Whenever it is killed, each span has one start and one stop, as the reader of runs has it."""
    following = follow(tmp_path, keep=lambda name: name != "small")
    child.do(
        "most = 200\nfor n in range(3): threading.Thread(target=work, args=(0, 10**6)).start()"
    )
    deadline = time.monotonic() + 0.1 * tenths
    while time.monotonic() < deadline:
        following.poll()
    child.kill()
    following.to_end()
    unfinished = {r.id: r for r in following.of("stop") if r.status == "unfinished"}
    # Reading has those as open, since it cannot tell when they ended.
    following.records = [r for r in following.records if r.type != "stop" or r.id not in unfinished]
    following.check()


def test_spool(spooled: Child, tmp_path: Path) -> None:
    """Live files are read in the spool, and the rest in the run folder when that is gone."""
    following = follow(tmp_path)
    for begin in range(0, 200, 20):
        spooled.do(f"work({begin}, 20)")
        following.poll()
        assert items(following) == list(range(begin + 20))
    spooled.do("run.finish()")
    assert files_below(tmp_path / "spool", "spans-*") == []
    following.to_end()
    following.check()
    late = follow(tmp_path)
    late.to_end()
    late.check()


def test_spool_killed(spooled: Child, tmp_path: Path) -> None:
    """Records that a killed process left in its spool are returned."""
    following = follow(tmp_path, keep=lambda name: name != "small")
    spooled.do("outer = span('outer'); outer.__enter__(); work(0, 50)")
    following.poll()
    spooled.do("work(50, 50)")
    spooled.kill()
    following.to_end()
    assert items(following) == list(range(100))
    assert following.of("stop")[-1].status == "unfinished"


def elsewhere(folder: Path) -> None:
    """Make a process look as one of another machine."""
    path = folder / "process.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "boot": "another", "host": "elsewhere"}))


def has_stops(following: Following, count: int) -> bool:
    """Poll once; return whether this many items have ended."""
    following.poll()
    return len(items(following)) == count


def test_on_another_machine(spooled: Child, tmp_path: Path) -> None:
    """A follower without access to the spool reads the copies, and returns the same records in the end."""
    following = follow(tmp_path, keep=lambda name: name != "small")
    folder = following.follower.folder
    following.follower._boot = "this machine"
    for begin in range(0, 120, 20):
        spooled.do(f"work({begin}, 20); run.flush()")
        (tmp_path / "spool").rename(tmp_path / "away")
        wait_until(partial(has_stops, following, begin + 20))
        (tmp_path / "away").rename(tmp_path / "spool")
    spooled.do("run.finish()")
    elsewhere(folder)
    following.to_end()
    following.check()
