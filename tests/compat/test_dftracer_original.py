"""One training program, run with the published dftracer and with the names here: what their traces have."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.harness import environment, run_script

ORIGINAL = "dftracer.python"
OURS = "stepwell.compat.dftracer"
TRACER = ("hhash", "p_idx", "level")
"""Arguments that tracers add."""
OUTER = ("ai_root", "train", "epoch.block", "fetch.iter", "fetch.block")
"""Spans during which the step changes: ours have the one in which they begin, theirs the one they end in."""

NAMES = "DFTRACER_ENABLE, DFTracerAI, TagDType, TagType, TagValue, ai, dft_fn, dftracer"

TRAINING = """
assert DFTRACER_ENABLE
reader_log = dft_fn("reader")
setup_log = dft_fn("setup")
static_log = dft_fn("static")
loop_log = dft_fn("loop")
custom = DFTracerAI(cat="custom", name="thing")
collate_node = ai.data.preprocess.derive(name="collate")


class Reader:
    @setup_log.log_init
    def __init__(self, epoch):
        self.epoch = epoch

    @reader_log.log
    def read(self, image_idx, step):
        return [image_idx] * step

    @static_log.log_static
    def name():
        return "reader"


@ai.data.preprocess
def preprocess(item):
    return item


@collate_node
def collate(items):
    return [preprocess(item) for item in items]


@ai.compute.forward
def forward(batch):
    with ai.device.transfer:
        return sum(batch)


@ai.compute.backward
def backward(loss):
    with ai.comm.all_reduce:
        return loss


class Checkpoint:
    @ai.checkpoint.init
    def __init__(self):
        pass

    @ai.checkpoint.capture
    def save(self):
        pass


def load():
    # Named after the function.
    with dft_fn("io"):
        pass
    with dft_fn(cat="io", name="open", step=3) as block:
        block.update(image_idx=5, image_size=2.5, args={"size": 7, "file": "a", "ratio": 0.5})


@ai.pipeline.train
def train(reader, checkpoint):
    for epoch in ai.pipeline.epoch.iter(range(2), include_iter=False):
        for step, items in ai.dataloader.fetch.iter(enumerate([[1, 2], [3, 4], [5, 6]])):
            ai.update(epoch=epoch, step=step)
            batch = collate(items)
            loss = backward(forward(batch))
            with ai.compute.step:
                pass
            ai.comm.barrier.start()
            ai.comm.barrier.stop()
            ai.data.item.update(args={"loss": 0.25, "file": "b"})
            with ai.data.item:
                reader.read(10 * epoch + step, step=step)
        checkpoint.save()
    ai.comm.disable()
    backward(1)
    ai.comm.enable()
    with ai.compute.backward(enable=False):
        pass
    ai.pipeline.test.start(metadata=True)
    ai.pipeline.test.stop(metadata=True)


@ai
def main():
    reader, checkpoint = Reader(4), Checkpoint()
    assert Reader.name() == "reader"
    load()
    with custom:
        pass
    for _ in loop_log.iter(range(3), name="batches", iter_name="batch"):
        pass
    log.enter_event()
    log.log_event(
        name="explicit",
        cat="manual",
        start_time=log.get_time(),
        duration=250,
        int_args={"epoch": TagValue(1, TagDType.INT, TagType.KEY).value(), "n": (0, 3)},
        float_args={"loss": (1, 0.5)},
        string_args={"file": (0, "c")},
    )
    log.exit_event()
    log.log_metadata_event("model", "linear")
    reader_log.log_metadata("format", "npz")
    interval = dft_fn("steps", "interval", step=1)
    interval.flush()
    interval.reset()
    interval.flush()
    train(reader, checkpoint)


log = dftracer.initialize_log("trace.pfw", None, -1)
main()
log.finalize()
"""

DIFFERENT = """
log = dftracer.initialize_log("trace.pfw", None, -1)
with ai.compute.forward(args={"size": 4}):
    pass
with ai.compute.forward:
    pass


@ai.data.item
def deep(n):
    if n:
        deep(n - 1)


deep(2)

calls = dft_fn("calls")


@calls.log
def defaults(first, step=2):
    pass


defaults(1, step=9)


@calls.log
def fails():
    raise ValueError


try:
    fails()
except ValueError:
    pass

for item in ai.dataloader.fetch.iter([1, 2, 3]):
    if item == 2:
        break
with ai.device.transfer:
    with ai.device.transfer:
        pass
ai.update(epoch=1, step=5)
with dft_fn("io", "late"):
    pass
