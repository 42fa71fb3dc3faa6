"""Checkpoints: a save has succeeded when its file is complete, not earlier."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import polars
import pytest
import torch
import torch.distributed.checkpoint as dcp
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO

import stepwell
from tests.durability.helpers import fill, mounted
from tests.integrations.lightning.fits import Recorded, hooked, loader, model_class, options

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
Model = model_class()


def saving(folder: Path, every: int = 2, **more: Any) -> dict[str, Any]:
    saver = ModelCheckpoint(
        folder,
        every_n_train_steps=every,
        save_top_k=-1,
        filename="{step}",
        save_on_train_epoch_end=False,
    )
    return options(enable_checkpointing=True, callbacks=[saver], **more)


class Slow(TorchCheckpointIO):
    """Writes after some time, or when it may go on, and notes when each file was there."""

    def __init__(
        self,
        seconds: float = 0.1,
        fail: tuple[int, ...] = (),
        may_go_on: threading.Semaphore | None = None,
    ) -> None:
        self.seconds, self.fail, self.may_go_on = seconds, fail, may_go_on
        self.written: dict[str, int] = {}
        self.calls = 0

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        assert threading.current_thread() is not threading.main_thread()
        number, self.calls = self.calls, self.calls + 1
        if self.may_go_on is None:
            time.sleep(self.seconds)
        else:
            assert self.may_go_on.acquire(timeout=60)
        if number in self.fail:
            raise OSError(28, "No space left on device")
        super().save_checkpoint(checkpoint, path, storage_options)
        self.written[str(path)] = time.time_ns()


def saves(recorded: Recorded) -> list[dict[str, Any]]:
    return recorded.spans.filter(polars.col("name").str.starts_with("checkpoint_save")).to_dicts()


def test_saves_in_a_fit_and_by_hand(tmp_path: Path) -> None:
    """Each is there with its step, path and size: the trainer's own, one in a hook, one after the fit."""

    class Saving(Model):  # type: ignore[misc, valid-type]
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 2:
                self.trainer.save_checkpoint(tmp_path / "mine.ckpt")

    trainer = hooked()(**saving(tmp_path, max_steps=4))
    trainer.fit(Saving(), loader())
    trainer.save_checkpoint(str(tmp_path / "after.ckpt"))
    recorded = Recorded()
    assert recorded.count("checkpoint_save_sync", "training_loop") == 3
    assert recorded.count("checkpoint_save_sync", "application") == 1
    files = [tmp_path / name for name in ("step=2.ckpt", "mine.ckpt", "step=4.ckpt", "after.ckpt")]
    paths = [about["checkpoint_path"] for about in recorded.attributes("checkpoint_save_sync")]
    assert paths == list(map(str, files))
    successes = recorded.attributes_of("save_checkpoint_success")
    assert [success["current_iteration"] for success in successes] == [2, 3, 4, 4]
    assert [success["checkpoint_size"] for success in successes] == [
        file.stat().st_size for file in files
    ]
    assert {success["checkpoint_directory"] for success in successes} == {str(tmp_path)}
    assert [success["productive_train_iterations"] for success in successes] == [2, 3, 4, 4]


@pytest.mark.root
def test_a_full_disk_while_saving(tmp_path: Path) -> None:
    """The save is a failure with its reason, all is closed, and the next fit saves again."""
    Hooked = hooked()
    with mounted("tmpfs", 2, tmp_path) as disk:
        trainer = Hooked(**saving(disk, max_steps=4))
        filler = fill(disk)
        with pytest.raises((OSError, RuntimeError)) as caught:
            trainer.fit(Model(), loader())
        filler.unlink()
        Hooked(**saving(disk / "again", max_steps=4)).fit(Model(), loader())
    recorded = Recorded()
    assert recorded.open() == ["application"]
    (failure,) = recorded.attributes_of("save_checkpoint_failure")
    assert failure["current_iteration"] == trainer.global_step == 2
    assert failure["exception_type"] == type(caught.value).__name__
    assert [save["status"] for save in saves(recorded)] == ["error", "ok", "ok"]
    assert "training_loop" in recorded.failed()
    successes = recorded.attributes_of("save_checkpoint_success")
    assert [success["save_checkpoint_success_count"] for success in successes] == [1, 2]
    updates = recorded.attributes_of("training_metrics_update")
    assert [update["num_iterations"] for update in updates] == [2, 4]


