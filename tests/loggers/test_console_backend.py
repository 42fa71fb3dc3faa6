"""The console backend, as a logger in the same process has it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from stepwell import Run
from stepwell.loggers.backends.console import ConsoleBackend
from stepwell.loggers.delivery.feed import start_delivery
from stepwell.telemetry import artifacts
from tests.journal.logging_rows import log_for, write_line


def test_where_logging_is_set_up_lines_go_there(
    recorded: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As messages of stepwell.console, of level INFO."""
    with caplog.at_level(logging.INFO, logger="stepwell.console"):
        delivery = start_delivery(recorded, ConsoleBackend(number=1, savedir=str(tmp_path)))
        log_for("1", "loss", 1 / 3, 2)
        log_for("1", "loss", float("nan"), 3)
        write_line("item", "note", item="text", audience=[1], value="two\nlines " + "x" * 300)
        assert delivery.drain(10)
    messages = [r.getMessage() for r in caplog.records if r.name == "stepwell.console"]
    assert messages[:2] == ["loss = 0.333333 (step 2)", "loss = nan (step 3)"]
    assert messages[2].startswith("note = two lines xxx")
    assert len(messages[2]) < 250
    assert len(messages) == 3


def test_a_further_rank_has_a_folder_of_its_own(
    recorded: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says who it is. Two contents of one name are both kept."""
    backend = ConsoleBackend(number=1, rank=3, ranks=[0, 3], savedir=str(tmp_path / "kept"))
    delivery = start_delivery(recorded, backend)
    for content in (b"one", b"two"):
        sha, size = artifacts.store(recorded.path, content)
        write_line(
            "item", "data", item="artifact", audience=[1], content=sha, size=size, file="data.bin"
        )
    assert delivery.drain(10)
    folder = tmp_path / "kept" / recorded.id / "rank-00003"
    assert delivery.state() == {"folder": str(folder)}
    assert sorted(path.read_bytes() for path in folder.iterdir()) == [b"one", b"two"]
    assert capsys.readouterr().err.startswith(f"rank 3: data: {folder / 'data.bin'} (artifact)\n")
