"""Readings: of the system, of durations, of carbon; and provenance that is asked for."""

from __future__ import annotations

import json
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stepwell import Run
from stepwell.loggers import writer
from tests.loggers.items.reading import logged
from tests.loggers.logged import Own, content

torch = pytest.importorskip("torch")


def test_system(recorded: Run, logger: Own) -> None:
    """Plausible readings of the machine; neither item nor name is needed."""
    pytest.importorskip("psutil")
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    logger.log(None, None, kind="system")
    logger.log(None, None, kind="system")
    one, two = logged(recorded, "system")
    assert one.name == "system"
    assert one.value["cpu_percent"] > 1
    assert ("node_cpu_percent" in one.value, "node_cpu_percent" in two.value) == (False, True)
    assert one.value["memory_rss_bytes"] > 1e6
    assert one.value["memory_total_bytes"] > one.value["memory_available_bytes"] > 0
    assert all(isinstance(value, float) for value in one.value.values())


@pytest.mark.parametrize(
    ("item", "low", "high"),
    [
        (None, 0.0, 60.0),
        (12.5, 12.5, 12.5),
        (3, 3.0, 3.0),
        (timedelta(minutes=1), 60.0, 60.0),
        (torch.tensor(2.0), 2.0, 2.0),
    ],
)
def test_execution_time_is_a_duration(
    recorded: Run, logger: Own, item: Any, low: float, high: float
) -> None:
    """In seconds: the one that is given, else since the context was created."""
    logger.log(item, "training", kind="execution_time")
    (one,) = logged(recorded)
    assert low <= one.value <= high
    assert one.attributes["unit"] == "s"


def test_carbon_where_energy_is_not_known(
    recorded: Run, logger: Own, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is absent, and said why; no number is made up."""
    from stepwell.loggers.items import readings

    monkeypatch.setattr(readings.Readings, "_energy", lambda self: ({}, []))
    monkeypatch.delenv("STEPWELL_STRICT")
    logger.log(None, None, kind="carbon")
    assert "STEPWELL_TDP_WATTS" in caplog.text
    assert logged(recorded) == []


def test_carbon_is_estimated_where_that_is_asked_for(
    recorded: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so; emissions only if the carbon intensity is given."""
    from stepwell.loggers.items import readings

    class NoCounter:
        def __bool__(self) -> bool:
            return False

    monkeypatch.setenv("STEPWELL_TDP_WATTS", "100")
    monkeypatch.setattr(readings, "CpuEnergy", NoCounter)
    monkeypatch.setattr(readings.os.path, "exists", lambda path: False)
    seconds = iter([0.0, 10.0, 46.0, 46.0])
    monkeypatch.setattr(readings, "_cpu_seconds", lambda: next(seconds))
    monkeypatch.setattr("stepwell.telemetry.runtime.machine.os.cpu_count", lambda: 4)
    logger = Own().create_logger_context()
    logger.log(None, "a", kind="carbon")
    logger.log(None, "b", kind="carbon", carbon_intensity=400)
    monkeypatch.undo()
    one, two = logged(recorded)
    # 36 s of one of four cores that use 100 W together.
    assert one.value["energy_estimated_joules"] == pytest.approx(900)
    assert one.value["energy_estimated_kwh"] == pytest.approx(900 / 3.6e6)
    assert not any("measured" in name for name in one.value)
    assert one.attributes["source"].startswith("estimated: processor time")
    assert "emissions_kg_co2" not in one.value
    assert two.value["emissions_kg_co2"] == pytest.approx(900 / 3.6e6 * 0.4)


def test_carbon_is_measured_where_there_is_a_counter(
    recorded: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From when the context was created."""
    from stepwell.loggers.items import readings
    from stepwell.telemetry.runtime.machine import CpuEnergy

    package = tmp_path / "intel-rapl:0"
    package.mkdir()
    (package / "max_energy_range_uj").write_text("1000000000")
    (package / "energy_uj").write_text("5000000")
    monkeypatch.setattr(readings, "CpuEnergy", lambda: CpuEnergy(tmp_path))
    monkeypatch.setenv("STEPWELL_TDP_WATTS", "100")
    logger = Own().create_logger_context()
    (package / "energy_uj").write_text("8000000")
    logger.log(None, None, kind="carbon")
    (one,) = logged(recorded)
    assert one.value["energy_cpu_measured_joules"] == 3.0
    assert one.value["energy_measured_joules"] == 3.0
    assert not any("estimated" in name for name in one.value)
    assert one.attributes["source"] == "measured: processor packages (RAPL)"


def test_prov_documents_are_asked_for(
    recorded: Run, logger: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are created from the present run, in the background, and stored as files."""
    logger.save_hyperparameters({"lr": 0.125})
    documents, has_returned = writer.make_documents, threading.Event()

    def make_later(*arguments: Any) -> Any:
        assert has_returned.wait(60)
        return documents(*arguments)

    monkeypatch.setattr(writer, "make_documents", make_later)
    logger.log(None, None, kind="prov_documents", step=3)
    has_returned.set()
    found = {one.file: one for one in logged(recorded, "prov_documents")}
    assert {one.name for one in found.values()} == {"prov_documents"}
    assert "provenance.json" in found
    assert found["provenance.svg"].media == "image/svg+xml"
    one = found["provenance.json"]
    assert (one.step, one.attributes) == (3, {"folder": True})
    document = json.loads(content(recorded, one))
    assert {"prefix", "entity", "activity", "agent"} <= document.keys()
    assert "0.125" in json.dumps(document)
