"""Real fits: the tree, the counters and the order are those that the trainer itself reports."""

from __future__ import annotations

import math
import pickle
import signal
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

import stepwell
from stepwell.integrations.lightning import TelemetryCallback, TelemetryTrainer, hook_trainer_cls
from stepwell.integrations.lightning.recording import Recording
from tests.integrations.lightning.fits import (
    BATCH,
    BATCHES,
    SAMPLES,
    Recorded,
    hooked,
    loader,
    model_class,
    options,
)

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
Model = model_class()


def steps(losses: list[float], start: int = 0) -> list[tuple[int, float]]:
    return [(start + i, pytest.approx(loss)) for i, loss in enumerate(losses)]


# How it is hooked


def test_class_and_callback_in_both_forms() -> None:
    """What hook_trainer_cls gives is a class that can be taken apart into itself and its callback."""
    Hooked = hooked()
    cls, callback = Hooked
    assert cls is Hooked
    assert issubclass(Hooked, pl.Trainer)
    assert Hooked is not pl.Trainer
    assert Hooked.__name__ == "Trainer"
    assert isinstance(callback, TelemetryCallback)
    assert isinstance(callback, pl.Callback)
    first, second = Hooked(**options()), Hooked(**options())
    for trainer in (first, second):
        assert trainer.nv_one_logger_callback is callback
        assert trainer.telemetry_callback is callback
        assert trainer.callbacks.count(callback) == 1
    assert "save_checkpoint" not in vars(first)
    assert not hasattr(pl.Trainer, "telemetry_callback")
    assert Recorded().edges == {("application", None): 1}


@pytest.mark.parametrize("form", ["none", "one", "list", "left out"])
def test_callbacks_may_be_given_in_any_form(form: str) -> None:
    """None, one, a list, or nothing at all; ours comes first and the user's are kept."""
    mine = EarlyStopping("val_loss")
    given = {"none": None, "one": mine, "list": [mine]}
    more = {} if form == "left out" else {"callbacks": given[form]}
    Hooked, callback = hooked()
    trainer = Hooked(**options(**more))
    assert trainer.callbacks[0] is callback
    assert (mine in trainer.callbacks) is (form in ("one", "list"))


def test_hooking_twice_is_harmless() -> None:
    """A hooked class stays as it is, a class hooked twice is recorded once, also with a callback more."""
    first = hooked()
    assert hook_trainer_cls(first) is first
    second = hook_trainer_cls(pl.Trainer)
    trainer = second(**options(max_epochs=1, callbacks=[TelemetryCallback()]))
    trainer.fit(Model(), loader())
    recorded = Recorded()
    recorded.check_fit(BATCHES)
    assert recorded.count("application", None) == 1
    assert recorded.count("training_loop", "application") == 1


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_a_plain_callback_is_enough(package: str) -> None:
    """Without a hook all is there but setting up communication, and no object stays changed."""
    module = import_module(package)
    callback = TelemetryCallback()
    trainer = module.Trainer(**options(max_epochs=1, callbacks=callback))
    model = model_class(package)()
    trainer.fit(model, loader(), loader())
    trainer.test(model, loader(), verbose=False)
    recorded = Recorded()
    recorded.check_fit(BATCHES)
    assert recorded.count("validation_loop", "training_loop") == 1
    assert recorded.count("testing_loop", "application") == 1
    assert recorded.count("optimizer_initialization", "application") == 1
    assert_untouched(trainer)


def test_the_trainer_that_comes_hooked() -> None:
    """It takes a dict or keywords, and has the callback."""
    trainer = TelemetryTrainer(options(max_epochs=3), max_steps=4)
    assert isinstance(trainer, pl.Trainer)
    trainer.fit(Model(), loader())
    Recorded().check_fit(4)
    assert trainer.telemetry_callback is trainer.nv_one_logger_callback is trainer.callbacks[0]


