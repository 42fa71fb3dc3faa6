"""Healthy loops of plain PyTorch with ``stepwell.watch``: no findings, and all numbers are right."""

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, IterableDataset

import stepwell
from tests.truth.case import WATCH, case
from tests.truth.kit import (
    BATCH,
    FEATURES,
    SGD,
    Examples,
    Net,
    batches,
    evaluate,
    lap,
    sleep,
    train_batch,
    truth,
)


@case(WATCH, steps=200)
def with_a_loader() -> None:
    """One epoch over a DataLoader."""
    model, loader = Net(), batches(200)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for x, y in loader:
        lap("data")
        train_batch(model, optimizer, x, y)


@case(WATCH, steps=200, epochs=None)
def without_a_loader() -> None:
    """Batches that the loop makes itself, and no loader given to ``watch``."""
    model, data = Net(), Examples(200 * BATCH)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer)
    truth.begin()
    for first in range(0, len(data), BATCH):
        x, y = data.x[first : first + BATCH], data.y[first : first + BATCH]
        lap()
        train_batch(model, optimizer, x, y)


def endless(data: Examples) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield random batches without end."""
    while True:
        chosen = torch.randint(len(data), (BATCH,))
        sleep(data.seconds)
        yield data.x[chosen], data.y[chosen]


@case(WATCH, steps=200)
def a_generator() -> None:
    """A generator without end as the loader, left after 200 steps."""
    model, source = Net(), endless(Examples(1000))
    optimizer = SGD(model.parameters(), lr=0.1)
    watch = stepwell.watch(model, optimizer, source)
    truth.begin()
    truth.epoch()
    for x, y in itertools.islice(watch.loader, 200):
        lap("data")
        train_batch(model, optimizer, x, y)


@case(WATCH, steps=200, epochs=4)
def validation_after_each_epoch() -> None:
    """Four epochs, with validation after each."""
    model, loader, held_out = Net(), batches(50), batches(10, seed=1)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    for _ in range(4):
        truth.epoch()
        for x, y in loader:
            lap("data")
            train_batch(model, optimizer, x, y)
        stepwell.log({"val/loss": evaluate(model, held_out)})


@case(WATCH, steps=200, epochs=2)
def validation_every_25_steps() -> None:
    """Validation in the middle of epochs, and once before the first step."""
    model, loader, held_out = Net(), batches(100), batches(5, seed=1)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    evaluate(model, held_out)
    truth.begin()
    for _ in range(2):
        truth.epoch()
        for number, (x, y) in enumerate(loader, 1):
            lap("data")
            train_batch(model, optimizer, x, y)
            if number % 25 == 0:
                stepwell.log({"val/loss": evaluate(model, held_out)})


@case(WATCH, steps=200)
def accumulated_gradients() -> None:
    """Two batches for each step."""
    model, loader = Net(0.01, 0.01), batches(400, 0.002)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    total = 0.0
    for number, (x, y) in enumerate(loader, 1):
        lap("data")
        logits = model(x)
        lap("forward")
        loss = cross_entropy(logits, y) / 2
        lap()
        loss.backward()
        lap("backward")
        total += loss.item()
        if number % 2 == 0:
            optimizer.step()
            lap()
            optimizer.zero_grad()
            truth.step(total, 32)
            total = 0.0


@case(WATCH, steps=200)
def mixed_precision() -> None:
    """Autocast and a GradScaler, with clipping."""
    model, loader = Net(), batches(200)
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for x, y in loader:
        lap("data")
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(x)
            lap("forward")
            loss = cross_entropy(logits, y)
        optimizer.zero_grad()
        lap()
        scaler.scale(loss).backward()
        lap("backward")
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        lap()
        scaler.step(optimizer)
        lap()
        scaler.update()
        truth.step(loss, len(x))


class LBFGS(torch.optim.LBFGS):
    """LBFGS that takes 5 ms beside the passes of its closure."""

    def step(self, closure: Any) -> Any:
        """Do a step."""
        sleep(0.005)
        return super().step(closure)


@case(WATCH, steps=60)
def lbfgs() -> None:
    """A closure that is called several times for each step; the loss is that of the first call."""
    model, loader = Net(0.01, 0.01), batches(240, batch_size=64)
    optimizer = LBFGS(model.parameters(), lr=1.0, max_iter=4, line_search_fn="strong_wolfe")
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for x, y in loader:
        lap("data")

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            lap("optimizer")
            logits = model(x)
            lap("forward")
            loss = cross_entropy(logits, y)
            loss.backward()
            lap("backward")
            return loss

        first = optimizer.step(closure)
        lap("optimizer")
        truth.step(first, len(x))


class Timed(nn.Sequential):
    """Layers that take 10 ms."""

    def forward(self, x: Tensor) -> Tensor:
        """Return what the last layer returns."""
        sleep(0.01)
        result: Tensor = super().forward(x)
        return result


@case(WATCH, steps=100, loss="loss/critic")
def gan() -> None:
    """Two models and two optimizers; the critic's step comes first."""
    generator = Timed(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, FEATURES))
    critic = Timed(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 1))
    critic_optimizer = SGD(critic.parameters(), lr=0.02)
    generator_optimizer = SGD(generator.parameters(), lr=0.02)
    loader = batches(100)
    stepwell.watch([critic, generator], [critic_optimizer, generator_optimizer], loader)
    truth.begin()
    truth.epoch()
    for x, _ in loader:
        lap("data")
        fake = generator(torch.randn(len(x), 8))
        critic_loss = (critic(x) - 1).square().mean() + critic(fake.detach()).square().mean()
        lap("forward")
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()
        lap()
        generator_loss = (critic(fake) - 1).square().mean()
        lap("forward")
        generator_optimizer.zero_grad()
        generator_loss.backward()
        generator_optimizer.step()
        lap()
        truth.step(critic_loss, len(x))


