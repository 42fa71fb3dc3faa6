"""The spellings of dftracer, on top of a run."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import re
import threading
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stepwell
from stepwell import Run, StepwellError
from stepwell.compat import dftracer as names
from stepwell.compat.dftracer import (
    ComputeEvent,
    DFTracerAI,
    ProfileCategory,
    TagDType,
    TagType,
    TagValue,
    ai,
    dft_fn,
    dftracer,
)
from stepwell.vocabulary import AI_NODES
from tests.harness import environment, run_ranks, run_script
from tests.nesting.tree import attributes, edges, events, finished


def lines(path: Path) -> list[dict[str, Any]]:
    """The events of a trace with brackets."""
    first, *middle, last = path.read_text().splitlines()
    assert (first, last) == ("[", "]")
    return [json.loads(line) for line in middle]


def test_a_log_from_beginning_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is started and finished, and its trace is where it was asked for."""
    monkeypatch.setenv("STEPWELL_DIR", str(tmp_path / "runs"))
    log = dftracer.initialize_log(str(tmp_path / "traces" / "trace.pfw"), "all", -1)
    assert dftracer.get_instance() is log
    assert stepwell.active_run() is log.run
    assert dftracer.initialize_log(str(tmp_path / "other.pfw")) is log
    with ai.compute:
        for _ in range(3):
            with ai.compute.forward(args={"size": 4}):
                pass
    log.finalize()
    log.finalize()
    assert stepwell.active_run() is None
    assert dftracer.get_instance() is not log
    assert dftracer.get_instance().get_time() == 0
    assert [run.status for run in stepwell.list_runs(tmp_path / "runs")] == ["finished"]
    assert [path.name for path in (tmp_path / "traces").iterdir()] == ["trace.pfw"]
    events = [e for e in lines(tmp_path / "traces" / "trace.pfw") if e["ph"] == "X"]
    outer = next(e for e in events if e["name"] == "compute")
    inner = [e for e in events if e["name"] == "forward"]
    assert len(inner) == 3
    assert {e["cat"] for e in inner} == {"compute"}
    assert {e["args"]["p_idx"] for e in inner} == {outer["id"]}
    assert {e["args"]["size"] for e in inner} == {4}


def test_a_run_of_somebody_else(recorded: Run, tmp_path: Path) -> None:
    """It is used and left running; what was recorded so far is in the trace."""
    with ai.data:
        pass
    log = dftracer.initialize_log(tmp_path / "trace")
    assert log.run is recorded
    log.finalize()
    assert stepwell.active_run() is recorded
    assert any(e["name"] == "data" for e in lines(tmp_path / "trace.pfw"))


