"""The call sequences by which the annotation conventions are documented, and the records they promise.

Where the documentation leaves something undefined a stand-in does it, and its slips are mended: the
function that moves a batch gives it back, and a loop has a body. Its caveat does not hold here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell import Run
from stepwell.compat.dftracer import ai, dftracer
from tests.nesting.tree import attributes, edges, events, finished

EPOCHS, BATCHES = 3, 2


class Loss:
    def backward(self) -> None:
        pass


class Batch:
    def to(self, device: str) -> tuple[int, int]:
        return 1, 2


def model(x: Any) -> Loss:
    return Loss()


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    yield
    ai.enable()
    ai.compute.forward.update(epoch=None, step=None)
    ai.data.preprocess.update(epoch=None)
    ai.data.preprocess.derive("collate").update(epoch=None)


def names_of(run: Run) -> list[tuple[str, str]]:
    return list(finished(run).select("category", "name").iter_rows())


def test_a_whole_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From initializing the log to finalizing it: the tree of a training, and its trace."""
    monkeypatch.setenv("STEPWELL_DIR", str(tmp_path / "runs"))

    @ai.compute.forward
    def forward(x: Any) -> Loss:
        return model(x)

    @ai.compute.backward
    def backward(loss: Loss) -> None:
        with ai.comm.all_reduce:
            loss.backward()

    @ai.compute
    def compute(x: Any) -> None:
        backward(forward(x))

    @ai.dataloader.fetch
    def transfer(batch: Batch, device: str) -> tuple[int, int]:
        return batch.to(device)

    @ai.pipeline.train
    def train(loader: list[Batch], device: str) -> None:
        for _ in ai.pipeline.epoch.iter(range(EPOCHS)):
            for batch in ai.dataloader.fetch.iter(loader):
                x, _ = transfer(batch, device)
                compute(x)

    log = dftracer.initialize_log(tmp_path / "trace.pfw")
    train([Batch()] * BATCHES, "cpu")
    log.finalize()
    spans = stepwell.open_run(log.run.path).spans().collect()
    n = EPOCHS * BATCHES
    assert edges(spans) == {
        ("train", None): 1,
        ("epoch.iter", "train"): EPOCHS,
        ("epoch.block", "train"): EPOCHS,
        ("fetch.iter", "epoch.block"): n,
        ("fetch.block", "epoch.block"): n,
        ("fetch", "fetch.block"): n,
        ("compute", "fetch.block"): n,
        ("forward", "compute"): n,
        ("backward", "compute"): n,
        ("all_reduce", "backward"): n,
    }
    written = [json.loads(line) for line in (tmp_path / "trace.pfw").read_text().splitlines()[1:-1]]
    complete = [line for line in written if line["ph"] == "X" and line["cat"] != "dftracer"]
    assert len(complete) == spans.height
    blocks = [line for line in complete if line["name"] == "epoch.block"]
    assert [line["args"]["count"] for line in blocks] == [1, 2, 3]
    for line in blocks:
        assert line["cat"] == "pipeline"
        assert set(line) == {"id", "name", "cat", "pid", "tid", "ts", "dur", "ph", "args"}
        assert {"hhash", "p_idx", "count", "level"} <= set(line["args"])


def test_decorators_and_blocks(recorded: Run) -> None:
    """Bare or with arguments, the arguments are those of that use alone."""
    about = {"arg1": "value1", "arg2": "value2"}

    @ai.compute.forward
    def bare(x: Any) -> Loss:
        return model(x)

    @ai.compute.forward(args=about)
    def described(x: Any) -> Loss:
        return model(x)

    bare(1)
    described(1)
    bare(1)
    with ai.compute.forward:
        model(1)
    with ai.compute.forward(args=about):
        model(1)
    with ai.compute.forward:
        model(1)
    spans = finished(recorded)
    assert attributes(spans, "forward") == [None, about, None, None, about, None]
    assert set(spans["category"]) == {"compute"}


def test_a_constructor(recorded: Run) -> None:
    """Making an object is ``<name>.init``, above a constructor and around a block."""

    class Items:
        @ai.data.item.init
        def __init__(self, n: int) -> None:
            self.n = n

    class Checkpoint:
        @ai.checkpoint.init
        def __init__(self) -> None:
            pass

    assert Items(3).n == 3
    Checkpoint()
    with ai.checkpoint.init:
        pass
    assert names_of(recorded) == [
        ("data", "item.init"),
        ("checkpoint", "checkpoint.init"),
        ("checkpoint", "checkpoint.init"),
    ]


def test_updating_arguments(recorded: Run) -> None:
    """Epoch and step set on a node are in the columns of its records."""

    @ai.compute.forward
    def forward(x: Any) -> Loss:
        return model(x)

    for epoch in ai.pipeline.epoch.iter(range(EPOCHS)):
        for step, batch in ai.dataloader.fetch.iter(enumerate([Batch()] * BATCHES)):
            ai.compute.forward.update(epoch=epoch, step=step)
            forward(batch)
    spans = finished(recorded)
    forwards = spans.filter(spans["name"] == "forward")
    expected = [(epoch, step) for epoch in range(EPOCHS) for step in range(BATCHES)]
    assert forwards.select("epoch", "step").rows() == expected
    assert attributes(spans, "forward") == [{"epoch": e, "step": s} for e, s in expected]