def test_environment_variables_of_lightning_still_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning finds its arguments in the signature of the class, which is that of the one below."""
    monkeypatch.setenv("PL_TRAINER_MAX_EPOCHS", "7")
    assert hooked()(**options()).max_epochs == 7


def test_a_hooked_trainer_can_be_pickled() -> None:
    """As Lightning does for the processes that it spawns."""
    trainer = hooked()(**options(max_epochs=5))
    copy = pickle.loads(pickle.dumps(trainer))
    assert type(copy).__name__ == "Trainer"
    assert isinstance(copy, pl.Trainer)
    assert copy.telemetry_callback in copy.callbacks
    assert copy.max_epochs == 5


def assert_untouched(trainer: Any) -> None:
    """Nothing of the trainer's own objects is replaced any more."""
    loops = [trainer.fit_loop, trainer.fit_loop.epoch_loop, trainer.fit_loop.epoch_loop.val_loop]
    loops += [trainer.validate_loop, trainer.test_loop, trainer.predict_loop]
    for owner in (trainer, trainer.strategy, trainer._checkpoint_connector, *loops):
        assert [
            n for n, v in vars(owner).items() if callable(v) and hasattr(v, "__wrapped__")
        ] == []
    assert "_stepwell_recording" not in vars(trainer)


# Fits


def test_fit() -> None:
    """Every batch is an iteration with its parts, below one loop; the counters are the trainer's."""
    Hooked = hooked(log_every_n_train_iterations=4)
    trainer = Hooked(**options(max_epochs=2))
    model = Model()
    trainer.fit(model, loader())
    recorded = Recorded()
    recorded.check_fit(2 * BATCHES)
    assert recorded.edges == {
        ("application", None): 1,
        ("data_loader_initialization", "application"): 1,
        ("model_initialization", "application"): 1,
        ("optimizer_initialization", "application"): 1,
        ("training_loop", "application"): 1,
        ("training_single_iteration", "training_loop"): trainer.global_step,
        ("data_loading", "training_loop"): trainer.global_step,
        ("model_forward", "training_single_iteration"): trainer.global_step,
        ("model_backward", "training_single_iteration"): trainer.global_step,
        ("optimizer_update", "training_single_iteration"): trainer.global_step,
    }
    (loop,) = recorded.attributes("training_loop")
    assert loop["train_iterations_start"] == 0
    assert loop["train_iterations_target"] == 2 * BATCHES == trainer.global_step
    assert loop["train_samples_target"] == 2 * SAMPLES
    updates = recorded.about("training_metrics_update")
    assert [update["current_iteration"] for update in updates] == [3, 7, 11]
    assert updates[-1]["num_train_samples"] == 2 * SAMPLES
    assert updates[-1]["latest_loss"] == pytest.approx(model.losses[-1])
    assert {"avg_forward_time_sec", "avg_backward_time_sec"} <= updates[-1].keys()
    assert updates[-1]["avg_dataloader_time_sec"] > 0
    assert recorded.metric("loss") == steps(model.losses)
    assert recorded.metric("train_loss") == steps(model.losses)
    assert recorded.open() == ["application"]
    assert_untouched(trainer)


def test_the_application_ends_with_the_run() -> None:
    """Who forgets on_app_end finds the application closed all the same."""
    hooked()(**options(max_steps=1)).fit(Model(), loader())
    recorded = Recorded(finish=True)
    assert recorded.open() == []
    assert recorded.failed() == []


