"""Lightning, the Trainer of Hugging Face and Accelerate: healthy ones, and faults planted in them."""

import contextlib
import logging
import warnings
from typing import Any

import accelerate
import lightning.pytorch as lightning
import torch
import transformers
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainingArguments

from stepwell.integrations.accelerate import StepwellTracker, prepare
from stepwell.integrations.lightning import hook_trainer_cls
from stepwell.integrations.transformers import StepwellCallback
from stepwell.training import TrainingTelemetryProvider
from tests.truth.case import ACCELERATE, LIGHTNING, TRAINER, Says, case
from tests.truth.kit import (
    BATCH,
    SGD,
    Examples,
    Net,
    SlowSGD,
    batches,
    evaluate,
    kill,
    lap,
    sleep,
    time_loaders,
    train_batch,
    truth,
)

# Lightning


class Module(lightning.LightningModule):
    """The network as a module of Lightning."""

    def __init__(self, lr: float = 0.1, **options: Any) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = Net(**options)
        self.lr = lr
        self.losses: list[Tensor] = []

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """Return the loss."""
        lap()
        x, y = batch
        loss = cross_entropy(self.net(x), y)
        self.losses.append(loss.detach())
        self.log("train_loss", loss)
        lap("forward")
        return loss

    def on_before_backward(self, loss: Tensor) -> None:
        lap()

    def on_after_backward(self) -> None:
        lap("backward")

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        """Log the loss."""
        x, y = batch
        self.log("val_loss", cross_entropy(self.net(x), y))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return an optimizer that reports its steps to the side channel."""
        optimizer = SGD(self.net.parameters(), lr=self.lr)
        optimizer.register_step_post_hook(self._stepped)
        return optimizer

    def _stepped(self, *_: Any) -> None:
        truth.step(torch.stack(self.losses).mean(), BATCH * len(self.losses))
        self.losses = []

    def on_train_start(self) -> None:
        truth.begin()

    def on_train_epoch_start(self) -> None:
        truth.epoch()

    def on_validation_start(self) -> None:
        lap()

    def on_validation_end(self) -> None:
        lap("validation")


def fit(model: Module, *loaders: Any, **options: Any) -> None:
    """Fit with a recorded trainer."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    recorded = hook_trainer_cls(lightning.Trainer, TrainingTelemetryProvider.instance())
    time_loaders()
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "accelerator": "cpu",
        "devices": 1,
    }
    recorded(**{**quiet, **options}).fit(model, *loaders)


@case(LIGHTNING, steps=150, epochs=3)
def lightning_fit() -> None:
    """Three epochs, with validation after each."""
    fit(Module(), batches(50), batches(5, seed=1, shuffle=False), max_epochs=3)


@case(LIGHTNING, steps=100)
def lightning_accumulation() -> None:
    """Two batches for each step."""
    fit(Module(), batches(200), max_epochs=1, accumulate_grad_batches=2)


@case(
    LIGHTNING,
    steps=150,
    findings=(Says("zero-learning-rate", ("0",)),),
)
def lightning_learning_rate_zero() -> None:
    """The learning rate is 0."""
    fit(Module(lr=0.0), batches(150), max_epochs=1)


@case(LIGHTNING, steps=150, findings=(Says("data-bound", exact=("57 %",)),))
def lightning_slow_loader() -> None:
    """60 ms for each batch, and 45 ms for what is done with it."""
    fit(Module(), batches(150, 0.06), max_epochs=1)


class FailingModule(Module):
    """Fails in the batch with the index 60."""

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """Return the loss, unless it is that batch."""
        if index == 60:
            raise ValueError("bad batch")
        return super().training_step(batch, index)


@case(
    LIGHTNING,
    steps=60,
    at=60,
    status="failed",
    code=1,
    findings=(Says("died", ("step 60", "ValueError: bad batch"), (0,), 60),),
)
def lightning_exception() -> None:
    """A ValueError in step 60."""
    fit(FailingModule(), batches(150), max_epochs=1)


@case(LIGHTNING, steps=150, epochs=3)
def lightning_checkpoints() -> None:
    """A small checkpoint after each epoch."""
    fit(Module(), batches(50), max_epochs=3, enable_checkpointing=True)