def test_switching_parts_of_the_tree(recorded: Run) -> None:
    """Categories one by one and all at once; the latest call wins."""
    parts = [ai.compute, ai.data, ai.dataloader, ai.comm, ai.device, ai.pipeline]

    def use_all() -> None:
        for part in parts:
            with part:
                pass

    ai.disable()
    use_all()
    for part in parts[:2]:
        part.enable()
    use_all()
    ai.enable()
    use_all()
    for part in parts:
        part.disable()
    use_all()
    ai.enable()
    use_all()
    names = [part.name for part in parts]
    assert finished(recorded)["name"].to_list() == [*names[:2], *names, *names]


def test_forcing_single_uses(recorded: Run) -> None:
    """``enable=`` decides for its use, whatever the category says."""
    ai.compute.disable()

    @ai.compute.forward(enable=True)
    def forced(x: Any) -> Loss:
        return model(x)

    forced(1)
    with ai.compute.backward(enable=True):
        Loss().backward()
    ai.compute.enable()

    @ai.compute.forward(enable=False)
    def silent(x: Any) -> Loss:
        return model(x)

    silent(1)
    with ai.compute.backward(enable=False):
        Loss().backward()
    assert names_of(recorded) == [("compute", "forward"), ("compute", "backward")]


def test_hooks(recorded: Run) -> None:
    """Where neither decorators nor blocks fit: begun in one call and ended in another."""

    class Session:
        step = 41

        def run(self, what: str) -> int:
            self.step += 1
            return self.step

    class Hook:
        def begin(self) -> None:
            ai.pipeline.epoch.start()

        def end(self) -> None:
            ai.pipeline.epoch.stop()

        def before_run(self, session: Session) -> None:
            ai.update(step=session.run("global step"))
            ai.compute.start()

        def after_run(self) -> None:
            ai.compute.stop()

    hook, session = Hook(), Session()
    hook.begin()
    for _ in range(2):
        hook.before_run(session)
        hook.after_run()
    hook.end()
    spans = finished(recorded)
    assert edges(spans) == {("epoch", None): 1, ("compute", "epoch"): 2}
    assert spans.filter(spans["name"] == "compute")["step"].to_list() == [42, 43]


def test_derived_nodes(recorded: Run) -> None:
    """A child is named behind its parent, is the same each time, and takes part in its settings."""

    class Items:
        def __getitem__(self, index: int) -> int:
            with ai.data.preprocess:
                return index

    @ai.data.preprocess.derive(name="collate")
    def collate(batch: list[int]) -> list[int]:
        return batch

    kept = ai.data.preprocess.derive(name="collate")

    def collate_in_a_block(batch: list[int]) -> list[int]:
        with kept:
            return batch

    batch = [Items()[i] for i in range(2)]
    assert collate(batch) == collate_in_a_block(batch) == batch
    kept.update(epoch=1)
    collate(batch)
    ai.data.preprocess.update(epoch=2)
    Items()[0]
    collate(batch)
    ai.data.preprocess.derive("later")(lambda: None)()
    ai.data.preprocess.disable()
    collate(batch)
    spans = finished(recorded)
    assert set(spans["category"]) == {"data"}
    # What its parent is told afterwards holds for the child too.
    assert attributes(spans, "preprocess.collate") == [None, None, {"epoch": 1}, {"epoch": 2}]
    assert attributes(spans, "preprocess") == [None, None, {"epoch": 2}]
    assert attributes(spans, "preprocess.later") == [{"epoch": 2}]


def test_spans_and_streaming_records(recorded: Run) -> None:
    """A block for each epoch when it is over, or a record at once when it begins and ends."""
    for _ in ai.pipeline.epoch.iter(range(EPOCHS)):
        pass
    for _ in range(EPOCHS):
        ai.pipeline.epoch.start(metadata=True)
        ai.pipeline.epoch.stop(metadata=True)
    spans = finished(recorded)
    assert attributes(spans, "epoch.block") == [{"count": i} for i in (1, 2, 3)]
    assert spans.height == 2 * EPOCHS
    told = [(name, about["category"]) for name, _, about in events(recorded)]
    assert told == [("epoch.start", "pipeline"), ("epoch.end", "pipeline")] * EPOCHS


@pytest.mark.parametrize("parentheses", [False, True])
def test_the_caveat_does_not_hold(recorded: Run, parentheses: bool) -> None:
    """Disabled after it was decorated, with parentheses or without, nothing is recorded."""

    class Checkpoint:
        @(ai.checkpoint.init() if parentheses else ai.checkpoint.init)
        def __init__(self) -> None:
            pass

    ai.checkpoint.disable()
    Checkpoint()
    ai.checkpoint.enable()
    Checkpoint()
    assert names_of(recorded) == [("checkpoint", "checkpoint.init")]


def test_the_latest_step_wins(recorded: Run) -> None:
    """A step set on the whole tree replaces one set on a node before."""

    def use() -> None:
        with ai.compute.forward:
            pass

    ai.compute.forward.update(step=5, epoch=1, size=4)
    use()
    ai.update(step=6)
    use()
    ai.compute.forward.update(step=7)
    use()
    ai.compute.disable()
    ai.update(step=8, epoch=2)
    ai.enable()
    use()
    ai.compute.forward.update(size=None)
    spans = finished(recorded)
    assert spans.select("step", "epoch").rows() == [(5, 1), (6, 1), (7, 1), (8, 2)]
    assert attributes(spans, "forward") == [
        {"step": 5, "epoch": 1, "size": 4},
        {"epoch": 1, "size": 4},
        {"step": 7, "epoch": 1, "size": 4},
        {"size": 4},
    ]