def test_fit_validate_and_test(tmp_path: Path) -> None:
    """Validation is inside of training, testing beside it; the sanity check is in no average."""
    Hooked, callback = hooked()
    trainer = Hooked(**options(max_epochs=2, enable_checkpointing=True))
    model = Model()
    trainer.fit(model, loader(), loader())
    trainer.validate(model, loader(), verbose=False)
    trainer.test(model, loader(), verbose=False)
    callback.on_app_end()
    recorded = Recorded()
    recorded.check_fit(2 * BATCHES)
    assert recorded.count("validation_loop", "training_loop") == 2
    # The sanity check, and trainer.validate().
    assert recorded.count("validation_loop", "application") == 2
    checks = [about.get("is_sanity_check") for about in recorded.attributes("validation_loop")]
    assert checks == [True, None, None, None]
    sanity = trainer.num_sanity_val_steps
    assert recorded.count("validation_single_iteration", "validation_loop") == 3 * BATCHES + sanity
    assert recorded.count("model_forward", "validation_single_iteration") == 3 * BATCHES + sanity
    assert recorded.count("testing_loop", "application") == 1
    assert recorded.count("testing_single_iteration", "testing_loop") == BATCHES
    assert recorded.count("checkpoint_save_sync", "training_loop") == 2
    updates = recorded.about("validation_metrics_update")
    assert [update["num_iterations"] for update in updates] == [BATCHES] * 3
    assert [update["current_iteration"] for update in updates] == [5, 11, 11]
    assert [update["num_iterations"] for update in recorded.about("testing_metrics_update")] == [6]
    assert [step for step, _ in recorded.metric("val_loss")][:2] == [5, 11]
    order = recorded.order(
        "training_loop", "validation_loop", "checkpoint_save_sync", "testing_loop"
    )
    assert order == [
        "validation_loop",
        "training_loop",
        *["validation_loop", "checkpoint_save_sync"] * 2,
        "validation_loop",
        "testing_loop",
    ]
    assert recorded.open() == []


@pytest.mark.parametrize("every", [4, BATCHES])
def test_resume(tmp_path: Path, every: int) -> None:
    """After a resume, in the middle of an epoch or at its end, the counters go on."""
    saver = ModelCheckpoint(tmp_path / "kept", every_n_train_steps=every, filename="one")
    Hooked = hooked()
    more = {"enable_checkpointing": True, "callbacks": [saver]}
    trainer = Hooked(**options(max_steps=every, **more))
    trainer.fit(Model(), loader())
    model = Model()
    trainer = Hooked(**options(max_epochs=2))
    trainer.fit(model, loader(), ckpt_path=saver.best_model_path)
    recorded = Recorded()
    assert recorded.count("checkpoint_load", "application") == 1
    assert recorded.attributes("checkpoint_load") == [{"checkpoint_path": saver.best_model_path}]
    _, second = recorded.attributes("training_loop")
    assert second["train_iterations_start"] == every
    assert second["train_samples_start"] == every * BATCH
    assert second["train_iterations_target"] == 2 * BATCHES
    assert trainer.global_step == every + len(model.losses)
    update = recorded.about("training_metrics_update")[-1]
    assert update["current_iteration"] == trainer.global_step - 1
    assert update["num_iterations"] == len(model.losses)
    assert recorded.metric("loss")[every:] == steps(model.losses, every)
    recorded.check_fit(every + len(model.losses))


def test_resume_in_another_process(tmp_path: Path) -> None:
    """Where nothing of the first fit is remembered, samples follow from the loader."""
    saver = ModelCheckpoint(tmp_path, every_n_train_steps=4, filename="one")
    pl.Trainer(**options(max_steps=4, enable_checkpointing=True, callbacks=[saver])).fit(
        Model(), loader()
    )
    hooked()(**options(max_steps=7)).fit(Model(), loader(), ckpt_path=saver.best_model_path)
    (loop,) = Recorded().attributes("training_loop")
    assert (loop["train_iterations_start"], loop["train_samples_start"]) == (4, 16)
    assert (loop["train_iterations_target"], loop["train_samples_target"]) == (7, 28)
    (update,) = Recorded().about("training_metrics_update")
    assert update["current_iteration"] == 6