def test_without_a_file(recorded: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run folder is all there is, unless the environment says where."""
    monkeypatch.chdir(tmp_path)
    dftracer.initialize_log().finalize()
    assert not list(tmp_path.glob("*.pfw"))
    monkeypatch.setenv("DFTRACER_LOG_FILE", str(tmp_path / "env.pfw"))
    dftracer.initialize_log().finalize()
    assert (tmp_path / "env.pfw").exists()


def test_functions(recorded: Run) -> None:
    """Decorated with or without parentheses; constructors, static methods, and what they return."""
    dlp = dft_fn("app", epoch=1)

    class Reader:
        @dlp.log_init
        def __init__(self) -> None:
            self.made = True

        @dlp.log
        def read(self, n: int) -> int:
            return n + 1

        @staticmethod
        @dlp.log_static
        def inner(n: int) -> int:
            return n * 2

        @dlp.log_static
        @staticmethod
        def outer(n: int) -> int:
            return n * 3

    @dlp.log(name="named")
    def function() -> None:
        raise ValueError("of the user")

    reader = Reader()
    assert (reader.read(1), reader.inner(2), Reader.outer(2)) == (2, 4, 6)
    with pytest.raises(ValueError, match="of the user"):
        function()
    spans = finished(recorded)
    here = "test_functions.<locals>.Reader"
    methods = [f"{here}.__init__", f"{here}.read", f"{here}.inner", f"{here}.outer"]
    assert spans["name"].to_list() == [*methods, "named"]
    assert set(spans["category"]) == {"app"}
    assert attributes(spans, "named") == [{"epoch": 1}]


def test_contexts_loops_and_updates(recorded: Run) -> None:
    """Arguments that are set inside are those of the open span and of what follows."""
    with dft_fn("io", "block", step=3) as block:
        block.update(image_idx=5, args={"size": 7})
        assert len(block.iter([1, 2])) == 2  # type: ignore[arg-type]
        for _ in block.iter([1, 2]):
            pass
    with dft_fn("io", "silent", enable=False):
        pass
    with dft_fn("plain"):
        pass
    spans = finished(recorded)
    here = "test_contexts_loops_and_updates"
    assert edges(spans) == {
        ("block", None): 1,
        ("loop.iter", "block"): 2,
        ("loop.yield", "block"): 2,
        # Without a name it is that of the function.
        (here, None): 1,
    }
    every = {"step": 3, "image_idx": 5, "size": 7}
    assert attributes(spans, "block") == [every]
    # The number of the item takes the place of the argument that has its name.
    assert attributes(spans, "loop.iter") == [{**every, "step": 1}, {**every, "step": 2}]
    assert attributes(spans, here) == [None]


def test_copies(recorded: Run) -> None:
    """One that another process gets has the same category, name, arguments and switch, and is its own."""
    original = dft_fn("data", "read", step=3)
    copy = pickle.loads(pickle.dumps(original))
    copy.update(size=7)
    with original, copy, ai.data, pickle.loads(pickle.dumps(dft_fn("x", "off", enable=False))):
        pass
    spans = finished(recorded)
    assert spans.select("name", "category").rows() == [("read", "data")] * 2 + [("data", "data")]
    assert attributes(spans, "read") == [{"step": 3}, {"step": 3, "size": 7}]
    assert attributes(spans, "data") == [None]


class Reader:
    """One with a step, and a method that is called as an argument might be."""

    dlp = dft_fn("reader")
    step = 7

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def image_size(self) -> int:
        return 1

    @dlp.log
    def read(self, image_idx: int, size: int = 4) -> int:
        return image_idx + size

    @dlp.log
    def later(self, step: int, *, epoch: int = 30) -> None: ...

    @dlp.log
    def anything(self, **options: Any) -> None: ...

    @staticmethod
    @dlp.log_static
    def first(step: int = 2) -> None: ...

    @classmethod
    @dlp.log
    def of_class(cls, epoch: int) -> None: ...

    @dlp.log
    async def wait(self, image_idx: int) -> int:
        return image_idx

    @dlp.log
    def items(self, image_idx: int) -> Any:
        yield image_idx


def test_arguments_of_calls(recorded: Run) -> None:
    """Given by position, by name or by default; else the attributes of ``self``. Methods are not values."""
    reader = Reader(epoch=3)
    assert reader.read(5) == 9
    reader.read(image_idx=6)
    reader.later(1)
    reader.later(step=9, epoch=8)
    reader.anything(image_size=2.5, other=1)
    Reader.first()
    Reader.first(11)
    Reader.of_class(12)
    assert asyncio.run(reader.wait(13)) == 13
    assert list(reader.items(14)) == [14]
    spans = finished(recorded)
    found = [
        (name.rpartition(".")[2], json.loads(text))
        for name, text in spans.select("name", "attributes").iter_rows()
    ]
    assert found == [
        ("read", {"step": 7, "epoch": 3, "image_idx": 5}),
        ("read", {"step": 7, "epoch": 3, "image_idx": 6}),
        ("later", {"step": 1, "epoch": 30}),
        ("later", {"step": 9, "epoch": 8}),
        ("anything", {"step": 7, "epoch": 3, "image_size": 2.5}),
        ("first", {"step": 2}),
        ("first", {"step": 11}),
        ("of_class", {"epoch": 12}),
        ("wait", {"step": 7, "epoch": 3, "image_idx": 13}),
        ("items", {"step": 7, "epoch": 3, "image_idx": 14}),
    ]
    # They fill the columns of these names.
    assert spans["step"].to_list() == [7, 7, 1, 9, 7, 2, 11, None, 7, 7]


def test_odd_arguments_of_calls(recorded: Run) -> None:
    """Values that are not numbers are left out; attributes that fail or are missing do no harm."""
    numpy = pytest.importorskip("numpy")
    dlp = dft_fn("odd")

    class Odd:
        __slots__ = ("epoch",)

        @property
        def step(self) -> int:
            raise ValueError("not yet")

        @dlp.log
        def call(self, image_idx: Any = None, image_size: Any = None) -> None: ...

    class Plain:
        @dlp.log(name="plain")
        def call(self, step: Any) -> None: ...

    odd = Odd()
    with pytest.raises(ValueError, match="not yet"):  # as STEPWELL_STRICT has it
        odd.call()
    Plain().call(numpy.int64(4))
    Plain().call("4")
    Plain().call((2, 3))
    Plain().call(float("nan"))
    spans = finished(recorded)
    nan = {"step": None, "nonfinite": {"step": "nan"}}
    assert attributes(spans, "plain") == [{"step": 4}, None, None, nan]


def test_an_attribute_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The call continues, is recorded without arguments, and there is one warning."""
    run = stepwell.init("fails", dir=tmp_path)

    class Broken:
        @property
        def epoch(self) -> int:
            raise RuntimeError("no epoch")

        @dft_fn("broken").log(name="call")
        def call(self) -> int:
            return 5

    with caplog.at_level(logging.WARNING, "stepwell"):
        assert [Broken().call() for _ in range(3)] == [5, 5, 5]
    assert len([r for r in caplog.records if "no epoch" in r.getMessage()]) == 1
    assert attributes(finished(run), "call") == [None, None, None]


def test_updates_inside_calls(recorded: Run) -> None:
    """They belong to the innermost call that is open, and to what is recorded afterwards."""
    dlp = dft_fn("reader")

    @dlp.log(name="outer")
    def outer() -> None:
        inner()

    @dlp.log(name="inner")
    def inner() -> None:
        dlp.update(3, 4, args={"size": TagValue("7", TagDType.INT)})

    async def main() -> None:
        with dft_fn("other", "around"):
            outer()

    outer()
    outer()
    asyncio.run(main())
    with pytest.raises(StepwellError, match="args must be a dict such as"):
        dlp.update(args=[1])  # type: ignore[arg-type]
    spans = finished(recorded)
    every = {"epoch": 3, "step": 4, "size": 7}
    assert attributes(spans, "outer") == [None, every, every]
    assert attributes(spans, "inner") == [every] * 3
    assert attributes(spans, "around") == [None]


def test_threads_and_recursion(recorded: Run) -> None:
    """One object may be in use many times at once; each call has its own arguments."""
    dlp = dft_fn("deep")

    @dlp.log(name="call")
    def call(step: int) -> None:
        if step:
            call(step - 1)

    threads = [threading.Thread(target=call, args=(n,)) for n in (3, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spans = finished(recorded)
    assert sorted(a["step"] for a in attributes(spans, "call")) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert edges(spans) == {("call", None): 2, ("call", "call"): 6}


def test_flush_and_reset(recorded: Run) -> None:
    """``flush`` ends an interval and ``reset`` begins one, inside a block and without one."""
    fn = dft_fn("steps", "block", step=1)
    with fn:
        fn.flush()
        fn.update(step=2).reset()
    with fn:
        fn.reset()  # what was before is not recorded
        with ai.data:
            pass
        fn.update(step=3)
    with fn:
        fn.flush()
    alone = dft_fn("steps", "alone")
    alone.flush()
    alone.reset().flush()
    spans = finished(recorded)
    assert attributes(spans, "block") == [{"step": n} for n in (1, 2, 3, 3)]
    assert attributes(spans, "alone") == [None, None]
    assert set(spans["status"]) == {"ok"}
    times = spans.filter(pl.col("name") == "alone").select("start_ns", "duration_ns")
    (start, duration), (again, _) = times.rows()
    # The first from when it was made, the second from when it was reset.
    assert start + duration <= again


def test_events_by_explicit_calls(recorded: Run) -> None:
    """Spans that are over, with arguments of all kinds, inside what was open when they began."""
    log = dftracer.initialize_log()
    before = log.get_time()
    log.enter_event()
    with ai.compute:
        start = log.get_time()
        string_args = {"file": (0, "a"), "tag": TagValue("b").value()}
        floats = {"loss": TagValue(0.5, TagDType.FLOAT, TagType.VALUE)}
        log.log_event("inside", "io", start, 250, {"epoch": (0, 1)}, floats, string_args)
        log.log_event("around", "io", before, 10)
    log.exit_event()
    log.log_metadata_event("model", "resnet")
    dft_fn("io").log_metadata("epochs", 3)
    dft_fn("io", enable=False).log_metadata("silent", 1)
    spans = finished(recorded)
    assert edges(spans) == {("compute", None): 1, ("inside", "compute"): 1, ("around", None): 1}
    inside = spans.filter(pl.col("name") == "inside").row(0, named=True)
    assert inside["category"] == "io"
    assert inside["duration_ns"] == 250_000
    # Both clocks are read one after the other.
    assert abs(inside["start_ns"] - start * 1000) < 1_000_000
    args = {"epoch": 1, "loss": 0.5, "file": "a", "tag": "b"}
    assert attributes(spans, "inside") == [args]
    assert events(recorded) == [
        ("model", None, {"category": "metadata", "value": "resnet"}),
        ("epochs", None, {"category": "metadata", "value": "3"}),
    ]
    log.finalize()


@pytest.mark.parametrize(("start", "duration"), [(0, 5), ("soon", 5), (1.7e15, -1), (1e300, 1)])
def test_times_that_make_no_sense(recorded: Run, start: Any, duration: Any) -> None:
    """The error says what to write instead; outside of tests it is a warning."""
    with pytest.raises(
        StepwellError, match=r"must be microseconds, start_time as returned by get_time\(\)"
    ):
        dftracer.get_instance().log_event("name", "cat", start, duration)


def test_tagged_values(recorded: Run) -> None:
    """They have their type, wherever an argument may stand."""
    assert TagValue("5", TagDType.INT, TagType.VALUE).value() == (1, 5)
    assert TagValue(5).value() == (0, "5")
    copied = pickle.loads(pickle.dumps(TagValue(5, TagDType.INT, TagType.VALUE)))
    assert copied.value() == (1, 5)
    assert TagValue(5, TagDType.FLOAT).value() == (0, 5.0)
    assert [int(TagType.IGNORE), int(TagDType.STRING)] == [2, 2]
    with ai.data(args={"n": TagValue("5", TagDType.INT), "text": TagValue(5)}):
        pass
    assert attributes(finished(recorded), "data") == [{"n": 5, "text": "5"}]


def test_nodes_outside_the_tree(recorded: Run) -> None:
    """They are used as all others; enums may stand for categories and names."""
    node = DFTracerAI(cat=ProfileCategory.COMPUTE, name=ComputeEvent.FORWARD, epoch=1)
    assert isinstance(node, DFTracerAI)
    assert isinstance(ai.data, DFTracerAI)
    assert (node.cat, node.name, ai.data.item.cat) == ("compute", "forward", "data")
    assert ai.data.item(size=4).cat == "data"
    with node, DFTracerAI(cat="own"), DFTracerAI(cat="own", name="off", enable=False):
        pass
    spans = finished(recorded)
    assert spans.select("name", "category").rows() == [("forward", "compute"), ("own", "own")]
    assert attributes(spans, "forward") == [{"epoch": 1}]
    assert ai.compute.forward.attributes == {}


def test_words_of_the_tree() -> None:
    """The enums have every category and event, and read as text."""
    assert [str(c) for c in ProfileCategory] == [node.cat for node in vars(ai).values()]
    words = [
        word
        for name in names.__all__
        if name.endswith("Event") and name != "IOEvent"
        for word in getattr(names, name)
    ]
    # Not the tree itself: other tests may have given its nodes children.
    inner = {str(node.ai).rpartition(".")[0] for node in AI_NODES}
    leaves = [n.trace_name for n in AI_NODES if n.ai not in inner and ".io." not in n.trace_name]
    assert sorted(f"{word}" for word in words) == sorted(
        name.removeprefix("other.") for name in leaves
    )
    assert f"{names.IOEvent.READ}" == "read"
    assert pickle.loads(pickle.dumps(ComputeEvent.STEP)) is ComputeEvent.STEP
    assert names.get_iter_block_name("fetch") == "fetch.block"
    assert names.get_iter_handle_name("fetch.iter") == "fetch.iter"
    assert names.pipeline is ai.pipeline


def test_names_of_loops(recorded: Run) -> None:
    """A name that is given is the whole name."""
    for _ in ai.dataloader.fetch.iter([1], iter_name="load", block_name="train"):
        pass
    spans = finished(recorded)
    assert spans.select("name", "category").rows() == [
        ("load", "dataloader"),
        ("train", "dataloader"),
    ]
    assert attributes(spans, "load") == [{"count": 1}]


def test_what_else_the_log_has(recorded: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts about the program are labels of the run; entities are taken, and not recorded."""
    monkeypatch.setenv("DFTRACER_INC_METADATA", "1")
    log = dftracer.initialize_log()
    log.set_app_metadata_int("files", 3)
    log.set_app_metadata_string("format", "npz")
    log.mark_used("ai")
    log.declare_entity_type("file", names.EntityRole.INPUT, "an input")
    log.relate_entities(names.EntityRelation.CONTAINS, 0, 0)
    fn = dft_fn("io")
    assert [fn.uses("file", 1), fn.generates("file", 2), log.declare_entity("file", 1)] == [0, 0, 0]
    assert fn.relate(names.EntityRelation.USED, 0) is fn
    assert (log.get_config("DFTRACER_INC_METADATA"), log.get_config("DFTRACER_NONE")) == ("1", "")
    assert recorded.labels == {"files": 3, "format": "npz"}
    log.finalize()


OFF = """
import os, sys
import stepwell
from stepwell import ai as own
from stepwell.compat.dftracer import DFTRACER_ENABLE, ai, dft_fn, dftracer

class Reader:
    def read(self, step):
        return step + 1

read = Reader.read
Reader.read = dft_fn("io").log(Reader.read)
log = dftracer.initialize_log("trace.pfw")
with ai.compute, dft_fn("io", "block") as block:
    block.update(step=1).flush()
    assert Reader().read(1) == 2
assert list(ai.data.item.iter([1, 2])) == [1, 2]
log.log_event("event", "io", log.get_time(), 1)
log.log_metadata_event("key", "value")
log.finalize()
print(DFTRACER_ENABLE, log.get_time(), Reader.read is read, os.listdir())
with stepwell.init(dir="runs", quiet=True) as run:
    with ai.compute, dft_fn("io", "block"), own.data:
        Reader().read(1)
print(stepwell.open_run(run.path).spans().collect()["name"].to_list())
"""


@pytest.mark.parametrize("value", ["0", "", "off"])
def test_switched_off(tmp_path: Path, value: str) -> None:
    """Nothing is recorded or written, and functions are unchanged; stepwell's own names still record."""
    done = run_script(OFF, cwd=tmp_path, env=environment(DFTRACER_ENABLE=value), check=True)
    assert done.stdout.splitlines() == ["False 0 True []", "['data']"]


@pytest.mark.parametrize("value", [None, "1", "true"])
def test_switched_on(tmp_path: Path, value: str | None) -> None:
    """It is on without the variable, too."""
    program = "from stepwell.compat.dftracer import DFTRACER_ENABLE; print(DFTRACER_ENABLE)"
    env = environment(**({} if value is None else {"DFTRACER_ENABLE": value}))
    assert run_script(program, env=env, check=True).stdout == "True\n"


RANK = """
import os, sys
from stepwell.compat.dftracer import ai, dftracer

log = dftracer.initialize_log(sys.argv[1].format(**os.environ), process_id=int(os.environ["RANK"]))
with ai.compute:
    pass
log.finalize()
"""


def traces(folder: Path) -> dict[str, list[str]]:
    """The ranks that the traces in a folder are of."""
    return {
        path.name: [e["args"]["value"] for e in lines(path) if e["name"] == "PR"]
        for path in folder.glob("*.pfw")
    }


def test_names_of_ranks(tmp_path: Path) -> None:
    """Each rank has the file that it asked for."""
    env = environment(STEPWELL_DIR=str(tmp_path / "runs"))
    run_ranks(RANK, "trace-{RANK}-of-2.pfw", cwd=tmp_path, env=env, check=True)
    assert traces(tmp_path) == {"trace-0-of-2.pfw": ["0"], "trace-1-of-2.pfw": ["1"]}


def test_the_same_name_for_all_ranks(tmp_path: Path) -> None:
    """Rank 0 has it, the others have their rank in the name; nothing is written over."""
    env = environment(STEPWELL_DIR=str(tmp_path / "runs"))
    run_ranks(RANK, "trace.pfw", cwd=tmp_path, env=env, check=True)
    found = traces(tmp_path)
    assert found.pop("trace.pfw") == ["0"]
    ((name, ranks),) = found.items()
    assert name.startswith("trace.rank-1-")
    assert ranks == ["1"]


def test_metadata_in_the_trace(recorded: Run, tmp_path: Path) -> None:
    """A pair of texts is a record of its own kind."""
    log = dftracer.initialize_log(tmp_path / "trace.pfw")
    log.log_metadata_event("model", "resnet")
    log.finalize()
    records = [e for e in lines(tmp_path / "trace.pfw") if e["name"] == "CM"]
    pairs = [(e["args"]["name"], e["args"]["value"]) for e in records]
    assert pairs == [("time_metric", "US"), ("model", "resnet")]


def test_what_is_started_again(recorded: Run) -> None:
    """A span that was never stopped is not recorded once its parent has ended and it is started again."""
    for _ in range(3):
        with ai.pipeline.epoch:
            ai.dataloader.fetch.start()
            ai.dataloader.fetch.stop()
            ai.dataloader.fetch.start()
    with ai.pipeline.epoch:
        ai.dataloader.fetch.start()
        # The same node inside itself: two of them.
        ai.dataloader.fetch.start()
        ai.dataloader.fetch.stop()
        ai.dataloader.fetch.stop()
    spans = finished(recorded)
    assert edges(spans) == {("epoch", None): 4, ("fetch", "epoch"): 4, ("fetch", "fetch"): 1}
    assert set(spans["status"]) == {"ok"}


PAGE = Path(__file__).parents[2] / "docs" / "migrate" / "dftracer.md"


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of docs/migrate/dftracer.md runs, and the names that it lists exist."""
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(example, {"__name__": "page"})
    spans = [e for e in lines(tmp_path / "traces" / "trace.pfw") if e["ph"] == "X"]
    reads = [e["args"] for e in spans if e["name"] == "Reader.read"]
    assert [(a["epoch"], a["image_idx"], a["step"]) for a in reads] == [
        (1, step, step) for step in (0, 1, 2, 0, 1, 2)
    ]
    (imported,) = re.findall(r"^\+from stepwell.compat.dftracer import (.*)", text, re.M)
    said = re.findall(r"`(dftracer|dft_fn|node)\.(\w+)", text)
    owners: dict[str, Any] = {"dftracer": dftracer, "dft_fn": dft_fn, "node": ai.compute}
    modules = {("dftracer", "logger"), ("dftracer", "python")}
    missing = [
        pair for pair in said if pair not in modules and not hasattr(owners[pair[0]], pair[1])
    ]
    assert missing == []
    assert [name for name in imported.split(", ") if name not in names.__all__] == []