@case(WATCH, steps=150, epochs=None)
def reinforcement_learning() -> None:
    """Rollouts without gradients in a span of their own, then a step."""
    model = Net(0.002, 0.03)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer)
    data = Examples(64)
    truth.begin()
    for _ in range(150):
        lap()
        with stepwell.span("rollout"), torch.no_grad():
            for _ in range(10):
                model(data.x)
                sleep(0.002)
        lap("rollout")
        train_batch(model, optimizer, data.x, data.y)


@case(WATCH, steps=120, epochs=2)
def early_break() -> None:
    """Each of two epochs is left after 60 of 100 batches."""
    model, loader = Net(), batches(100)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    for _ in range(2):
        truth.epoch()
        for number, (x, y) in enumerate(loader, 1):
            lap("data")
            train_batch(model, optimizer, x, y)
            if number == 60:
                break


@case(WATCH, steps=150, epochs=1)
def skipped_batches() -> None:
    """Every fourth batch is left out with ``continue``, and a look at one more batch at the end."""
    model, loader = Net(), batches(200)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for number, (x, y) in enumerate(loader):
        lap("data")
        if number % 4 == 3:
            continue
        train_batch(model, optimizer, x, y)
    next(iter(loader))
    lap("data")


@case(WATCH, steps=100, epochs=2)
def evaluation_on_the_training_loader() -> None:
    """After each epoch the model is evaluated on the loader that it is trained with."""
    model, loader = Net(), batches(50)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    for _ in range(2):
        truth.epoch()
        for x, y in loader:
            lap("data")
            train_batch(model, optimizer, x, y)
        evaluate(model, loader)


@case(WATCH, steps=150)
def two_loaders_side_by_side() -> None:
    """A labelled and an unlabelled loader, zipped; the first one is given to ``watch``."""
    model, labelled, unlabelled = Net(), batches(150), batches(150, seed=1)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, labelled)
    truth.begin()
    truth.epoch()
    for (x, y), (u, _) in zip(labelled, unlabelled, strict=True):
        lap()
        logits = model(x)
        loss = cross_entropy(logits, y) + 0.01 * mse_loss(model(u), torch.zeros(len(u), 4))
        lap("forward")
        optimizer.zero_grad()
        loss.backward()
        lap("backward")
        optimizer.step()
        lap()
        truth.step(loss, len(x))


@case(WATCH, steps=120, epochs=3)
def loader_with_workers() -> None:
    """Two worker processes that are started again in every epoch."""
    model, loader = Net(), batches(40, 0.0, num_workers=2)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    for _ in range(3):
        truth.epoch()
        for x, y in loader:
            lap()
            train_batch(model, optimizer, x, y)


@case(WATCH, steps=150, epochs=3)
def notebook_cells() -> None:
    """Cells that train, look at the model, and train on; ``watch`` is called once."""
    cells = [
        "model, loader = Net(), batches(50)\noptimizer = SGD(model.parameters(), lr=0.1)",
        "stepwell.watch(model, optimizer, loader)",
        "truth.begin()\ntrain(1)",
        "x, y = next(iter(loader)); lap('data')",
        "model(x).argmax(1); lap('forward')",
        "train(2)",
    ]
    names: dict[str, Any] = dict(globals())

    def train(epochs: int) -> None:
        for _ in range(epochs):
            truth.epoch()
            for x, y in names["loader"]:
                lap("data")
                train_batch(names["model"], names["optimizer"], x, y)

    names["train"] = train
    for cell in cells:
        exec(cell, names)


class Stream(IterableDataset[Any]):
    """Examples without a length."""

    def __iter__(self) -> Iterator[Any]:
        data = Examples(150 * BATCH)
        for index in range(len(data)):
            if index % BATCH == 0:
                sleep(0.004)
            yield data[index]


@case(WATCH, steps=150)
def iterable_dataset() -> None:
    """A data set that has no length."""
    model, loader = Net(), DataLoader(Stream(), BATCH)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for x, y in loader:
        lap("data")
        train_batch(model, optimizer, x, y)