@pytest.mark.parametrize("configured", [False, True])
def test_accumulation(configured: bool) -> None:
    """Iterations are optimizer steps: the passes before one belong to it, the last may be shorter."""
    Hooked = hooked(**({"global_batch_size_or_fn": 16} if configured else {}))
    trainer = Hooked(**options(max_epochs=2, accumulate_grad_batches=4))
    model = Model()
    trainer.fit(model, loader())
    per_epoch = math.ceil(BATCHES / 4)
    assert trainer.global_step == 2 * per_epoch
    recorded = Recorded()
    assert recorded.count("training_single_iteration", "training_loop") == 2 * BATCHES
    assert recorded.count("model_backward", "training_single_iteration") == 2 * BATCHES
    assert recorded.count("optimizer_update", "training_single_iteration") == trainer.global_step
    (loop,) = recorded.attributes("training_loop")
    assert loop["train_iterations_target"] == trainer.global_step
    (update,) = recorded.about("training_metrics_update")
    assert update["num_iterations"] == trainer.global_step
    assert update["current_iteration"] == trainer.global_step - 1
    samples = 16 * trainer.global_step if configured else 2 * SAMPLES
    assert update["num_train_samples"] == samples
    losses = [model.losses[i:j] for i, j in ((0, 4), (4, 6), (6, 10), (10, 12))]
    assert recorded.metric("loss") == steps([sum(some) / len(some) for some in losses])
    assert recorded.about("telemetry_data_error") == []


def test_early_stop() -> None:
    """A fit that stops by itself ends the loop where it stopped."""
    stop = EarlyStopping("val_loss", patience=0, min_delta=100.0)
    trainer = hooked()(**options(max_epochs=9, callbacks=[stop]))
    trainer.fit(Model(), loader(), loader())
    recorded = Recorded()
    assert trainer.current_epoch == 2
    recorded.check_fit(trainer.global_step)
    (loop,) = recorded.attributes("training_loop")
    assert loop["train_iterations_target"] == 9 * BATCHES
    (update,) = recorded.about("training_metrics_update")
    assert update["current_iteration"] == trainer.global_step - 1 == 2 * BATCHES - 1
    assert recorded.open() == ["application"]


def test_several_fits_in_one_process() -> None:
    """Each has a loop of its own, whose counters begin anew; one of them goes on with a trainer."""
    Hooked = hooked()
    trainer = Hooked(**options(max_epochs=1))
    trainer.fit(Model(), loader())
    Hooked(**options(max_steps=3)).fit(Model(), loader())
    trainer.fit_loop.max_epochs = 2
    model = Model()
    trainer.fit(model, loader())
    recorded = Recorded()
    loops = recorded.attributes("training_loop")
    assert [loop["train_iterations_start"] for loop in loops] == [0, 0, BATCHES]
    ends = [update["current_iteration"] for update in recorded.about("training_metrics_update")]
    assert ends == [BATCHES - 1, 2, 2 * BATCHES - 1]
    recorded.check_fit(2 * BATCHES + 3)
    assert recorded.count("training_loop", "application") == 3


def test_an_application_after_the_first_has_ended() -> None:
    """A fit behind on_app_end is an application of its own."""
    Hooked, callback = hooked()
    for _ in range(2):
        Hooked(**options(max_steps=1)).fit(Model(), loader())
        callback.on_app_end()
    recorded = Recorded()
    assert recorded.count("application", None) == 2
    assert recorded.count("training_loop", "application") == 2


# What goes wrong


def test_an_exception_in_training_step() -> None:
    """It is recorded on what it went through, all of which is closed; the step is not counted."""
    trainer = hooked()(**options(max_epochs=2))
    with pytest.raises(ValueError, match="as asked"):
        trainer.fit(Model(fail_at=4), loader())
    recorded = Recorded()
    assert recorded.open() == ["application"]
    through = ["training_loop", "training_single_iteration", "model_forward"]
    assert recorded.failed() == through
    (error,) = recorded.about("error")
    assert (error["exception_type"], error["exception_message"]) == ("ValueError", "as asked")
    (update,) = recorded.about("training_metrics_update")
    assert update["num_iterations"] == trainer.global_step == 4
    assert_untouched(trainer)
    # The next fit is as if nothing had been.
    hooked()(**options(max_steps=2)).fit(Model(), loader())
    assert Recorded().about("training_metrics_update")[-1]["num_iterations"] == 2
    assert Recorded().open() == ["application"]


