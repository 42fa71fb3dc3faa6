"""What ``stepwell.log`` takes besides numbers."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import stepwell
from stepwell import Histogram, Image, Run, Table, Text
from stepwell.telemetry.artifacts import artifact_path
from tests.harness import run_script
from tests.loggers.needs import needs


def items(run: Run) -> list[dict[str, Any]]:
    run.flush()
    return stepwell.open_run(run.path).items().collect().to_dicts()


def the_item(run: Run) -> dict[str, Any]:
    (found,) = items(run)
    return found


def content(run: Run, item: dict[str, Any]) -> bytes:
    return artifact_path(run.path, item["sha256"]).read_bytes()


def pixels(data: bytes) -> Any:
    from PIL import Image as Pictures

    return np.asarray(Pictures.open(io.BytesIO(data)))


@needs("PIL")
def test_an_array_as_an_image(recorded: Run) -> None:
    """It is a PNG file with step, caption and size; other values of the call are recorded too."""
    picture = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    recorded.log({"loss": 1.0, "sample": Image(picture, "a caption"), "lr": 2.0}, step=7)
    found = the_item(recorded)
    assert (found["kind"], found["name"], found["step"]) == ("image", "sample", 7)
    assert (found["caption"], found["media"]) == ("a caption", "image/png")
    assert json.loads(found["attributes"]) == {"width": 4, "height": 2}
    assert (pixels(content(recorded, found)) == picture).all()
    names = stepwell.open_run(recorded.path).metrics().collect()["name"].to_list()
    assert names == ["loss", "lr"]


@needs("PIL")
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_pil_image(recorded: Run, wrapped: bool) -> None:
    """With and without a wrapper; the step is the current one."""
    from PIL import Image as Pictures

    picture = Pictures.new("RGB", (3, 2), (9, 8, 7))
    recorded.set_step(4, epoch=1)
    recorded.log({"sample": Image(picture) if wrapped else picture})
    found = the_item(recorded)
    assert (found["kind"], found["step"], found["epoch"]) == ("image", 4, 1)
    assert pixels(content(recorded, found))[0, 0].tolist() == [9, 8, 7]


@needs("matplotlib")
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_figure(recorded: Run, wrapped: bool) -> None:
    """It is drawn as PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2, 1), dpi=100)
    recorded.log({"curve": Image(figure, caption="c") if wrapped else figure})
    found = the_item(recorded)
    assert (found["kind"], found["caption"]) == ("figure", "c" if wrapped else None)
    assert pixels(content(recorded, found)).shape[:2] == (100, 200)


def test_several_images_under_one_name(recorded: Run) -> None:
    """Each has its number behind a slash."""
    recorded.log({"samples": [Image(np.zeros((2, 2))), Image(np.ones((2, 2)))]})
    assert [item["name"] for item in items(recorded)] == ["samples/0", "samples/1"]


def test_a_histogram(recorded: Run) -> None:
    """Counts and edges, and what describes the numbers; those that are not finite are counted."""
    numbers = torch.tensor([0.0, 1.0, 1.0, 4.0, float("nan")])
    recorded.log({"weights": Histogram(numbers, bins=2, caption="w")})
    found = the_item(recorded)
    assert (found["kind"], found["caption"]) == ("histogram", "w")
    value = json.loads(found["value"])
    assert (value.pop("mean"), value.pop("std")) == (1.5, pytest.approx(1.5))
    assert value == {
        "counts": [3, 1],
        "edges": [0.0, 2.0, 4.0],
        "count": 4,
        "nonfinite": 1,
        "min": 0.0,
        "max": 4.0,
    }


def test_a_histogram_that_is_counted_already(recorded: Run) -> None:
    """Counts with their edges are kept as they are."""
    recorded.log({"lengths": Histogram([5, 2], edges=[0, 10, 20])})
    value = json.loads(the_item(recorded)["value"])
    assert value == {"counts": [5.0, 2.0], "edges": [0.0, 10.0, 20.0], "count": 7.0}


ROWS = {"columns": ["word", "count"], "data": [["a", 1], ["b", None]]}


