"""Scalars on an accelerator: kept without waiting for it, fetched in one batch in the background.

There is no accelerator here, so ``Device`` is a real tensor that says it is on one, and that fails when
the thread that logs it asks for its value, as a silent synchronisation would.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from stepwell import Run, open_run
from stepwell.journal import scalars
from tests.journal.readback import carried_by_all, events_of, metrics_of

logging_threads: set[int] = set()
copies: list[int] = []


class Device(torch.Tensor):
    """A tensor on a make-believe accelerator."""

    kind = "cuda"

    @property
    def device(self) -> Any:
        return torch.device(self.kind, 0)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__"):
            assert threading.get_ident() not in logging_threads, f"{name} waits for the device"
            copies.append(args[0].numel())
        return super().__torch_function__(func, types, args, kwargs or {})


def on_device(value: Any, **options: Any) -> Any:
    return torch.tensor(value, **options).as_subclass(Device)


@pytest.fixture(autouse=True)
def _watched() -> Iterator[None]:
    logging_threads.clear()
    logging_threads.add(threading.get_ident())
    copies.clear()
    yield
    logging_threads.clear()


def test_the_fake_fails_where_a_device_would_wait() -> None:
    """The watch works: asking for the value in the thread that logs is caught."""
    with pytest.raises(AssertionError, match="waits for the device"):
        float(on_device(1.0))


def test_values_are_fetched_in_one_copy(recorded: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many scalars of several dtypes take one transfer, and come back exactly."""
    fetches: list[int] = []
    fetch = scalars.fetch
    monkeypatch.setattr(scalars, "fetch", lambda t: (fetches.append(len(t)), fetch(t))[1])
    recorded.flush()
    monkeypatch.setattr(scalars.DeviceScalars, "resolve", lambda self: None)
    recorded.log({"a": on_device(0.1, dtype=torch.float64), "n": on_device([[2**40]])}, step=3)
    recorded.log({"b": on_device(1.5, dtype=torch.bfloat16), "t": on_device(True)}, step=4)
    recorded.log({"g": on_device(0.5, requires_grad=True), "nan": on_device(float("nan"))})
    monkeypatch.undo()
    monkeypatch.setattr(scalars, "fetch", lambda t: (fetches.append(len(t)), fetch(t))[1])
    metrics = metrics_of(recorded)
    assert metrics.pop("nan")[0][1] != 0  # NaN is unequal to everything
    assert metrics == {
        "a": [(3, 0.1)],
        "n": [(3, float(2**40))],
        "b": [(4, 1.5)],
        "t": [(4, 1.0)],
        "g": [(0, 0.5)],
    }
    assert fetches == [6]
    assert copies == [6]


def test_a_value_keeps_its_step_its_time_and_its_thread(recorded: Run) -> None:
    """A row written later by the pump belongs to where and when it was logged."""
    recorded.set_step(7, epoch=1)

    def work() -> None:
        logging_threads.add(threading.get_ident())
        recorded.log({"in thread": on_device(2.0)})

    recorded.log({"here": on_device(1.0), "host": 1.0})
    thread = threading.Thread(target=work, name="helper")
    thread.start()
    thread.join()
    recorded.set_step(8, epoch=2)
    recorded.log({"later": 3.0})
    recorded.flush()
    table = open_run(recorded.path).metrics().sort("time_ns", "name").collect()
    assert table.select("name", "step", "epoch", "thread", "value").rows() == [
        ("here", 7, 1, "MainThread", 1.0),
        ("host", 7, 1, "MainThread", 1.0),
        ("in thread", 7, 1, "helper", 2.0),
        ("later", 8, 2, "MainThread", 3.0),
    ]


def test_a_value_is_the_one_it_had_when_it_was_logged(
    recorded: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tensor that is changed in place afterwards was copied before."""
    monkeypatch.setattr(scalars.DeviceScalars, "resolve", lambda self: None)
    running = on_device(1.0)
    recorded.log({"a": running})
    running.add_(1)
    recorded.log({"a": running})
    running.zero_()
    monkeypatch.undo()
    assert metrics_of(recorded) == {"a": [(0, 1.0), (1, 2.0)]}


def test_finish_waits_for_what_is_on_the_device(recorded: Run) -> None:
    """Values logged just before the end are in the finished run."""
    recorded.log({"a": on_device(1.0)})
    # finish() may wait, so this thread fetches what the pump has not.
    logging_threads.clear()
    recorded.finish()
    assert metrics_of(recorded) == {"a": [(0, 1.0)]}


def test_a_tensor_of_many_is_described_without_being_looked_at(recorded: Run) -> None:
    """A value that is not a scalar becomes an event with its type, shape and device."""
    recorded.log({"a": on_device([1.0, 2.0])})
    [(name, about)] = events_of(recorded)
    assert (name, about["value"]) == ("a", "<Device: torch.float32 (2,) on cuda:0>")


def test_attributes_on_a_device_are_described_without_being_looked_at(recorded: Run) -> None:
    """An attribute set is written at once, so it says what was there rather than wait for it."""
    for attributes in carried_by_all(recorded, loss=on_device(1.0)):
        assert attributes == {"loss": "<Device: torch.float32 () on cuda:0>"}


def test_a_device_that_fails_costs_its_own_values_alone(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values that cannot be fetched are counted as dropped; those of another device are kept."""

    class Lost(Device):
        kind = "xpu"

        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if getattr(func, "__name__", "") == "stack":
                raise RuntimeError("device is gone")
            return super().__torch_function__(func, types, args, kwargs)

    monkeypatch.setattr(scalars.DeviceScalars, "resolve", lambda self: None)
    run.log({"lost": torch.tensor(1.0).as_subclass(Lost), "kept": on_device(2.0)})
    run.log({"lost": torch.tensor(3.0).as_subclass(Lost)})
    monkeypatch.undo()
    assert metrics_of(run) == {"kept": [(0, 2.0)]}
    assert open_run(run.path).processes().collect()["dropped"].to_list() == [2]


def test_a_device_without_doubles_is_served(recorded: Run) -> None:
    """Apple's accelerator has no float64: its values are fetched as float32."""

    class Mps(Device):
        kind = "mps"

        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if getattr(func, "__name__", "") == "to" and torch.float64 in args:
                raise TypeError("the MPS framework doesn't support float64")
            return super().__torch_function__(func, types, args, kwargs)

    recorded.log({"a": torch.tensor(0.25).as_subclass(Mps)})
    assert metrics_of(recorded) == {"a": [(0, 0.25)]}