log.finalize()
"""

Event = tuple[str, str, tuple[tuple[str, Any], ...]]


def trace_of(library: str, program: str, folder: Path) -> tuple[list[Event], list[tuple[str, str]]]:
    """Category, name and arguments of what a program records with a library; and its metadata."""
    folder.mkdir()
    if library == ORIGINAL and importlib.util.find_spec("dftracer") is None:
        pytest.skip("NOT COMPARED with the published dftracer, which is not installed (make bench)")
    env = environment(
        DFTRACER_ENABLE="1",
        DFTRACER_INC_METADATA="1",
        DFTRACER_TRACE_COMPRESSION="0",
        DFTRACER_DISABLE_IO="1",
        STEPWELL_DIR=str(folder / "runs"),
    )
    script = f"from {library} import {NAMES}\n{program}"
    run_script(script, cwd=folder, env=env, check=True)
    (path,) = folder.glob("*.pfw")
    records = [json.loads(line) for line in path.read_text().splitlines() if line[0] == "{"]
    events, notes = [], []
    for record in records:
        args = {k: v for k, v in record.get("args", {}).items() if k not in TRACER}
        if record["name"] == "CM":
            notes.append((args["name"], args["value"]))
        elif record["ph"] in ("X", 1) and record["cat"] != "dftracer":
            events.append((record["cat"], record["name"], tuple(sorted(args.items()))))
    return events, notes


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The events and the metadata of one training, with each of the libraries."""
    folder = tmp_path_factory.mktemp("training")
    return [trace_of(library, TRAINING, folder / library) for library in (ORIGINAL, OURS)]


def test_names_categories_and_counts(traces: Any) -> None:
    """Both have the same number of the same events."""
    original, ours = (Counter(event[:2] for event in events) for events, _ in traces)
    assert ours == original
    # Two epochs of three batches; the last backward is outside of them, with communication off.
    assert ours["compute", "forward"] == 6
    assert ours["compute", "backward"] == 7
    assert ours["comm", "all_reduce"] == 6
    assert ours["data", "preprocess.collate"] == 6
    assert ours["data", "preprocess"] == 12
    assert ours["io", "load"] == 1
    assert sum(ours.values()) == sum(original.values()) > 60


def test_arguments(traces: Any) -> None:
    """Both have the same arguments; of spans during which the step changes, all but step and epoch."""
    original, ours = (Counter(map(comparable, events)) for events, _ in traces)
    assert ours == original
    reads = [dict(args) for cat, name, args in ours if name == "Reader.read"]
    assert len(reads) == 6
    assert {"epoch": 4, "image_idx": 12, "step": 2} in reads


def comparable(event: Event) -> Event:
    """The event without what differs on purpose."""
    cat, name, args = event
    left_out = ("epoch", "step") if name in OUTER else ()
    return cat, name, tuple(pair for pair in args if pair[0] not in left_out)


def test_metadata(traces: Any) -> None:
    """The same pairs; those that say when something began or ended have a time in microseconds."""
    original, ours = (notes for _, notes in traces)
    timed = ("test.start", "test.end")
    expected = [("model", "linear"), ("format", "npz")]
    for notes in (original, ours):
        assert [pair for pair in notes if pair in expected] == expected
        begin, end = (int(value) for name, value in notes if name in timed)
        assert 1.7e15 < begin <= end
    assert {name for name, _ in ours} <= {name for name, _ in original} | {"time_metric"}


def test_what_differs_on_purpose(tmp_path: Path) -> None:
    """Records that the published library loses or mixes up are correct here; see docs/migrate/dftracer.md."""
    theirs, ours = (
        trace_of(library, DIFFERENT, tmp_path / library)[0] for library in (ORIGINAL, OURS)
    )

    def of(events: list[Event], *names: str) -> list[tuple[str, dict[str, Any]]]:
        return [(name, dict(args)) for _, name, args in events if name in names]

    # Arguments of one use: theirs are on the next one.
    assert of(theirs, "forward") == [("forward", {}), ("forward", {"size": 4})]
    assert of(ours, "forward") == [("forward", {"size": 4}), ("forward", {})]
    # A node inside itself: theirs has the innermost one alone.
    assert [len(of(events, "item")) for events in (theirs, ours)] == [1, 3]
    assert [len(of(events, "transfer")) for events in (theirs, ours)] == [1, 2]
    # An argument that is given: theirs is the default.
    assert of(theirs, "defaults") == [("defaults", {"step": 2})]
    assert of(ours, "defaults") == [("defaults", {"step": 9})]
    # A call that raises.
    assert of(theirs, "fails") == []
    assert of(ours, "fails") == [("fails", {"status": "error"})]
    # What is set on the root: theirs is for the tree alone, ours for the whole run.
    assert of(theirs, "late") == [("late", {})]
    assert of(ours, "late") == [("late", {"epoch": 1, "step": 5})]
    # A loop that is left by break.
    loop = [("fetch.iter", 1), ("fetch.block", 1), ("fetch.iter", 2), ("fetch.block", 2)]
    found = [
        [(name, args["count"]) for name, args in of(events, "fetch.iter", "fetch.block")]
        for events in (theirs, ours)
    ]
    assert [sorted(pairs) for pairs in found] == [sorted(loop[:2]), sorted(loop)]
