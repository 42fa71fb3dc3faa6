"""Items that cannot be stored give a message, and do no harm."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Run, StepwellError
from tests.loggers.items.reading import logged
from tests.loggers.items.things import net
from tests.loggers.logged import Own, items, metrics

pytest.importorskip("torch")


WRONG: list[tuple[str, Any, str]] = [
    ("artifact", "no/such/file", "is not a file or folder"),
    ("artifact", lambda: None, "pickle"),
    ("dict", 5, "must be a dict, got int"),
    ("figure", "no/such.png", "is not a file"),
    ("image", np.zeros(3), "with 2, 3 or 4 axes"),
    ("image", np.array([["a"]]), "an array of numbers"),
    ("image", np.zeros((0, 3)), "with 2, 3 or 4 axes"),
    ("image", np.zeros((5, 5, 5, 5)), "no axis of 1, 3 or 4 channels"),
    ("model", "no/such.pt", "is not a file"),
    ("model", lambda: None, "pickle"),
    ("torch", lambda: None, "pickle"),
    ("watch", 5, "must be a torch.nn.Module, got int"),
    ("flops_pb", 5, "the item must be (model, batch)"),
    ("flops_pb", (1, 2), "must be a torch.nn.Module"),
    ("flops_pe", (1, iter([])), "has no length"),
    ("execution_time", "long", "must be a number of seconds"),
]


@pytest.mark.parametrize(("kind", "item", "said"), WRONG)
def test_what_cannot_be_kept_is_said_and_training_goes_on(
    recorded: Run,
    logger: Own,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    item: Any,
    said: str,
) -> None:
    """Once for each kind, with the name and the reason; in tests it is raised."""
    from stepwell._core import errors

    with pytest.raises(StepwellError) as error:
        logger.log(item, "wrong one", kind=kind)
    assert said in str(error.value)
    monkeypatch.delenv("STEPWELL_STRICT")
    errors.counts.pop(f"log {kind}", None)
    caplog.set_level(logging.WARNING, "stepwell")
    for _ in range(3):
        logger.log(item, "wrong one", kind=kind)
    warnings = [r.getMessage() for r in caplog.records if "wrong one" in r.getMessage()]
    assert len(warnings) == 1
    assert f"kind={kind!r}" in warnings[0]
    assert logged(recorded) == []


class Hostile:
    """Whatever is asked of it fails."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("hostile")

    def __str__(self) -> str:
        raise RuntimeError("hostile")

    def __reduce__(self) -> Any:
        raise RuntimeError("hostile")


@pytest.mark.parametrize(
    "kind", [k for k in Own.supported_kinds if k not in ("system", "carbon", "prov_documents")]
)
def test_a_hostile_object_does_not_stop_training(
    recorded: Run, logger: Own, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Of whatever kind it is said to be."""
    monkeypatch.delenv("STEPWELL_STRICT")
    logger.log(Hostile(), "hostile", kind=kind)
    logger.log(1.0, "loss")
    recorded.finish()
    assert [m.value for m in metrics(recorded) if m.name == "loss"] == [1.0]


def test_a_full_disk_does_not_stop_training(
    recorded: Run,
    logger: Own,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is said, and counted."""
    from stepwell._core import errors
    from stepwell.telemetry import artifacts

    def full(*args: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.delenv("STEPWELL_STRICT")
    monkeypatch.setattr(artifacts, "store", full)
    monkeypatch.setattr(artifacts, "store_written", full)
    errors.counts.pop("log artifact", None)
    logger.log(b"x", "file", kind="artifact")
    logger.log(net(), "net", kind="model")
    assert "No space left" in caplog.text
    recorded.finish()
    assert items(recorded) == []
    assert stepwell.open_run(recorded.path).processes().collect()["dropped"].sum() >= 2