@pytest.mark.parametrize(
    "table",
    [
        Table([["a", 1], ["b", None]], columns=["word", "count"]),
        Table([{"word": "a", "count": 1}, {"word": "b"}]),
        Table({"word": ["a", "b"], "count": (1, None)}),
        Table(pl.DataFrame({"word": ["a", "b"], "count": [1, None]})),
        pl.DataFrame({"word": ["a", "b"], "count": [1, None]}),
    ],
    ids=["rows", "dicts", "columns", "frame", "bare frame"],
)
def test_tables(recorded: Run, table: Any) -> None:
    """Rows, dicts, columns and DataFrames become the same JSON."""
    recorded.log({"words": table})
    found = the_item(recorded)
    assert (found["kind"], found["media"]) == ("table", "application/json")
    assert json.loads(content(recorded, found)) == ROWS


def test_texts(recorded: Run) -> None:
    """Short ones are values, long ones whole files."""
    recorded.log({"a": Text("# Title", caption="c"), "b": "a word", "c": "x" * 10_000})
    a, b, c = items(recorded)
    assert (a["kind"], a["value"], a["caption"]) == ("text", '"# Title"', "c")
    assert (b["kind"], b["value"]) == ("value", '"a word"')
    assert (c["kind"], content(recorded, c)) == ("text", b"x" * 10_000)


def test_a_logger_takes_them_too(recorded: Run, logger: Any) -> None:
    """Without a kind, for the backend of that logger."""
    logger.log(Image(np.zeros((2, 2))), "sample", step=3)
    recorded.flush()
    (line,) = [
        json.loads(line)
        for path in recorded.path.glob("rank-*/events.jsonl")
        for line in path.read_text().splitlines()
        if '"item"' in line
    ]
    assert (line["attributes"]["item"], line["attributes"]["audience"]) == ("image", [1])


class Hostile:
    """What is asked of it while it is logged fails."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # pytest asks for these
        raise RuntimeError("hostile")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.zeros((3, 4)), "numpy.ndarray of shape (3, 4) is not a number"),
        ([torch.zeros(2)], "is not a number"),
        (object(), "is not a number"),
        (Hostile(), "hostile"),
        (Image("no such file"), "'no such file' is not a file"),
        (Image(np.zeros(3)), "an array of numbers with 2, 3 or 4 axes"),
        (Histogram(["a"]), "a histogram needs numbers"),
        (Histogram([1.0], bins=0), "bins must be a number from 1 to 10000, got 0"),
        (Table("text"), "a table must be rows"),
        (Table([[1, 2], [3]], columns=["a", "b"]), "not all rows have 2 values"),
    ],
)
def test_values_that_cannot_be_kept(
    recorded: Run,
    value: Any,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One warning that says why, however often; the numbers beside them are recorded."""
    monkeypatch.delenv("STEPWELL_STRICT")
    name = f"wrong {words} {value!r:.60}"
    with caplog.at_level(logging.WARNING, "stepwell"):
        for _ in range(3):
            recorded.log({name: value, "loss": 1.0})
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1
    assert words in warnings[0]
    recorded.flush()
    assert stepwell.open_run(recorded.path).metrics().collect()["value"].to_list() == [1.0] * 3


def test_plain_values_give_no_warning(recorded: Run, caplog: pytest.LogCaptureFixture) -> None:
    """Strings, lists of numbers, None: they are kept as they are."""
    with caplog.at_level(logging.WARNING, "stepwell"):
        recorded.log({"a": "b", "c": [1, 2.5], "d": None, "e": True, "f": [np.float32(1)]})
    assert caplog.records == []


def test_recording_texts_loads_no_heavy_library(tmp_path: Path) -> None:
    """A process that logs numbers and texts loads neither NumPy nor Polars nor PIL."""
    import subprocess
    import sys

    code = (
        "import sys, stepwell\n"
        f"with stepwell.init('a', dir={str(tmp_path)!r}, quiet=True) as run:\n"
        "    run.log({'loss': 1.0, 'note': 'word', 'text': stepwell.Text('x')})\n"
        "print([m for m in ('numpy', 'polars', 'PIL', 'torch') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_worker_process_logs_them(tmp_path: Path) -> None:
    """A forked child keeps its items in the same run folder."""
    code = """
import multiprocessing, stepwell
def work():
    stepwell.log({"note": stepwell.Table([[1]], columns=["a"])})
with stepwell.init("a") as run:
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
"""
    run_script(code, cwd=tmp_path, check=True)
    (run,) = stepwell.list_runs(tmp_path / "runs")
    found = run.items().collect().row(0, named=True)
    assert json.loads(artifact_path(run.path, found["sha256"]).read_bytes())["data"] == [[1]]