def test_asynchronous_with_a_slow_writer(tmp_path: Path) -> None:
    """Success is reported after the file is complete, although training continued long before."""
    went_on = threading.Semaphore(0)

    class GoingOn(Model):  # type: ignore[misc, valid-type]
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            if batch_idx in (2, 4):
                went_on.release()

        def on_train_end(self) -> None:
            went_on.release()

    writer = Slow(may_go_on=went_on)
    plugin = AsyncCheckpointIO(writer)
    trainer = hooked()(**saving(tmp_path, max_steps=6, plugins=[plugin]))
    trainer.fit(GoingOn(), loader())
    assert "save_checkpoint" not in vars(writer)
    recorded = Recorded()
    assert recorded.count("checkpoint_save_async", "training_loop") == 3
    successes = recorded.attributes_of("save_checkpoint_success")
    assert [success["current_iteration"] for success in successes] == [2, 4, 6]
    files = [tmp_path / f"step={step}.ckpt" for step in (2, 4, 6)]
    assert [success["checkpoint_size"] for success in successes] == [
        file.stat().st_size for file in files
    ]
    assert [success["productive_train_iterations"] for success in successes] == [2, 4, 6]
    declared = recorded.events.filter(polars.col("name") == "save_checkpoint_success")["time_ns"]
    for file, when, save in zip(files, declared, saves(recorded), strict=True):
        assert when >= writer.written[str(file)] - 1_000_000
        # Training did not wait for it.
        assert save["start_ns"] + save["duration_ns"] < writer.written[str(file)]
    assert recorded.attributes_of("telemetry_data_error") == []


def test_asynchronous_with_two_files_at_one_step(tmp_path: Path) -> None:
    """Each of them is reported once, separately."""

    class Saving(Model):  # type: ignore[misc, valid-type]
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            for name in ("one", "two"):
                if batch_idx == 2:
                    self.trainer.save_checkpoint(tmp_path / f"{name}.ckpt")

    plugin = AsyncCheckpointIO(Slow())
    hooked()(**saving(tmp_path, 3, max_steps=3, plugins=[plugin])).fit(Saving(), loader())
    recorded = Recorded()
    successes = recorded.attributes_of("save_checkpoint_success")
    assert [success["current_iteration"] for success in successes] == [3, 3, 3]
    assert [success["save_checkpoint_success_count"] for success in successes] == [1, 2, 3]
    names = recorded.events.filter(polars.col("name") == "save_checkpoint_success")["span"]
    assert names.to_list() == [save["id"] for save in saves(recorded)]


def test_asynchronous_with_a_failing_writer(tmp_path: Path) -> None:
    """The failed one is a failure; the others succeed, though Lightning raises in between."""
    writer = Slow(0.02, fail=(1,))
    trainer = hooked()(**saving(tmp_path, max_steps=6, plugins=[AsyncCheckpointIO(writer)]))
    with pytest.raises(OSError, match="No space left"):
        trainer.fit(Model(), loader())
    trainer.strategy.checkpoint_io._executor = None
    recorded = Recorded()
    (failure,) = recorded.attributes_of("save_checkpoint_failure")
    assert failure["current_iteration"] == 4
    assert failure["error_message"] == "[Errno 28] No space left on device"
    succeeded = [s["current_iteration"] for s in recorded.attributes_of("save_checkpoint_success")]
    complete = sorted(int(Path(path).stem.removeprefix("step=")) for path in writer.written)
    assert sorted(succeeded) == complete
    assert 4 not in complete
    assert recorded.open() == ["application"]
    assert recorded.attributes_of("telemetry_data_error") == []


class Distributed(TorchCheckpointIO):
    """Saves with ``torch.distributed.checkpoint.async_save``, as its documentation shows."""

    def __init__(self, fails: bool = False) -> None:
        self.future: Any = None
        self.fails = fails

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        if self.future is not None:
            self.future.exception()
        writer = Refusing(path) if self.fails else dcp.FileSystemWriter(path)
        self.future = dcp.async_save(checkpoint["state_dict"], storage_writer=writer)


