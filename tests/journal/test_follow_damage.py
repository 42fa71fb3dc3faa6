"""The follower and bad files: torn, removed, damaged or malicious."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell import Run
from stepwell.journal.archive import archive_files
from stepwell.journal.lane import Lane
from stepwell.journal.recovery import recover_process
from stepwell.journal.state import current_journal
from tests.durability.helpers import Child
from tests.journal.following import Following, check_order, process_folder
from tests.journal.test_follow_processes import follow
from tests.journal.test_follow_segments import small_spans

pytestmark = pytest.mark.usefixtures("slots")


def test_torn_event_lines(recorded: Run) -> None:
    """A line is taken once it is complete; one that a full disk tore is passed over."""
    following = Following(recorded.path)
    recorded.event("one")
    events = process_folder(recorded.path) / "events.jsonl"
    line = events.read_bytes()
    assert [r.name for r in following.poll()] == ["one"]
    with events.open("ab") as file:
        file.write(line[:20])
    assert following.poll() == []
    with events.open("ab") as file:
        file.write(b"\n" + line.replace(b"one", b"two") + b"\n[1, 2]\nnull\n" + line[:30])
    assert [r.name for r in following.poll()] == ["two"]
    with events.open("ab") as file:
        file.write(line[30:])
    assert [r.name for r in following.poll()] == ["one"]


def test_overlong_line(recorded: Run) -> None:
    """A line of many megabytes is skipped, and the lines after it are read."""
    following = Following(recorded.path)
    events = process_folder(recorded.path) / "events.jsonl"
    recorded.event("one")
    with events.open("ab") as file:
        file.write(b"x" * (9 << 20) + b"\n")
    recorded.event("two")
    recorded.finish()
    following.to_end()
    assert [r.name for r in following.records] == ["one", "two"]


def test_torn_archive(tmp_path: Path, slots: int) -> None:
    """What a crash tore off an archive is passed over, and the next file is read."""
    with Child(tmp_path) as child:
        child.do(f"from stepwell.journal import lane\nlane.SPAN_SLOTS = {slots}")
        child.do("run = init('torn', dir='runs')\nsmall = span('small')")
        child.do("for _ in range(2000):\n    with small: pass\nrun.flush()")
        child.kill()
    before, after = follow(tmp_path), follow(tmp_path)
    folder = process_folder(before.run)
    (archive,) = archive_files(folder, "spans")
    with archive.open("ab") as file:
        file.write(archive.read_bytes()[:100])
    before.to_end()
    recover_process(folder)
    assert len(archive_files(folder, "spans")) == 2
    after.to_end()
    for following in (before, after):
        assert following.poll() == []
        following.check()


def test_size_cap(tmp_path: Path, slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments that the size cap removed before a look are counted as lost; the rest is returned."""
    monkeypatch.setenv("STEPWELL_MAX_BYTES", "64K")
    run = stepwell.init("test", dir=tmp_path / "runs")
    kept = ("outer", "small 0", "small 39")
    early = Following(run.path, keep=lambda name: name in kept)
    with run.span("outer"):
        for i in range(40):
            small_spans(run, slots, f"small {i}")
            run.flush()
            if i < 2:
                early.poll()
    late = Following(run.path, early.keep)
    run.finish()
    for following in (early, late):
        following.to_end()
        check_order(following.records)
        assert following.follower.lost > 0
        assert following.of("stop", "small 39")
        assert [r.status for r in following.of("stop", "outer")] == ["ok"]
    assert early.of("stop", "small 0")
    assert not late.of("stop", "small 0")


