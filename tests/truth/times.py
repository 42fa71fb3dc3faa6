"""Healthy models that lose time: the report says where, how much, and what to do."""

import gc

import torch
from torch.nn.functional import cross_entropy

import stepwell
from stepwell.training import checkpoint_save
from tests.truth.case import SPANS, WATCH, Says, case
from tests.truth.kit import (
    SGD,
    Net,
    Slow,
    batches,
    evaluate,
    lap,
    sleep,
    train_batch,
    truth,
)


@case(WATCH, steps=150, findings=(Says("data-bound", exact=("57 %",)),))
def slow_loader() -> None:
    """60 ms for each batch, and 45 ms for what is done with it."""
    model, loader = Net(), batches(150, 0.06)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for x, y in loader:
        lap("data")
        train_batch(model, optimizer, x, y)


@case(
    WATCH,
    steps=200,
    findings=(Says("data-bound", ("every 20th batch",), steps=tuple(range(19, 200, 20))),),
)
def every_20th_batch_is_slow() -> None:
    """0.6 s for every 20th batch."""
    model, loader = Net(), batches(200)
    optimizer = SGD(model.parameters(), lr=0.1)
    loader.collate_fn = SlowCollate(20, 0.6)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for x, y in loader:
        lap("data")
        train_batch(model, optimizer, x, y)


class SlowCollate:
    """Collates batches; one in N takes longer."""

    def __init__(self, every: int, seconds: float) -> None:
        self.count, self.every, self.seconds = 0, every, seconds

    def __call__(self, examples: list[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
        self.count += 1
        if self.count % self.every == 0:
            sleep(self.seconds)
        return [torch.stack(part) for part in zip(*examples, strict=True)]


@case(
    WATCH,
    steps=200,
    findings=(Says("slow-steps", ("10th", "forward"), steps=tuple(range(9, 200, 10))),),
)
def every_10th_forward_is_slow() -> None:
    """The forward pass of every tenth step takes 0.2 s longer."""
    model, loader = Net(), batches(200)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for step, (x, y) in enumerate(loader):
        lap("data")
        model.forward_seconds = 0.22 if step % 10 == 9 else 0.02
        train_batch(model, optimizer, x, y)


@case(WATCH, steps=200, findings=(Says("stall", ("backward",), steps=(120,)),))
def one_stall() -> None:
    """The backward pass of step 120 takes 3 s."""
    model, loader = Net(), batches(200)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for step, (x, y) in enumerate(loader):
        lap("data")
        model.backward_seconds = 3.0 if step == 120 else 0.02
        train_batch(model, optimizer, x, y)


class Litter:
    """Belongs to a cycle, and takes its time when it is collected."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        sleep(0.3)


@case(
    WATCH,
    steps=200,
    findings=(Says("gc-pauses", exact=("38 %",)),),
    env={"STEPWELL_GC_PAUSES": "1"},
)
def garbage_collection() -> None:
    """Every tenth step a collection of 0.3 s."""
    model, loader = Net(), batches(200)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for step, (x, y) in enumerate(loader):
        lap("data")
        train_batch(model, optimizer, x, y)
        if step % 10 == 4:
            Litter()
            gc.collect()
            lap("garbage collection")


@case(
    WATCH,
    steps=200,
    findings=(Says("checkpoint-stall", ("checkpoint",)),),
)
def checkpoints_with_torch_save() -> None:
    """``torch.save`` every 25 steps, 0.8 s each time."""
    model, loader = Net(), batches(200)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for number, (x, y) in enumerate(loader, 1):
        lap("data")
        train_batch(model, optimizer, x, y)
        if number % 25 == 10:
            torch.save({"model": model.state_dict(), "more": Slow(0.8)}, "model.pt")
            lap("checkpoint")


@case(WATCH, steps=200, findings=(Says("checkpoint-stall", ("checkpoint",)),))
def checkpoints_in_a_span() -> None:
    """``checkpoint_save`` around what takes 0.8 s every 25 steps."""
    model, loader = Net(), batches(200)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for number, (x, y) in enumerate(loader, 1):
        lap("data")
        train_batch(model, optimizer, x, y)
        if number % 25 == 10:
            with checkpoint_save(global_step=number, path="model.pt"):
                sleep(0.8)
            lap("checkpoint")


@case(WATCH, steps=200, findings=(Says("throughput-drop", ("forward",)),))
def slower_and_slower() -> None:
    """From step 100 on the forward pass takes 60 ms in place of 20 ms."""
    model, loader = Net(), batches(200)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for step, (x, y) in enumerate(loader):
        lap("data")
        model.forward_seconds = 0.06 if step >= 100 else 0.02
        train_batch(model, optimizer, x, y)


@case(WATCH, steps=200, findings=(Says("pauses", ("follows every 10th step", "outside any span")),))
def code_in_no_span() -> None:
    """0.3 s of code that nothing was recorded of, after every tenth step."""
    model, loader = Net(), batches(200)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for step, (x, y) in enumerate(loader):
        lap("data")
        train_batch(model, optimizer, x, y)
        if step % 10 == 4:
            sleep(0.3)
            lap()


@case(WATCH, steps=200)
def the_same_code_in_a_span() -> None:
    """The same 0.3 s in a named span: they have a row in the time table, and no finding is reported."""
    model, loader = Net(), batches(200)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for step, (x, y) in enumerate(loader):
        lap("data")
        train_batch(model, optimizer, x, y)
        if step % 10 == 4:
            with stepwell.span("draw samples"):
                sleep(0.3)
            lap("draw samples")


@case(SPANS, steps=150, epochs=None, findings=(Says("data-bound", exact=("57 %",)),))
def slow_data_in_explicit_spans() -> None:
    """``wait for data`` of 60 ms in each step."""
    model, loader = Net(), batches(150, 0.0)
    optimizer = SGD(model.parameters(), lr=0.1)
    with stepwell.init("slow data") as run:
        source = iter(loader)
        truth.begin()
        for step in range(150):
            run.set_step(step)
            with run.span("wait for data"):
                x, y = next(source)
                sleep(0.06)
            lap("data")
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


@case(WATCH, steps=200, epochs=4)
def long_validation() -> None:
    """Validation that takes as long as training is not a finding."""
    model, loader, held_out = Net(), batches(50), batches(100, seed=1)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    for _ in range(4):
        truth.epoch()
        for x, y in loader:
            lap("data")
            train_batch(model, optimizer, x, y)
        stepwell.log({"val/loss": evaluate(model, held_out)})


@case(
    WATCH,
    steps=120,
    epochs=6,
    clock="real",
    findings=(Says("data-bound", ("persistent_workers=True",)),),
)
def workers_start_anew() -> None:
    """Two workers need a second to start, at the beginning of each epoch."""
    model = Net()
    loader = batches(20, 0.0, num_workers=2, worker_init_fn=lambda _: sleep(1.0))
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    for _ in range(6):
        truth.epoch()
        for x, y in loader:
            lap("data")
            train_batch(model, optimizer, x, y)


@case(
    WATCH,
    steps=120,
    clock="real",
    env={"STEPWELL_RUNTIME": "0.2"},
    findings=(Says("memory-growth"),),
)
def memory_leak() -> None:
    """A list that keeps 4 MB of each step."""
    model, loader = Net(forward=0.06), batches(120)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    kept = []
    truth.begin()
    truth.epoch()
    for x, y in loader:
        lap("data")
        train_batch(model, optimizer, x, y)
        kept.append(torch.ones(1 << 20))
        lap()
