"""telemetry.jsonl: strict JSON, whole lines, and the way back into a table."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from stepwell._core.errors import StepwellError
from stepwell.diagnostics import records, to_dataframe


def test_strict_json() -> None:
    """Numbers without a word in JSON are null, and named with their place."""
    made = records.strict(
        {"a": float("nan"), "b": {"c": [1.0, float("-inf")], 3: float("inf")}, "d": 10**40}
    )
    assert made == {
        "a": None,
        "b": {"c": [1.0, None], "3": None},
        "d": 10**40,
        "nonfinite": {"a": "nan", "b.c.1": "-inf", "b.3": "inf"},
    }
    # Of a model that is broken all logits are: one word for them.
    many = records.strict({"a": [[float("nan"), float("inf")]] * 50, "b": [float("nan")] * 9})
    assert many["nonfinite"] == {"a": "inf, nan", "b": "nan"}
    assert many["a"] == [[None, None]] * 50
    assert "nonfinite" not in records.strict({"a": 1, "b": None})


def test_lines_are_appended_in_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that records of several writers do not mix, and a killed one leaves none by half."""
    written: list[bytes] = []
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: written.append(data) or real(file, data))
    for i in range(3):
        records.append(tmp_path / "new" / "t.jsonl", {"i": i, "long": "x" * 100_000})
    assert [data.count(b"\n") for data in written] == [1, 1, 1]
    lines = (tmp_path / "new" / "t.jsonl").read_text().splitlines()
    assert [json.loads(line)["i"] for line in lines] == [0, 1, 2]


@pytest.mark.parametrize("torn", ['{"i": 1, "x', "x" * 200_000, '{"i": 1}'])
def test_half_a_line_is_taken_away(tmp_path: Path, torn: str) -> None:
    """A partial line of a killed process is not a record, and would damage the next."""
    file = tmp_path / "t.jsonl"
    file.write_text('{"i": 0}\n' + torn)
    records.append(file, {"i": 2})
    assert file.read_text() == '{"i": 0}\n{"i": 2}\n'
    file.write_text(torn)
    records.append(file, {"i": 2})
    assert file.read_text() == '{"i": 2}\n'


def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a record is taken back at once."""
    file = tmp_path / "t.jsonl"
    records.append(file, {"i": 0})
    real = os.write
    monkeypatch.setattr(os, "write", lambda number, data: real(number, data[:5]))
    with pytest.raises(OSError, match="only 5 of"):
        records.append(file, {"i": 1})
    assert file.read_text() == '{"i": 0}\n'


def test_numbers_become_metrics() -> None:
    """Of nested dicts too; texts, lists and what is not known do not."""
    field: Any = {"overall": 1, "deep": {"x": 2.5}, "none": None, "list": [1], "text": "a"}
    assert dict(records.metrics_of(field, "g")) == {"g/overall": 1.0, "g/deep/x": 2.5}
    assert dict(records.metrics_of(3, "g")) == {"g": 3.0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run's folder with the records of two ranks."""
    for name, value in (("telemetry.jsonl", 1.0), ("telemetry.rank-00001.jsonl", 2.0)):
        records.append(
            tmp_path / "run" / "telemetry" / name,
            {
                "batch_idx": 200,
                "gradient_norm": {"overall": value},
                "holdout_logits": {"labels": [1]},
            },
        )
    return tmp_path / "run"


def test_to_dataframe(folder: Path) -> None:
    """A row for each record, a column for each number; from a run, its folder, or one file."""
    pytest.importorskip("pandas")
    table = to_dataframe(folder)
    assert table["gradient_norm/overall"].tolist() == [1.0, 2.0]
    assert table["rank"].tolist() == [0, 1]
    assert table["holdout_logits/labels"].tolist() == [[1], [1]]
    run = type("Run", (), {"path": folder})()
    assert to_dataframe(run).equals(table)
    assert to_dataframe(str(folder / "telemetry")).equals(table)
    one = to_dataframe(folder / "telemetry" / "telemetry.rank-00001.jsonl")
    assert one["rank"].tolist() == [1]


def test_a_line_that_is_being_written(folder: Path) -> None:
    """The last one may be incomplete during training; any other is an error."""
    pytest.importorskip("pandas")
    file = folder / "telemetry" / "telemetry.jsonl"
    with open(file, "a") as lines:
        lines.write('{"batch_idx": 40')
    assert len(to_dataframe(file)) == 1
    with open(file, "a") as lines:
        lines.write("\n")
    with pytest.raises(StepwellError, match="line 2"):
        to_dataframe(file)


def test_nothing_to_read(tmp_path: Path) -> None:
    """It says where it looked."""
    pytest.importorskip("pandas")
    with pytest.raises(StepwellError, match=r"no telemetry\.jsonl"):
        to_dataframe(tmp_path)
    with pytest.raises(StepwellError, match="must be a path"):
        to_dataframe(7)