class NanModule(Module):
    """Its loss is NaN from the batch with the index 77 on."""

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """Return the loss."""
        x, y = batch
        return super().training_step((x * float("nan") if index >= 77 else x, y), index)


@case(LIGHTNING, steps=120, findings=(Says("not-finite", ("77",), steps=77),))
def lightning_nan() -> None:
    """The loss is NaN from step 77 on."""
    fit(NanModule(), batches(120), max_epochs=1)


class KilledModule(Module):
    """Is killed in the batch with the index 60."""

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """Return the loss, unless it is that batch."""
        if index == 60:
            kill()
        return super().training_step(batch, index)


@case(
    LIGHTNING,
    steps=60,
    at=60,
    status="killed",
    code=-9,
    findings=(Says("died", ("killed", "step 60"), (0,), 60),),
)
def lightning_killed() -> None:
    """``kill -9`` in step 60."""
    fit(KilledModule(), batches(150), max_epochs=1)


# Hugging Face


class Classifier(torch.nn.Module):
    """The network as the Trainer wants it."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.net = Net(**options)
        self.losses: list[Tensor] = []
        self.net.body[0].weight.register_post_accumulate_grad_hook(lambda _: lap("backward"))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the loss and the logits."""
        if self.training:
            lap()
        logits = self.net(x)
        loss = cross_entropy(logits, labels)
        if self.training:
            lap("forward")
            self.losses.append(loss.detach())
            loss.register_hook(lambda _: lap())
        return {"loss": loss, "logits": logits}


class Rows(Examples):
    """Examples as the Trainer wants them."""

    def __getitem__(self, index: int) -> Any:
        return {"x": self.x[index], "labels": self.y[index]}


class SideChannel(transformers.TrainerCallback):
    """Tells the side channel of steps, epochs and evaluations."""

    def __init__(self, model: Classifier, samples: int) -> None:
        self.model, self.samples = model, samples

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        truth.epoch()

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        lap()

    def on_evaluate(self, *_: Any, **__: Any) -> None:
        lap("validation")

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        lap()

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        lap("optimizer")

    def on_step_end(self, *_: Any, **__: Any) -> None:
        truth.step(torch.stack(self.model.losses).mean(), self.samples)
        self.model.losses.clear()


def train(model: Classifier, batch_count: int, seconds: float = 0.004, **options: Any) -> None:
    """Train with the Trainer, recorded."""
    transformers.utils.logging.set_verbosity_error()
    accumulated = options.get("gradient_accumulation_steps", 1)
    arguments = TrainingArguments(
        "output",
        **{
            "per_device_train_batch_size": BATCH,
            "num_train_epochs": 1,
            "save_strategy": "no",
            "report_to": [],
            "disable_tqdm": True,
            "use_cpu": True,
            "logging_steps": 50,
            "lr_scheduler_type": "constant",
            **options,
        },
    )
    trainer = Trainer(
        model,
        arguments,
        train_dataset=Rows(batch_count * BATCH, seconds),
        eval_dataset=Rows(5 * BATCH, seed=1),
        optimizers=(SlowSGD(model.parameters(), lr=options.get("learning_rate", 0.1)), None),
        callbacks=[SideChannel(model, BATCH * accumulated), StepwellCallback()],
    )
    time_loaders()
    truth.begin()
    with contextlib.redirect_stdout(None):
        trainer.train()


@case(TRAINER, steps=150, epochs=3)
def trainer_with_evaluation() -> None:
    """Three epochs, with evaluation after each."""
    train(Classifier(), 50, num_train_epochs=3, eval_strategy="epoch")


@case(TRAINER, steps=150, findings=(Says("data-bound", exact=("57 %",)),))
def trainer_slow_loader() -> None:
    """60 ms for each batch, and 45 ms for what is done with it."""
    train(Classifier(), 150, 0.06)


@case(
    TRAINER,
    steps=150,
    findings=(Says("zero-learning-rate", ("0",)),),
)
def trainer_learning_rate_zero() -> None:
    """The learning rate is 0."""
    train(Classifier(), 150, learning_rate=0.0)