@case(WATCH, steps=200)
def fine_tuning_with_a_frozen_body() -> None:
    """Only the head is trained; the body has no gradients, and is not in the optimizer."""
    model, loader = Net(), batches(200)
    model.body.requires_grad_(False)
    optimizer = SGD(model.head.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for x, y in loader:
        lap("data")
        train_batch(model, optimizer, x, y)


@case(WATCH, steps=100, epochs=2)
def compiled_model() -> None:
    """``torch.compile``, validated through the module that was compiled."""
    model, loader, held_out = Net(), batches(50), batches(5, seed=1)
    compiled = torch.compile(model, backend="eager")
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(compiled, optimizer, loader)
    truth.begin()
    for _ in range(2):
        truth.epoch()
        for x, y in loader:
            lap("data")
            train_batch(compiled, optimizer, x, y)
        stepwell.log({"val/loss": evaluate(model, held_out)})


@case(WATCH, steps=200, epochs=4)
def schedule_and_checkpoints() -> None:
    """A learning rate that falls with every epoch, and a small checkpoint after each."""
    model, loader = Net(), batches(50)
    optimizer = SGD(model.parameters(), lr=0.2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(4):
            truth.epoch()
            for x, y in loader:
                lap("data")
                train_batch(model, optimizer, x, y)
            scheduler.step()
            lap()
            torch.save(model.state_dict(), Path(folder, f"{epoch}.pt"))
            lap()


@case(WATCH, steps=100, epochs=1, at=199)
def resumed() -> None:
    """The second half of an epoch, resumed at step 100 with ``watch(step=100)``."""
    model, loader = Net(), batches(100)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader, step=100)
    truth.begin()
    truth.epoch()
    for x, y in loader:
        lap("data")
        train_batch(model, optimizer, x, y)


@case(WATCH, steps=400)
def small_noisy_batches() -> None:
    """Two examples in a batch: the loss jumps about, and falls."""
    model, loader = Net(0.01, 0.01), batches(50, batch_size=2)
    optimizer = SGD(model.parameters(), lr=0.02)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for x, y in loader:
        lap("data")
        train_batch(model, optimizer, x, y)


@case(WATCH, steps=600, epochs=60)
def converged_early() -> None:
    """An easy task: the loss is low after 100 steps, and stays there."""
    model, loader = Net(0.01, 0.01), batches(10)
    optimizer = SGD(model.parameters(), lr=1.0)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    for _ in range(60):
        truth.epoch()
        for x, y in loader:
            lap("data")
            train_batch(model, optimizer, x, y)


@case(WATCH, steps=300)
def one_cycle() -> None:
    """A learning rate that warms up, and then falls to almost nothing."""
    model, loader = Net(0.01, 0.01), batches(300)
    optimizer = SGD(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=300)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for x, y in loader:
        lap("data")
        train_batch(model, optimizer, x, y)
        schedule.step()


@case(WATCH, steps=300)
def decay_to_zero() -> None:
    """A learning rate that falls to 0 in the last step."""
    model, loader = Net(0.01, 0.01), batches(300)
    optimizer = SGD(model.parameters(), lr=0.2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=300)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for x, y in loader:
        lap("data")
        train_batch(model, optimizer, x, y)
        schedule.step()


class Density(nn.Module):
    """A normal distribution whose mean and width are learned."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.ones(FEATURES))
        self.log_width = nn.Parameter(torch.ones(FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        """Return the negative logarithm of the likelihood, without its constant."""
        sleep(0.02)
        return (((x - self.mean) / self.log_width.exp()).square() / 2 + self.log_width).mean()


@case(WATCH, steps=300)
def loss_below_zero() -> None:
    """A likelihood: the loss falls through 0."""
    model, loader = Density(), batches(300)
    optimizer = SGD(model.parameters(), lr=0.5)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for x, _ in loader:
        lap("data")
        loss = model(0.2 * x)
        lap("forward")
        optimizer.zero_grad()
        loss.backward()
        lap()
        optimizer.step()
        lap()
        truth.step(loss, len(x))


@case(WATCH, steps=200)
def loss_logged_by_hand() -> None:
    """The script logs ``loss`` itself, in every tenth step."""
    model, loader = Net(), batches(200)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader, loss=False)
    truth.begin()
    truth.epoch()
    for step, (x, y) in enumerate(loader):
        lap("data")
        loss = cross_entropy(model(x), y)
        lap("forward")
        optimizer.zero_grad()
        loss.backward()
        lap("backward")
        optimizer.step()
        lap()
        if step % 10 == 0:
            stepwell.log({"loss": loss.item()})
        truth.step(loss if step % 10 == 0 else None, len(x))


@case(WATCH, steps=200, epochs=2)
def unfrozen_later() -> None:
    """The head alone for one epoch, then all of the model with a new optimizer in the second."""
    model, loader = Net(), batches(100)
    model.body.requires_grad_(False)
    truth.begin()
    with stepwell.init("fine tuning"):
        first = SGD(model.head.parameters(), lr=0.1)
        with stepwell.watch(model, first, loader):
            truth.epoch()
            lap()
            for x, y in loader:
                lap("data")
                train_batch(model, first, x, y)
        model.body.requires_grad_(True)
        second = SGD(model.parameters(), lr=0.05)
        with stepwell.watch(model, second, loader, step=100, epoch=1):
            truth.epoch()
            lap()
            for x, y in loader:
                lap("data")
                train_batch(model, second, x, y)