@pytest.mark.parametrize("where", ["validation", "data", "optimizer", "setup"])
def test_exceptions_elsewhere(where: str) -> None:
    """Wherever it is raised, only the application stays open."""

    class Failing(Model):  # type: ignore[misc, valid-type]
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            if where == "validation" and not self.trainer.sanity_checking:
                raise ValueError("as asked")

        def configure_optimizers(self) -> Any:
            if where == "setup":
                raise ValueError("as asked")
            return super().configure_optimizers()

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            if where == "optimizer":
                raise ValueError("as asked")

    class Data(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, i: int) -> Any:
            if where == "data" and i == 6:
                raise ValueError("as asked")
            return torch.ones(3), torch.ones(1)

    batches = torch.utils.data.DataLoader(Data(), batch_size=2)
    with pytest.raises(ValueError, match="as asked"):
        hooked()(**options(max_epochs=2)).fit(Failing(), batches, loader())
    recorded = Recorded()
    assert recorded.open() == ["application"]
    failed = {
        "validation": ["training_loop", "validation_loop"],
        "data": ["training_loop", "data_loading"],
        "optimizer": ["training_loop", "training_single_iteration", "optimizer_update"],
        "setup": ["optimizer_initialization"],
    }
    found = recorded.failed()
    assert [name for name in failed[where] if name not in found] == []
    assert recorded.about("error")[0]["exception_message"] == "as asked"


def test_keyboard_interrupt() -> None:
    """Lightning ends the program then; the run says what was interrupted."""
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit):
            hooked()(**options(max_epochs=2)).fit(
                Model(fail_at=3, error=KeyboardInterrupt), loader()
            )
    finally:
        signal.signal(signal.SIGINT, before)
    recorded = Recorded()
    assert recorded.open() == ["application"]
    assert recorded.about("error")[0]["exception_type"] == "KeyboardInterrupt"
    (update,) = recorded.about("training_metrics_update")
    assert update["num_iterations"] == 3


def test_the_users_own_spans_around_a_fit_stay_open() -> None:
    """What was open before the fit is not ended by its failure."""
    Hooked = hooked()
    with stepwell.telemetry.timed_span("experiment") as span:
        with pytest.raises(ValueError, match="as asked"):
            Hooked(**options(max_epochs=1)).fit(Model(fail_at=0), loader())
        assert span.active
    assert Recorded().count("training_loop", "experiment") == 1


