"""The examples on the page about exporters work as written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell import Run
from stepwell.exporters import FileExporter
from stepwell.telemetry.exporter_config import load_exporters
from stepwell.testing import FakeClock
from tests.exporters.reading_back import recorded_spans, train

PAGE = (Path(__file__).parents[2] / "docs" / "exporters.md").read_text()


def block(containing: str, language: str = "python") -> str:
    """The code block of the page that has this in it."""
    blocks = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    (found,) = [text for text in blocks if containing in text]
    return str(found)


def test_an_exporter_of_your_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The example prints spans that took longer than any before."""
    with FakeClock() as clock, stepwell.init(dir=tmp_path) as run:
        exec(block("class Slowest"), {"run": run})
        for seconds in (0.01, 1.2, 1.1):
            with stepwell.span("nap"):
                clock.advance(seconds)
    assert capsys.readouterr().out == "rank 0: nap took 1.2 s\n"


def test_putting_a_file_together(
    recorded: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example finds every span, in its last state."""
    monkeypatch.chdir(tmp_path)
    recorded.add_exporter(FileExporter())
    train(0, 5)
    recorded.finish()
    space: dict[str, Any] = {}
    exec(block("json.loads"), space)
    assert {key[2] for key in space["spans"]} == set(recorded_spans(recorded))
    assert {line["status"] for line in space["spans"].values()} == {"ok"}


def test_the_configuration(tmp_path: Path) -> None:
    """The example is understood, but for the exporter that only you have."""
    text = block("my_package", "yaml").replace("my_package.exporting.MyExporter", "logging")
    path = tmp_path / "exporters.yaml"
    path.write_text(text.replace('{url: "http://localhost:9000"}', "{level: DEBUG}"))
    file, log = load_exporters(path)
    assert file.exporter.file_path.name == "training.json"
    assert log.filter is not None
    assert log.filter.keeps("validation_loop")
    assert not log.filter.keeps("application")
