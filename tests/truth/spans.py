"""Healthy loops with explicit spans, as in the README: no findings."""

import os

import torch
from torch.nn.functional import cross_entropy

import stepwell
from stepwell import ai
from stepwell.integrations.torch import annotate
from stepwell.training import (
    TrainingTelemetryConfig,
    TrainingTelemetryProvider,
    application,
    checkpoint_save,
    data_loading,
    model_backward,
    model_forward,
    optimizer_update,
    training_iteration,
    training_loop,
    validation_loop,
)
from tests.truth.case import SPANS, case
from tests.truth.kit import SGD, Net, batches, evaluate, lap, sleep, train_batch, truth


@case(SPANS, steps=150, epochs=3, loss="train/loss")
def spans_of_the_readme() -> None:
    """``init``, ``set_step``, ``span`` and ``log``, as in the README's first loop."""
    model, loader = Net(), batches(50, 0.0)
    optimizer = SGD(model.parameters(), lr=0.1)
    with stepwell.init("my training", config={"lr": 0.1}) as run:
        step = 0
        truth.begin()
        for epoch in range(3):
            truth.epoch()
            run.set_step(step, epoch)
            with run.span("epoch"):
                for x, y in loader:
                    run.set_step(step, epoch)
                    lap()
                    with run.span("forward"):
                        loss = cross_entropy(model(x), y)
                    lap("forward")
                    optimizer.zero_grad()
                    with run.span("backward"):
                        loss.backward()
                    lap("backward")
                    with run.span("optimizer"):
                        optimizer.step()
                    lap()
                    run.log({"train/loss": loss})
                    truth.step(loss, len(x))
                    step += 1
                run.event("epoch done", epoch=epoch)


@case(SPANS, steps=150, epochs=None, loss="loss")
def standard_spans() -> None:
    """The context managers of ``stepwell.training``, with validation and checkpoints."""
    model, loader, held_out = Net(), batches(150), batches(5, seed=1)
    optimizer = SGD(model.parameters(), lr=0.1)
    TrainingTelemetryProvider.instance().configure(
        TrainingTelemetryConfig(application_name="standard", global_batch_size_or_fn=16)
    )
    with application(), training_loop(train_iterations_start=0):
        source = iter(loader)
        truth.begin()
        for number in range(1, 151):
            with data_loading():
                x, y = next(source)
            lap("data")
            with training_iteration():
                with model_forward():
                    loss = cross_entropy(model(x), y)
                lap("forward")
                optimizer.zero_grad()
                with model_backward():
                    loss.backward()
                lap("backward")
                with optimizer_update():
                    optimizer.step()
                lap()
                stepwell.log({"loss": loss})
            truth.step(loss, len(x))
            if number % 50 == 0:
                with validation_loop():
                    evaluate(model, held_out)
                with checkpoint_save(global_step=number, path="model.pt"):
                    sleep(0.1)
                    torch.save(model.state_dict(), "model.pt")
                lap("checkpoint")


@case(SPANS, steps=150, epochs=3, loss=None)
def annotated() -> None:
    """``annotate`` and the loop of ``ai``."""
    model, loader = Net(), batches(50)
    optimizer = SGD(model.parameters(), lr=0.1)
    with stepwell.init("annotated") as run:
        annotate(model, optimizer, loader)
        step = 0
        truth.begin()
        for epoch in ai.pipeline.epoch.iter(range(3)):
            truth.epoch()
            for x, y in loader:
                run.set_step(step, epoch)
                lap("data")
                train_batch(model, optimizer, x, y)
                step += 1


@case(SPANS, steps=150, epochs=None, loss="loss")
def only_numbers() -> None:
    """``set_step`` and ``log``, and not a single span."""
    model, loader = Net(), batches(150)
    optimizer = SGD(model.parameters(), lr=0.1)
    with stepwell.init("numbers") as run:
        truth.begin()
        for step, (x, y) in enumerate(loader):
            run.set_step(step)
            loss = train_batch(model, optimizer, x, y)
            run.log({"loss": loss})
        truth.seconds.clear()


@case(SPANS, steps=150, epochs=None, loss="loss")
def own_spans() -> None:
    """Spans with names of one's own around everything that is not a pass."""
    model, loader = Net(), batches(150)
    optimizer = SGD(model.parameters(), lr=0.1)
    with stepwell.init("own spans") as run:
        truth.begin()
        for step, (x, y) in enumerate(loader):
            run.set_step(step)
            lap()
            with run.span("augment"):
                sleep(0.02)
            lap("augment")
            with run.span("forward"):
                loss = cross_entropy(model(x), y)
            lap("forward")
            optimizer.zero_grad()
            with run.span("backward"):
                loss.backward()
            lap("backward")
            with run.span("optimizer"):
                optimizer.step()
            lap()
            with run.span("upload pictures"):
                sleep(0.01)
            lap("upload pictures")
            run.log({"loss": loss})
            truth.step(loss, len(x))


@case(SPANS, steps=150, epochs=None, loss="loss")
def resumed_run() -> None:
    """Two attempts of one run: the second continues where the first ended."""
    model, loader = Net(), batches(75)
    optimizer = SGD(model.parameters(), lr=0.1)
    truth.begin()
    for first in (0, 75):
        with stepwell.init("resumed", run_id="resumed", resume=first > 0) as run:
            lap()
            for step, (x, y) in enumerate(loader, first):
                run.set_step(step)
                lap()
                with run.span("forward"):
                    loss = cross_entropy(model(x), y)
                lap("forward")
                optimizer.zero_grad()
                with run.span("backward"):
                    loss.backward()
                lap("backward")
                with run.span("optimizer"):
                    optimizer.step()
                lap()
                run.log({"loss": loss})
                truth.step(loss, len(x))
    assert os.path.isdir("runs/resumed")
