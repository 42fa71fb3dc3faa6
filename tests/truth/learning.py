"""Trainings that do not learn: the report says so, and why."""

import math

import torch
from torch.nn.functional import cross_entropy

import stepwell
from tests.truth.case import SPANS, WATCH, Says, case
from tests.truth.kit import (
    BATCH,
    CLASSES,
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


@case(WATCH, steps=200, findings=(Says("diverged", ("loss",)),))
def forgotten_zero_grad() -> None:
    """Gradients pile up, because ``zero_grad`` is never called; the loss explodes."""
    model, loader = Net(), batches(200)
    optimizer = SGD(model.parameters(), lr=0.5)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for x, y in loader:
        lap("data")
        logits = model(x)
        lap("forward")
        loss = cross_entropy(logits, y)
        loss.backward()
        lap("backward")
        optimizer.step()
        lap()
        truth.step(loss, len(x))


@case(WATCH, steps=200, findings=(Says("clipping", ("gradient norm", "1e-06")),))
def clipped_to_almost_nothing() -> None:
    """Gradients are clipped to a norm of 0.000001."""
    model, loader = Net(), batches(200)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for x, y in loader:
        lap("data")
        optimizer.zero_grad()
        logits = model(x)
        lap("forward")
        loss = cross_entropy(logits, y)
        loss.backward()
        lap("backward")
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-6)
        lap()
        optimizer.step()
        lap()
        truth.step(loss, len(x))