class Refusing(dcp.FileSystemWriter):
    def write_data(self, plan: Any, planner: Any) -> Any:
        raise OSError(5, "Input/output error")


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("fails", [False, True])
def test_the_distributed_asynchronous_checkpoint(tmp_path: Path, group: Any, fails: bool) -> None:
    """The outcome of the future is reported, even for the first save, which was not announced."""
    plugin = Distributed(fails)
    trainer = hooked()(**saving(tmp_path, max_steps=4, plugins=[plugin]))
    trainer.fit(Model(), loader())
    plugin.future.exception()
    deadline = time.monotonic() + 30
    event = "save_checkpoint_failure" if fails else "save_checkpoint_success"
    while len(Recorded().attributes_of(event)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    recorded = Recorded()
    outcomes = recorded.attributes_of(event)
    assert [outcome["current_iteration"] for outcome in outcomes] == [2, 4]
    if fails:
        assert recorded.attributes_of("save_checkpoint_success") == []
        return
    for outcome, step in zip(outcomes, (2, 4), strict=True):
        folder = tmp_path / f"step={step}.ckpt"
        assert outcome["checkpoint_directory"] == str(folder)
        assert outcome["checkpoint_size"] == sum(f.stat().st_size for f in folder.iterdir())
    assert saves(recorded)[1]["name"] == "checkpoint_save_async"


class Held(TorchCheckpointIO):
    """Writes in a separate thread, when released."""

    def __init__(self) -> None:
        self.may_write = threading.Event()
        self.pool = ThreadPoolExecutor(1)
        self.future: Any = None

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        self.future = self.pool.submit(self._write, checkpoint, path)

    def _write(self, checkpoint: Any, path: Any) -> None:
        assert self.may_write.wait(60)
        super().save_checkpoint(checkpoint, path)


@pytest.fixture
def _complaints_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread would keep to itself what is raised there."""
    monkeypatch.delenv("STEPWELL_STRICT")


@pytest.mark.usefixtures("_complaints_are_recorded")
@pytest.mark.parametrize("declared", [False, True])
def test_a_save_that_outlasts_the_application(tmp_path: Path, declared: bool) -> None:
    """Its success is recorded once, without a warning, even if the user reported it before."""
    writer = Held()
    Hooked, callback = hooked()
    Hooked(**saving(tmp_path, max_steps=2, plugins=[writer])).fit(Model(), loader())
    if declared:
        callback.on_save_checkpoint_success(2)
    callback.on_app_end()
    writer.may_write.set()
    writer.pool.shutdown()
    recorded = Recorded()
    (success,) = recorded.attributes_of("save_checkpoint_success")
    assert success["current_iteration"] == 2
    assert recorded.attributes_of("telemetry_data_error") == []


@pytest.mark.usefixtures("_complaints_are_recorded")
def test_a_save_that_outlasts_its_run(tmp_path: Path) -> None:
    """The next run has nothing of it, and nothing is said."""
    writer = Held()
    Hooked, _ = hooked()
    Hooked(**saving(tmp_path, max_steps=2, plugins=[writer])).fit(Model(), loader())
    stepwell.finish()
    hooked()
    writer.may_write.set()
    writer.pool.shutdown()
    recorded = Recorded()
    assert recorded.attributes_of("save_checkpoint_success") == []
    assert recorded.attributes_of("telemetry_data_error") == []


def test_a_save_that_fails_once(tmp_path: Path) -> None:
    """A failed save by hand is reported, and the next one is as ever."""
    trainer = hooked()(**options(max_steps=1))
    trainer.fit(Model(), loader())
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="file"):
        trainer.save_checkpoint(tmp_path / "file" / "one.ckpt")
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    recorded = Recorded()
    assert len(recorded.attributes_of("save_checkpoint_failure")) == 1
    assert len(recorded.attributes_of("save_checkpoint_success")) == 1
    assert [save["status"] for save in saves(recorded)] == ["error", "ok"]


def test_a_checkpoint_without_telemetry_in_it(tmp_path: Path) -> None:
    """A saved file has nothing of ours: it loads without a word where nothing is recorded."""
    hooked_trainer = hooked()(**options(max_steps=1))
    hooked_trainer.fit(Model(), loader())
    hooked_trainer.save_checkpoint(tmp_path / "one.ckpt")
    plain = pl.Trainer(**options(max_steps=1))
    plain.fit(Model(), loader())
    plain.save_checkpoint(tmp_path / "two.ckpt")
    found = [torch.load(tmp_path / f"{name}.ckpt", weights_only=False) for name in ("one", "two")]
    assert found[0].keys() == found[1].keys()
    assert found[0]["callbacks"] == found[1]["callbacks"] == {}
