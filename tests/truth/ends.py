"""Trainings that do not come to their end: how and at which step they ended; nothing before that is lost."""

import math
import sys

import torch
from torch.nn.functional import cross_entropy

import stepwell
from tests.truth.case import SPANS, WATCH, Says, case
from tests.truth.kit import (
    BATCH,
    SGD,
    Examples,
    Net,
    batches,
    hang,
    kill,
    lap,
    press_control_c,
    train_batch,
    truth,
)


@case(
    WATCH,
    steps=46,
    at=46,
    status="killed",
    code=-9,
    findings=(Says("died", ("killed", "step 46"), (0,), 46),),
)
def killed_at_step_46() -> None:
    """``kill -9`` before the forward pass of step 46."""
    model, loader = Net(), batches(200)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for step, (x, y) in enumerate(loader):
        lap("data")
        if step == 46:
            kill()
        train_batch(model, optimizer, x, y)


@case(
    WATCH,
    steps=46,
    epochs=None,
    at=46,
    status="killed",
    code=-9,
    findings=(Says("died", ("killed", "step 46"), (0,), 46),),
)
def killed_without_a_loader() -> None:
    """``kill -9`` inside the forward pass of step 46, with no loader given."""
    model, data = Net(), Examples(200 * BATCH)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer)
    truth.begin()
    for step in range(200):
        x, y = data.x[BATCH * step : BATCH * (step + 1)], data.y[BATCH * step : BATCH * (step + 1)]
        lap()
        if step == 46:
            model.register_forward_pre_hook(lambda *_: kill())
        train_batch(model, optimizer, x, y)


@case(
    SPANS,
    steps=46,
    epochs=None,
    at=46,
    status="killed",
    code=-9,
    findings=(Says("died", ("killed", "step 46", "forward"), (0,), 46),),
)
def killed_in_a_span() -> None:
    """``kill -9`` inside a span of step 46."""
    model, loader = Net(), batches(200)
    optimizer = SGD(model.parameters(), lr=0.1)
    run = stepwell.init("killed")
    truth.begin()
    for step, (x, y) in enumerate(loader):
        run.set_step(step)
        lap()
        with run.span("forward"):
            loss = cross_entropy(model(x), y)
            if step == 46:
                kill()
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


@case(
    WATCH,
    steps=46,
    at=46,
    status="interrupted",
    code=-2,
    findings=(Says("died", ("interrupted with Ctrl-C at step 46",), (0,), 46),),
)
def control_c() -> None:
    """Ctrl-C in step 46."""
    model, loader = Net(), batches(200)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for step, (x, y) in enumerate(loader):
        lap("data")
        if step == 46:
            press_control_c()
        train_batch(model, optimizer, x, y)


@case(
    WATCH,
    steps=50,
    status="failed",
    code=3,
    findings=(Says("died", ("3",)),),
)
def exit_code_3() -> None:
    """``sys.exit(3)`` after 50 steps."""
    model, loader = Net(), batches(200)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for number, (x, y) in enumerate(loader, 1):
        lap("data")
        train_batch(model, optimizer, x, y)
        if number == 50:
            sys.exit(3)


@case(
    WATCH,
    steps=77,
    at=77,
    status="failed",
    code=1,
    findings=(
        Says("died", ("step 77", "ValueError: the labels of batch 77 are broken"), (0,), 77),
    ),
)
def exception_in_the_loop() -> None:
    """A ValueError in step 77."""
    model, loader = Net(), batches(200)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for step, (x, y) in enumerate(loader):
        lap("data")
        if step == 77:
            raise ValueError("the labels of batch 77 are broken")
        train_batch(model, optimizer, x, y)


class Broken(Examples):
    """Examples whose 78th batch cannot be read."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index == 77 * BATCH:
            raise OSError("shard 7 cannot be read")
        return super().__getitem__(index)


@case(
    WATCH,
    steps=77,
    at=76,
    status="failed",
    code=1,
    findings=(Says("died", ("OSError: shard 7 cannot be read", "fetch"), (0,)),),
)
def exception_in_the_loader() -> None:
    """The batch of step 77 cannot be read."""
    model, loader = Net(), torch.utils.data.DataLoader(Broken(200 * BATCH), BATCH)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    try:
        for x, y in loader:
            lap("data")
            train_batch(model, optimizer, x, y)
    finally:
        lap("data")


@case(
    WATCH,
    steps=61,
    status="killed",
    code=-9,
    findings=(Says("not-finite", ("NaN", "60"), steps=60), Says("died", ("killed",), (0,))),
)
def killed_right_after_a_nan() -> None:
    """The loss of step 60 is NaN, and the process is killed right after that step."""
    model, loader = Net(), batches(200)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for step, (x, y) in enumerate(loader):
        lap("data")
        if step == 60:
            x[0, 0] = math.nan
        train_batch(model, optimizer, x, y)
        if step == 60:
            kill()


@case(
    WATCH,
    steps=46,
    at=46,
    status="killed",
    code=-9,
    findings=(Says("hang", ("forward",), (0,), 46), Says("died", ("killed",), (0,), 46)),
)
def hang_in_the_model() -> None:
    """The forward pass of step 46 does not end; after a minute the process is killed."""
    model, loader = Net(), batches(200)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for step, (x, y) in enumerate(loader):
        lap("data")
        if step == 46:
            model.body.register_forward_pre_hook(lambda *_: hang("forward"))
        train_batch(model, optimizer, x, y)


class Hanging(Examples):
    """Examples whose 47th batch never comes."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index == 46 * BATCH:
            hang("data")
        return super().__getitem__(index)


@case(
    WATCH,
    steps=46,
    at=45,
    status="killed",
    code=-9,
    findings=(Says("hang", ("fetch",), (0,)), Says("died", ("killed",), (0,))),
)
def hang_in_the_loader() -> None:
    """The batch of step 46 does not come; after a minute the process is killed."""
    model, loader = Net(), torch.utils.data.DataLoader(Hanging(200 * BATCH), BATCH)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for x, y in loader:
        lap("data")
        train_batch(model, optimizer, x, y)