@case(
    WATCH,
    steps=200,
    findings=(Says("optimizer-parameters", ("optimizer",)),),
)
def parameters_of_another_model() -> None:
    """The optimizer holds the parameters of a model that is not trained."""
    model, other, loader = Net(), Net(), batches(200)
    optimizer = SGD(other.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for x, y in loader:
        lap("data")
        train_batch(model, optimizer, x, y)


@case(
    WATCH,
    steps=200,
    findings=(Says("optimizer-parameters", ("optimizer",)),),
)
def head_missing_in_the_optimizer() -> None:
    """The head has gradients, but is not in the optimizer."""
    model, loader = Net(), batches(200)
    optimizer = SGD(model.body.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for x, y in loader:
        lap("data")
        train_batch(model, optimizer, x, y)


@case(
    WATCH,
    steps=200,
    findings=(Says("zero-learning-rate", ("0",)),),
)
def learning_rate_zero() -> None:
    """The learning rate is 0."""
    model, loader = Net(), batches(200)
    optimizer = SGD(model.parameters(), lr=0.0)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for x, y in loader:
        lap("data")
        train_batch(model, optimizer, x, y)


@case(
    WATCH,
    steps=400,
    epochs=4,
    findings=(Says("learning-rate", ("scheduler",)),),
)
def scheduler_never_stepped() -> None:
    """A scheduler is attached to the optimizer, and never called."""
    model, loader = Net(), batches(100)
    optimizer = SGD(model.parameters(), lr=0.1)
    torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    for _ in range(4):
        truth.epoch()
        for x, y in loader:
            lap("data")
            train_batch(model, optimizer, x, y)


@case(WATCH, steps=300, findings=(Says("diverged", ("loss",)),))
def rising_loss() -> None:
    """The gradient's sign is wrong: the loss rises from the first step on."""
    model, loader = Net(), batches(300)
    optimizer = SGD(model.parameters(), lr=0.02, maximize=True)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for x, y in loader:
        lap("data")
        train_batch(model, optimizer, x, y)


@case(
    WATCH,
    steps=300,
    findings=(Says("at-chance", ("loss", "ln 4")),),
)
def flat_at_chance() -> None:
    """Labels that have nothing to do with the examples: the loss stays at ln 4."""
    model, data = Net(), Examples(300 * 64)
    data.y = torch.randint(CLASSES, (len(data),), generator=torch.Generator().manual_seed(1))
    loader = torch.utils.data.DataLoader(data, 64)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for x, y in loader:
        lap("data")
        train_batch(model, optimizer, x, y)


@case(
    WATCH,
    steps=300,
    findings=(Says("loss-jump", ("150",), steps=150, within=2),),
)
def permanent_jump() -> None:
    """At step 150 the weights are lost, and the model is kept from learning them again."""
    model, loader = Net(), batches(300)
    optimizer = SGD(model.parameters(), lr=0.2)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for step, (x, y) in enumerate(loader):
        lap("data")
        if step == 150:
            with torch.no_grad():
                model.head.weight.normal_(0, 2.0)
            optimizer.param_groups[0]["lr"] = 1e-4
        train_batch(model, optimizer, x, y)


@case(WATCH, steps=300, findings=(Says("loss-spikes", ("200",), steps=(200,)),))
def one_spike() -> None:
    """The batch of step 200 has wrong labels and large inputs; clipping keeps the weights."""
    model, loader = Net(), batches(300)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for step, (x, y) in enumerate(loader):
        lap("data")
        if step == 200:
            x, y = 3 * x, (y + 1) % CLASSES
        logits = model(x)
        lap("forward")
        loss = cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        lap("backward")
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        lap()
        truth.step(loss, len(x))


@case(WATCH, steps=120, findings=(Says("not-finite", ("loss", "NaN", "77"), steps=77),))
def nan_at_step_77() -> None:
    """An input of step 77 is NaN."""
    model, loader = Net(), batches(120)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for step, (x, y) in enumerate(loader):
        lap("data")
        if step == 77:
            x[0, 0] = math.nan
        train_batch(model, optimizer, x, y)


@case(
    WATCH,
    steps=400,
    epochs=100,
    findings=(Says("overfitting", ("val/loss",)),),
)
def overfitting() -> None:
    """64 examples with labels at random are learned by heart."""
    model, data = Net(width=256), Examples(64)
    held_out = batches(4, seed=1)
    data.y = torch.randint(CLASSES, (64,), generator=torch.Generator().manual_seed(1))
    loader = torch.utils.data.DataLoader(data, BATCH)
    optimizer = SGD(model.parameters(), lr=0.3)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    for epoch in range(100):
        truth.epoch()
        for x, y in loader:
            lap("data")
            train_batch(model, optimizer, x, y)
        if epoch % 10 == 9:
            stepwell.log({"val/loss": evaluate(model, held_out)})


@case(
    WATCH,
    steps=200,
    epochs=4,
    findings=(Says("validation-mode", ("eval()",)),),
)
def eval_forgotten() -> None:
    """Validation without ``model.eval()``, in a model with dropout."""
    model, loader, held_out = Net(dropout=0.3), batches(50), batches(10, seed=1)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    for _ in range(4):
        truth.epoch()
        for x, y in loader:
            lap("data")
            train_batch(model, optimizer, x, y)
        with torch.no_grad():
            losses = [float(cross_entropy(model(x), y)) for x, y in held_out]
        lap("validation")
        stepwell.log({"val/loss": sum(losses) / len(losses)})


@case(
    SPANS,
    steps=200,
    epochs=None,
    loss="train/loss",
    findings=(Says("at-chance", ("ln 4", "train/loss")),),
)
def flat_loss_in_explicit_spans() -> None:
    """A loss that is logged by hand, and stays where it is."""
    model, data = Net(), Examples(200 * BATCH)
    data.y = torch.randint(CLASSES, (len(data),), generator=torch.Generator().manual_seed(1))
    optimizer = SGD(model.parameters(), lr=0.01)
    with stepwell.init("flat") as run:
        truth.begin()
        for step in range(200):
            run.set_step(step)
            x, y = (part[BATCH * step : BATCH * (step + 1)] for part in (data.x, data.y))
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


@case(
    WATCH,
    steps=200,
    epochs=None,
    findings=(Says("flat-loss", ("does not decrease",)),),
)
def constant_prediction() -> None:
    """A regression whose inputs are all zero: the loss is that of the mean."""
    model = torch.nn.Linear(FEATURES, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    stepwell.watch(model, optimizer)
    targets = torch.randn(200, 2000, 1, generator=torch.Generator().manual_seed(3))
    truth.begin()
    for target in targets:
        with stepwell.span("sample"):
            sleep(0.02)
        lap()
        loss = (model(torch.zeros(2000, FEATURES)) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        truth.step(loss, 2000)