class NanClassifier(Classifier):
    """Its loss is NaN from the 78th batch on."""

    calls = 0

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the loss and the logits."""
        self.calls += 1
        return super().forward(x * float("nan") if self.calls > 77 else x, labels)


@case(TRAINER, steps=120, findings=(Says("not-finite", ("77",), steps=77),))
def trainer_nan() -> None:
    """The loss is NaN from step 77 on."""
    train(NanClassifier(), 120)


@case(TRAINER, steps=75)
def trainer_accumulation() -> None:
    """Two batches for each step."""
    train(Classifier(), 150, gradient_accumulation_steps=2)


@case(TRAINER, steps=150)
def trainer_checkpoints() -> None:
    """A small checkpoint after every 50 steps."""
    train(Classifier(), 150, save_strategy="steps", save_steps=50)


class KilledClassifier(Classifier):
    """Is killed in the 61st batch."""

    calls = 0

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the loss and the logits."""
        self.calls += 1
        if self.calls == 61:
            kill()
        return super().forward(x, labels)


@case(
    TRAINER,
    steps=60,
    at=60,
    status="killed",
    code=-9,
    findings=(Says("died", ("killed", "step 60"), (0,), 60),),
)
def trainer_killed() -> None:
    """``kill -9`` in step 60."""
    train(KilledClassifier(), 150)


# Accelerate


@case(ACCELERATE, steps=150, epochs=3)
def accelerate_loop() -> None:
    """Three epochs, with validation after each."""
    accelerator = accelerate.Accelerator(cpu=True, log_with=StepwellTracker("my training"))
    accelerator.init_trackers("my project", config={"lr": 0.1})
    model, optimizer, loader = Net(), None, batches(50)
    optimizer = SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = prepare(accelerator, model, optimizer, loader)
    held_out = batches(5, seed=1)
    truth.begin()
    for epoch in range(3):
        truth.epoch()
        for x, y in loader:
            lap("data")
            logits = model(x)
            lap("forward")
            loss = cross_entropy(logits, y)
            optimizer.zero_grad()
            lap()
            accelerator.backward(loss)
            lap("backward")
            optimizer.step()
            lap()
            truth.step(loss, len(x))
        accelerator.log({"val/loss": evaluate(model, held_out)}, step=50 * epoch + 49)
    accelerator.end_training()


@case(ACCELERATE, steps=100)
def accelerate_accumulation() -> None:
    """Two batches for each step, by ``accelerator.accumulate``."""
    accelerator = accelerate.Accelerator(
        cpu=True, gradient_accumulation_steps=2, log_with=StepwellTracker("accumulated")
    )
    accelerator.init_trackers("my project")
    model, loader = Net(0.01, 0.01), batches(200)
    optimizer = SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = prepare(accelerator, model, optimizer, loader)
    truth.begin()
    truth.epoch()
    total = 0.0
    for x, y in loader:
        lap("data")
        with accelerator.accumulate(model):
            logits = model(x)
            lap("forward")
            loss = cross_entropy(logits, y)
            lap()
            accelerator.backward(loss)
            lap("backward")
            total += loss.item() / 2
            optimizer.step()
            optimizer.zero_grad()
        lap()
        if accelerator.sync_gradients:
            truth.step(total, 2 * BATCH)
            total = 0.0
    accelerator.end_training()


@case(ACCELERATE, steps=200, findings=(Says("checkpoint-stall", ("checkpoint",)),))
def accelerate_save_state() -> None:
    """``save_state`` every 25 steps, 0.8 s each time."""
    accelerator = accelerate.Accelerator(cpu=True, log_with=StepwellTracker("saved"))
    accelerator.init_trackers("my project")
    model, loader = Net(), batches(200)
    optimizer = SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = prepare(accelerator, model, optimizer, loader)
    accelerator.register_save_state_pre_hook(lambda *_: sleep(0.8))
    truth.begin()
    truth.epoch()
    for number, (x, y) in enumerate(loader, 1):
        lap("data")
        train_batch(model, optimizer, x, y)
        if number % 25 == 10:
            accelerator.save_state("state")
            lap("checkpoint")
    accelerator.end_training()
