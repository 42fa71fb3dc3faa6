"""The spellings of dftracer, on top of a run."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell import Run
from stepwell.compat.dftracer import ai, dft_fn, dftracer
from tests.nesting.tree import attributes, edges, finished


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
    with ai.compute:
        for _ in range(3):
            with ai.compute.forward(args={"size": 4}):
                pass
    log.finalize()
    log.finalize()
    assert stepwell.active_run() is None
    assert dftracer.get_instance() is None
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
    names = [f"{here}.__init__", f"{here}.read", f"{here}.inner", f"{here}.outer", "named"]
    assert spans["name"].to_list() == names
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
    assert edges(spans) == {
        ("block", None): 1,
        ("loop.iter", "block"): 2,
        ("loop.yield", "block"): 2,
        ("plain", None): 1,
    }
    every = {"step": 3, "image_idx": 5, "size": 7}
    assert attributes(spans, "block") == [every]
    assert attributes(spans, "loop.iter") == [{**every, "count": 1}, {**every, "count": 2}]
    assert attributes(spans, "plain") == [None]


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
