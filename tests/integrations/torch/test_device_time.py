"""Time on the device, with fake events that are read in the background."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import stepwell  # noqa: E402
from stepwell import Run  # noqa: E402
from stepwell.integrations.torch import annotate, backward, device_time, hooks  # noqa: E402
from stepwell.journal import scalars  # noqa: E402
from tests.integrations.torch.loops import make_loader, make_model, make_optimizer, train  # noqa: E402
from tests.nesting.tree import finished  # noqa: E402

pytestmark = pytest.mark.torch


class Device:
    """A device whose clock moves by 5 ms from event to event, and which lags behind."""

    def __init__(self) -> None:
        self.clock = 0.0
        self.reached = float("inf")
        self.made = 0
        self.capturing = False
        self.fails = False

    def is_initialized(self) -> bool:
        return True

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def Event(self, enable_timing: bool) -> Event:
        assert enable_timing
        self.made += 1
        return Event(self)


class Event:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.at = -1.0

    def record(self) -> None:
        self.device.clock += 5.0
        self.at = self.device.clock

    def query(self) -> bool:
        return self.at <= self.device.reached

    def synchronize(self) -> None:
        raise AssertionError("nobody waits for a device")

    def elapsed_time(self, end: Event) -> float:
        assert end.query()
        if self.device.fails:
            raise RuntimeError("device is gone")
        return end.at - self.at


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    made = Device()
    monkeypatch.setattr(device_time, "_cuda", made)
    monkeypatch.setattr(device_time.devices, "possible", True)
    for module in (hooks, backward):
        monkeypatch.setattr(module, "is_any_on_device", lambda tensors: any(True for _ in tensors))
    device_time._spare.clear()
    yield made
    device_time._spare.clear()


def loop(epochs: int = 1) -> None:
    model = make_model()
    optimizer, loader = make_optimizer(model), make_loader()
    with annotate(model, optimizer, loader):
        train(model, optimizer, loader, epochs)


def test_each_pass_has_a_time(recorded: Run, device: Device) -> None:
    """Metrics with the step of the pass, its thread, and the very time at which its span began."""
    loop()
    spans = finished(recorded)
    metrics = stepwell.open_run(recorded.path).metrics().collect().sort("name", "step")
    assert metrics.select("name", "step", "value").rows() == [
        (f"device_time/{name}", step, 0.005)
        for name in ("backward", "forward", "step")
        for step in range(4)
    ]
    began = {
        (f"device_time/{name}", thread, start)
        for name, thread, start in spans.select("name", "thread", "start_ns").iter_rows()
        if name != "fetch"
    }
    assert set(metrics.select("name", "thread", "time_ns").iter_rows()) == began


def test_nobody_waits(recorded: Run, device: Device) -> None:
    """Times are written when the device has come so far, and the events are used again."""
    device.reached = 0.0
    loop()
    assert recorded.flush(5.0) is False
    assert stepwell.open_run(recorded.path).metrics().collect().height == 0
    device.reached = float("inf")
    assert recorded.flush()
    assert stepwell.open_run(recorded.path).metrics().collect().height == 12
    made = device.made
    assert made == 24
    loop()
    assert device.made == made


def test_a_device_that_never_answers(
    recorded: Run, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends all the same, and says how many values are missing."""
    monkeypatch.setattr(scalars, "LAST_WAIT", 0.1)
    device.reached = 0.0
    loop()
    finished(recorded)
    assert stepwell.open_run(recorded.path).processes().collect()["dropped"].to_list() == [12]


def test_a_device_that_fails(tmp_path: Any, device: Device) -> None:
    run = stepwell.init(dir=tmp_path)
    device.fails = True
    loop()
    assert finished(run).height == 16
    recorded = stepwell.open_run(run.path)
    assert recorded.processes().collect()["dropped"].to_list() == [12]
    assert recorded.metrics().collect().height == 0


def test_no_events_while_a_graph_is_captured(recorded: Run, device: Device) -> None:
    device.capturing = True
    loop()
    assert finished(recorded).height == 16
    assert device.made == 0


def test_not_without_a_device(recorded: Run) -> None:
    """On the host alone there is nothing to time."""
    loop()
    finished(recorded)
    assert stepwell.open_run(recorded.path).metrics().collect().height == 0