def test_a_problem_inside_stepwell_never_reaches_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever breaks in the telemetry, the fit is as it would be without."""
    monkeypatch.delenv("STEPWELL_STRICT")
    Hooked = hooked()

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("inside")

    monkeypatch.setattr(Recording, "_log_loss", broken)
    monkeypatch.setattr(Recording, "_wrap_loop", broken)
    trainer = Hooked(**options(max_steps=3))
    trainer.fit(Model(), loader())
    assert trainer.global_step == 3


# What Lightning allows besides


def test_manual_optimization() -> None:
    """Two optimizers in a batch are one iteration; each forward ends where its backward begins."""

    class Manual(Model):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            for optimizer in self.optimizers():
                loss = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()

        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(2)]

    trainer = hooked()(**options(max_epochs=1))
    trainer.fit(Manual(), loader())
    assert trainer.global_step == 2 * BATCHES
    recorded = Recorded()
    assert recorded.count("training_single_iteration", "training_loop") == BATCHES
    for part in ("model_forward", "model_backward", "optimizer_update"):
        assert recorded.count(part, "training_single_iteration") == 2 * BATCHES
    (update,) = recorded.about("training_metrics_update")
    assert update["num_iterations"] == BATCHES
    one = ["model_forward", "model_backward", "optimizer_update"]
    assert recorded.order(*one) == one * 2 * BATCHES


def test_the_rest_of_an_epoch_left_out() -> None:
    """A batch that the model refuses is no iteration."""

    class Refusing(Model):  # type: ignore[misc, valid-type]
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
            return -1 if batch_idx == 3 else None

    trainer = hooked()(**options(max_epochs=2))
    trainer.fit(Refusing(), loader())
    recorded = Recorded()
    assert trainer.global_step == 6
    assert recorded.count("training_single_iteration", "training_loop") == 6
    assert recorded.about("training_metrics_update")[-1]["num_iterations"] == 6


def test_a_loader_without_length() -> None:
    """Its target is not known; every batch is counted, with its own number of samples."""

    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            for _ in range(10):
                yield torch.ones(3), torch.ones(1)

    trainer = hooked()(**options(max_epochs=2))
    trainer.fit(Model(), torch.utils.data.DataLoader(Stream(), batch_size=4))
    recorded = Recorded()
    (loop,) = recorded.attributes("training_loop")
    assert "train_iterations_target" not in loop
    (update,) = recorded.about("training_metrics_update")
    assert update["num_iterations"] == trainer.global_step == 6
    assert update["num_train_samples"] == 20


def test_explicit_calls_never_count_twice(tmp_path: Path) -> None:
    """What the user tells is there once, whether Lightning shows it too or not."""
    Hooked, callback = hooked()

    class Telling(Model):  # type: ignore[misc, valid-type]
        def configure_optimizers(self) -> Any:
            callback.on_optimizer_init_start()
            optimizer = super().configure_optimizers()
            callback.on_optimizer_init_end()
            return optimizer

        def on_test_start(self) -> None:
            callback.on_testing_start()

        def on_test_end(self) -> None:
            callback.on_testing_end()

    trainer = Hooked(**options(max_epochs=1))
    callback.on_model_init_start()
    model = Telling()
    callback.on_model_init_end()
    callback.on_dataloader_init_start()
    batches = loader()
    callback.on_dataloader_init_end()
    callback.on_app_start()
    trainer.fit(model, batches)
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    callback.on_save_checkpoint_success(trainer.global_step)
    callback.on_save_checkpoint_end()
    callback.on_save_checkpoint_start(trainer.global_step)
    trainer.save_checkpoint(tmp_path / "two.ckpt")
    callback.on_save_checkpoint_success(trainer.global_step, path=tmp_path / "two.ckpt")
    callback.on_save_checkpoint_end()
    trainer.test(model, batches, verbose=False)
    callback.on_testing_start()
    trainer.test(model, batches, verbose=False)
    callback.on_testing_end()
    recorded = Recorded()
    for name in ("model", "optimizer"):
        assert recorded.count(f"{name}_initialization", "application") == 1
    assert recorded.count("testing_loop", "application") == 2
    assert recorded.count("testing_single_iteration", "testing_loop") == 2 * BATCHES
    assert recorded.count("checkpoint_save_sync", "application") == 2
    assert len(recorded.about("save_checkpoint_success")) == 2
    stages = [about.get("stage") for about in recorded.attributes("data_loader_initialization")]
    assert stages == [None, "test", "test"]


def test_model_made_inside_of_lightning() -> None:
    """A model that is made by configure_model or in init_module has its initialisation there."""

    class Late(Model):  # type: ignore[misc, valid-type]
        def configure_model(self) -> None:
            with stepwell.span("made"):
                pass

    Hooked = hooked()
    Hooked(**options(max_steps=1)).fit(Late(), loader())
    assert Recorded().count("made", "model_initialization") == 1
    trainer = Hooked(**options(max_steps=1))
    with trainer.init_module():
        model = Model()
    trainer.fit(model, loader())
    assert Recorded().count("model_initialization", "application") == 2


def test_weights_are_the_same_with_and_without() -> None:
    """Bit by bit, also with validation and accumulation; random numbers are left alone."""
    found = []
    for cls in (pl.Trainer, hooked()):
        pl.seed_everything(3)
        model = Model()
        trainer = cls(**options(max_epochs=2, accumulate_grad_batches=2))
        batches = torch.utils.data.DataLoader(loader().dataset, batch_size=4, shuffle=True)
        trainer.fit(model, batches, loader())
        found.append([*model.state_dict().values(), torch.rand(3)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_nothing_recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With STEPWELL_MODE=off, or on a rank that is switched off, all works and nothing is wrapped."""
    trainer = hooked(enable_for_current_rank=False)(**options(max_steps=2))
    trainer.fit(Model(), loader())
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    assert trainer.global_step == 2
    assert not (tmp_path / "runs").exists()
