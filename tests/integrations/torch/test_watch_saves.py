"""``stepwell.watch``: checkpoints saved by the loop are recorded like those of the explicit functions."""

from __future__ import annotations

import io
import json
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import polars as pl
import pytest

torch = pytest.importorskip("torch")

import torch.distributed.checkpoint as dcp  # noqa: E402

import stepwell  # noqa: E402
from tests.integrations.torch.loops import BATCHES, counts, train  # noqa: E402
from tests.integrations.torch.watched import evaluate, parts, read  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("watching")]


def saves(run: Any) -> list[tuple[str, int, str]]:
    """Name, step and file of each recorded save."""
    _, spans = read(run)
    found = spans.filter(pl.col("name").str.starts_with("checkpoint_save"))
    attributes = [json.loads(text) for text in found["attributes"]]
    return [
        (name, each["current_iteration"], Path(each["checkpoint_path"]).name)
        for name, each in zip(found["name"], attributes, strict=True)
    ]


def test_a_file_without_a_name_is_written(tmp_path: Path) -> None:
    """A file object whose name cannot be asked for is saved to all the same."""

    class Nameless(io.BytesIO):
        @property
        def name(self) -> str:
            raise OSError("not connected")

    model, optimizer, loader = parts()
    file = Nameless()
    with stepwell.watch(model, optimizer, loader):
        train(model, optimizer, loader)
        torch.save(model.state_dict(), file)
    assert file.tell() > 0


def test_files_that_are_saved_in_the_loop(tmp_path: Path) -> None:
    """By path or open file; not what is written to memory, or before and after the training."""
    model, optimizer, loader = parts()
    torch.save(model.state_dict(), tmp_path / "before.pt")
    original = torch.save
    with stepwell.watch(model, optimizer, loader) as watch:
        torch.save(model.state_dict(), tmp_path / "at the start.pt")
        train(model, optimizer, loader)
        torch.save(model.state_dict(), tmp_path / "first.pt")
        torch.save(model.state_dict(), io.BytesIO())
        train(model, optimizer, loader)
        with (tmp_path / "second.pt").open("wb") as file:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f=file)
    assert torch.save is original
    torch.save(model.state_dict(), tmp_path / "after.pt")
    assert saves(watch.run) == [
        ("checkpoint_save_sync", BATCHES, "first.pt"),
        ("checkpoint_save_sync", 2 * BATCHES, "second.pt"),
    ]
    found, _ = read(watch.run)
    events = found.events().collect()
    success = events.filter(pl.col("name") == "save_checkpoint_success").sort("time_ns")
    sizes = [json.loads(text)["checkpoint_size"] for text in success["attributes"]]
    assert sizes[0] == (tmp_path / "first.pt").stat().st_size


def test_a_save_that_fails(tmp_path: Path) -> None:
    """The exception comes out, and the failure is recorded."""
    model, optimizer, loader = parts()
    with stepwell.watch(model, optimizer, loader) as watch:
        train(model, optimizer, loader)
        with pytest.raises(RuntimeError, match="does not exist"):
            torch.save(model.state_dict(), tmp_path / "nowhere" / "a.pt")
    events = read(watch.run)[0].events().collect()["name"].to_list()
    assert "save_checkpoint_failure" in events
    assert "save_checkpoint_success" not in events


def test_the_explicit_functions_come_first(tmp_path: Path) -> None:
    """A save inside a recorded save is not another one."""
    model, optimizer, loader = parts()
    with stepwell.watch(model, optimizer, loader) as watch:
        train(model, optimizer, loader)
        with stepwell.training.checkpoint_save(BATCHES):
            torch.save(model.state_dict(), tmp_path / "a.pt")
    assert counts(read(watch.run)[1])["checkpoint_save_sync"] == 1


def test_a_save_ends_validation(tmp_path: Path) -> None:
    """Saving the best model after an evaluation is not part of it."""
    model, optimizer, loader = parts()
    with stepwell.watch(model, optimizer, loader) as watch:
        train(model, optimizer, loader)
        evaluate(model)
        torch.save(model.state_dict(), tmp_path / "best.pt")
        train(model, optimizer, loader)
    _, spans = read(watch.run)
    (validation,) = spans.filter(pl.col("name") == "validation_loop").rows(named=True)
    (save,) = spans.filter(pl.col("name") == "checkpoint_save_sync").rows(named=True)
    assert validation["start_ns"] + validation["duration_ns"] <= save["start_ns"]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("fails", [False, True])
def test_distributed_checkpoints(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the background: what became of it is recorded when that is known."""
    future: Future[None] = Future()
    monkeypatch.setattr(dcp, "async_save", lambda state, *, checkpoint_id: future)
    model, optimizer, loader = parts()
    with stepwell.watch(model, optimizer, loader) as watch:
        train(model, optimizer, loader)
        dcp.save(model.state_dict(), checkpoint_id=tmp_path / "whole")
        assert dcp.async_save(model.state_dict(), checkpoint_id=tmp_path / "later") is future
        if fails:
            future.set_exception(OSError("full"))
        else:
            future.set_result(None)
    assert saves(watch.run) == [
        ("checkpoint_save_sync", BATCHES, "whole"),
        ("checkpoint_save_async", BATCHES, "later"),
    ]
    events = read(watch.run)[0].events().collect()["name"].to_list()
    assert events.count("save_checkpoint_success") == 2 - fails
    assert events.count("save_checkpoint_failure") == fails