def test_size_cap_removes_the_archive_that_is_being_read(
    tmp_path: Path, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of an archive that was read in part is lost, even if no other archive is."""
    monkeypatch.setenv("STEPWELL_MAX_BYTES", "64K")
    run = stepwell.init("test", dir=tmp_path / "runs")
    following = Following(run.path)
    small_spans(run, slots)
    run.flush()
    following.poll()
    (first,) = archive_files(process_folder(run.path), "spans")
    for _ in range(100):
        if not first.exists():
            break
        small_spans(run, slots)
        run.flush()
    run.finish()
    assert [path.name for path in archive_files(first.parent, "spans")] == ["spans-00001.zst"]
    following.to_end()
    assert following.follower.lost == 1
    check_order(following.records)


def test_removed_before_it_was_unpacked(recorded: Run, slots: int) -> None:
    """An archive that goes between finding and reading it is counted."""
    following = Following(recorded.path)
    small_spans(recorded, 3 * slots)
    recorded.flush()
    following.follower._files.look()
    for path in archive_files(process_folder(recorded.path), "spans"):
        path.unlink()
    recorded.finish()
    following.to_end()
    assert following.follower.lost >= 2
    check_order(following.records)


KILL = """
import os
from stepwell.journal import lane
from stepwell.journal.lane import Lane
from stepwell.journal.recovery import recover_process
switch = Lane._switch
calls = [0]
def die(*arguments):
    calls[0] += 1
    if calls[0] < 3:
        return switch(*arguments)
    if AFTER: switch(*arguments)
    os.kill(os.getpid(), 9)
Lane._switch = die
lane.SPAN_SLOTS = 1024
run = init("killed", dir="runs")
answer = None
"""
SPANS = """
with span("outer", a=1), span("inner", b=2):
    for i in range(10**6):
        with span("small"): pass
"""


@pytest.mark.parametrize("after", [False, True])
def test_killed_while_rolling_over(tmp_path: Path, after: bool) -> None:
    """After a kill between copying open spans and marking the originals, no span is returned twice."""
    with Child(tmp_path) as child:
        child.do(KILL.replace("AFTER", str(after)))
        following = follow(tmp_path, keep=lambda name: name != "small")
        with pytest.raises(AssertionError, match="died"):
            child.do(SPANS)
    following.to_end()
    late = follow(tmp_path)
    late.to_end()
    assert [(r.type, r.name, r.attributes) for r in following.records] == [
        ("start", "outer", {"a": 1}),
        ("start", "inner", {"b": 2}),
        ("stop", "inner", {"b": 2}),
        ("stop", "outer", {"a": 1}),
    ]
    check_order(late.records)
    assert len(late.of("start", "outer")) == len(late.of("stop", "outer")) == 1


def test_interrupted_while_rolling_over(
    recorded: Run, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt undoes a copy that was seen: the end is found where the span went on."""
    following = Following(recorded.path, keep=lambda name: name != "small")

    def interrupt(*_: Any) -> None:
        following.poll()
        raise KeyboardInterrupt

    with recorded.span("outer", a=1) as outer:
        small_spans(recorded, slots - 2)
        with monkeypatch.context() as patch:
            patch.setattr(Lane, "_switch", interrupt)
            with pytest.raises(KeyboardInterrupt):
                small_spans(recorded, 2)
        outer.set(b=2)
    following.poll()
    (stop,) = following.of("stop", "outer")
    assert (stop.status, stop.attributes) == ("ok", {"a": 1, "b": 2})
    following.check()


def test_spare_segment_older_than_an_undone_one(
    recorded: Run, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an interrupted roll-over, spans go on in a segment with a higher number than the undone one."""
    following = Following(recorded.path, keep=lambda name: name != "small")
    journal = current_journal()
    assert journal is not None

    def interrupt(*_: Any) -> None:
        following.poll()
        # The pump had the number before this roll-over began, and has the segment only now.
        journal._spares.appendleft(slow)
        raise KeyboardInterrupt

    with recorded.span("outer", a=1) as outer:
        slow = journal._create("spans", next(journal._seq))
        small_spans(recorded, slots - 2)
        with monkeypatch.context() as patch:
            patch.setattr(Lane, "_switch", interrupt)
            with pytest.raises(KeyboardInterrupt):
                small_spans(recorded, 2)
        outer.set(b=2)
    following.poll()
    (stop,) = following.of("stop", "outer")
    assert (stop.status, stop.attributes) == ("ok", {"a": 1, "b": 2})
    assert not slow.path.exists()
    following.check()


def test_given_up_while_rolling_over(
    recorded: Run, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A span that gets its end just before it is copied is over, whatever becomes of the copy."""
    following = Following(recorded.path, keep=lambda name: name != "small")
    carry = Lane._carry

    def give_up_first(lane: Lane, *arguments: Any) -> int:
        lane.abandon_open()
        following.poll()
        return carry(lane, *arguments)

    with recorded.span("outer"):
        following.poll()
        monkeypatch.setattr(Lane, "_carry", give_up_first)
        small_spans(recorded, slots)
        monkeypatch.setattr(Lane, "_carry", carry)
        following.poll()
    following.poll()
    recorded.finish()
    following.to_end()
    assert [(r.type, r.name) for r in following.records] == [("start", "outer"), ("stop", "outer")]


def test_lost_name(recorded: Run) -> None:
    """A span whose name was lost to a full disk has a name that says so."""
    following = Following(recorded.path)
    with recorded.span("first"), recorded.span("second"):
        pass
    names = process_folder(recorded.path) / "names.jsonl"
    lines = names.read_text().splitlines(keepends=True)
    names.write_text("".join(line for line in lines if "second" not in line))
    assert [r.name for r in following.poll() if r.type == "start"] == ["first", "(name was lost)"]


DOCUMENTS: list[Any] = [
    [],
    {},
    {"status": 3, "anchors": {}, "heartbeat": "x", "spool": 7},
    {"status": "finished", "anchors": [[1, 2, 3], "x", [1, "y"], [1 << 200, 5]]},
    {"status": "running", "pid": "x", "start": [], "boot": {}, "anchors": [[5, 6]]},
    {"status": "finished", "heartbeat": 1 << 300, "anchors": [[5, 6]], "spool": "/\0/x"},
    {"status": "running", "heartbeat": 1e400, "interval": {}, "anchors": [[5, 6]]},
]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_strange_documents(recorded: Run, document: Any) -> None:
    """Whatever process.json says, a look raises nothing."""
    with recorded.span("outer"):
        recorded.event("here")
    recorded.finish()
    path = process_folder(recorded.path) / "process.json"
    path.write_text(json.dumps(document))
    following = Following(recorded.path)
    for _ in range(3):
        following.poll()
    check_order(following.records)


@pytest.mark.parametrize("finished", [False, True])
def test_damage(recorded: Run, slots: int, tmp_path: Path, finished: bool) -> None:
    """Random changes of bytes never raise, and never cause an endless loop."""
    with recorded.span("outer", a=1) as outer:
        for i in range(3):
            with recorded.span("item", i=i):
                small_spans(recorded, slots // 2)
                recorded.event("tick", i=i)
            outer.set(i=i)
        if not finished:
            recorded.flush()
            shutil.copytree(recorded.path, tmp_path / "copy")
    recorded.finish()
    if finished:
        shutil.copytree(recorded.path, tmp_path / "copy")
    folder = process_folder(tmp_path / "copy")
    document = json.loads((folder / "process.json").read_text())
    (folder / "process.json").write_text(json.dumps({**document, "status": "killed"}))
    chance = random.Random(7)
    originals = {path: path.read_bytes() for path in folder.iterdir() if path.name[:5] != "proce"}
    for _ in range(40):
        for path, data in originals.items():
            path.write_bytes(_damaged(data, chance))
        following = Following(tmp_path / "copy")
        for _ in range(100):
            following.poll()
            if following.follower.over:
                break
        assert following.follower.over


def _damaged(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice([0, 1, 20, 400])):
        if changed:
            # Most of what counts is at the beginning of something.
            at = chance.randrange(min(len(changed), chance.choice([200, 6000, len(changed)])))
            changed[at] = chance.choice([0, 1, 255, chance.randrange(256)])
    return bytes(changed[: chance.choice([len(changed), len(changed), len(changed) // 2])])


def test_no_files_stay_open(tmp_path: Path, slots: int) -> None:
    """A follower holds no file open: training needs them, and removed ones would keep their space."""
    with Child(tmp_path) as child:
        child.do(f"from stepwell.journal import lane\nlane.SPAN_SLOTS = {slots}")
        child.do(
            "run = init('followed', dir='runs')\nouter = span('outer', a=1); outer.__enter__()"
        )
        following = follow(tmp_path)
        spans = f"for _ in range({3 * slots}):\n    with span('small'): pass"
        for code in (spans, "run.flush()", "outer.__exit__(None, None, None)"):
            child.do(code)
            following.poll()
            assert open_below(tmp_path) == []
    assert len(following.of("stop")) == 3 * slots + 1


def open_below(folder: Path) -> list[str]:
    """The files below a folder that this process has open, removed ones included."""
    paths = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            paths.append(os.readlink(link))
    return [path for path in paths if path.startswith(str(folder))]
