"""Trainings in two ranks with DistributedDataParallel: who waits for whom, and who ended first."""

import contextlib
import threading

import torch
from torch.nn.functional import cross_entropy

import stepwell
from tests.truth.case import DDP, Says, case
from tests.truth.kit import (
    RANK,
    SGD,
    Net,
    Slow,
    batches,
    distributed,
    evaluate,
    kill,
    lap,
    sleep,
    train_batch,
    truth,
)


@case(DDP, ranks=2, steps=150)
def two_healthy_ranks() -> None:
    """Nothing is wrong."""
    loader = batches(150, seed=RANK)
    model = distributed(Net())
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for x, y in loader:
        lap("data")
        train_batch(model, optimizer, x, y)
    torch.distributed.destroy_process_group()


@case(DDP, ranks=2, steps=200, epochs=4)
def all_ranks_validate() -> None:
    """Validation in all ranks, through the module that DDP wraps; rank 0 logs it."""
    loader, held_out = batches(50, seed=RANK), batches(10, seed=2)
    model = distributed(Net())
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    for _ in range(4):
        truth.epoch()
        for x, y in loader:
            lap("data")
            train_batch(model, optimizer, x, y)
        loss = evaluate(model.module, held_out)
        if RANK == 0:
            stepwell.log({"val/loss": loss})
    torch.distributed.destroy_process_group()


@case(
    DDP,
    ranks=2,
    steps=200,
    findings=(Says("checkpoint-stall", ("Rank 0",), (0,)),),
)
def rank_0_saves() -> None:
    """Rank 0 saves for 0.5 s every 25 steps, and rank 1 waits for it."""
    loader = batches(200, seed=RANK)
    model = distributed(Net())
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for number, (x, y) in enumerate(loader, 1):
        lap("data")
        train_batch(model, optimizer, x, y)
        if number % 25 == 10 and RANK == 0:
            torch.save({"model": model.module.state_dict(), "more": Slow(0.5)}, "model.pt")
            lap("checkpoint")
    torch.distributed.destroy_process_group()


@case(DDP, ranks=2, steps=150, findings=(Says("straggler", ("Rank 1", "forward"), (1,)),))
def slow_rank() -> None:
    """The forward pass of rank 1 takes three times as long."""
    loader = batches(150, seed=RANK)
    model = distributed(Net(forward=0.06 if RANK == 1 else 0.02))
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for x, y in loader:
        lap("data")
        train_batch(model, optimizer, x, y)
    torch.distributed.destroy_process_group()


@case(DDP, ranks=2, steps=150, findings=(Says("straggler", ("Rank 1", "data"), (1,)),))
def slow_loader_of_one_rank() -> None:
    """The loader of rank 1 takes 40 ms for each batch."""
    loader = batches(150, 0.04 if RANK == 1 else 0.004, seed=RANK)
    model = distributed(Net())
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for x, y in loader:
        lap("data")
        train_batch(model, optimizer, x, y)
    torch.distributed.destroy_process_group()


@case(
    DDP,
    ranks=2,
    steps=150,
    findings=(Says("straggler", ("Rank 0",), (0,), steps=(80,)),),
)
def one_rank_sleeps_once() -> None:
    """Rank 0 does something else for 3 s after step 80."""
    loader = batches(150, seed=RANK)
    model = distributed(Net())
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for step, (x, y) in enumerate(loader):
        lap("data")
        train_batch(model, optimizer, x, y)
        if step == 80 and RANK == 0:
            sleep(3.0)
            lap()
    torch.distributed.destroy_process_group()


@case(
    DDP,
    ranks=2,
    steps=200,
    epochs=4,
    findings=(Says("straggler", ("Rank 0", "validates"), (0,)),),
)
def rank_0_validates() -> None:
    """Rank 0 validates alone after each epoch, and rank 1 waits for it."""
    loader, held_out = batches(50, seed=RANK), batches(40, seed=2)
    model = distributed(Net())
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    for _ in range(4):
        truth.epoch()
        for x, y in loader:
            lap("data")
            train_batch(model, optimizer, x, y)
        if RANK == 0:
            stepwell.log({"val/loss": evaluate(model.module, held_out)})
        torch.distributed.barrier()
        lap("communication")
    torch.distributed.destroy_process_group()


@case(
    DDP,
    ranks=2,
    steps=60,
    at=60,
    status="failed",
    code=(1, -9),
    findings=(Says("died", ("Rank 1", "killed", "step 60"), (1,), 60),),
)
def rank_1_is_killed() -> None:
    """``kill -9`` of rank 1 in step 60; rank 0 fails because of that."""
    loader = batches(150, seed=RANK)
    model = distributed(Net())
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for step, (x, y) in enumerate(loader):
        lap("data")
        if step == 60 and RANK == 1:
            kill()
        train_batch(model, optimizer, x, y)


@case(
    DDP,
    ranks=2,
    steps=60,
    at=60,
    status="failed",
    code=(1, 1),
    findings=(Says("died", ("Rank 1", "ValueError: bad batch", "step 60"), (1,), 60),),
)
def rank_1_fails() -> None:
    """A ValueError in rank 1 in step 60; rank 0 fails because of that."""
    loader = batches(150, seed=RANK)
    model = distributed(Net())
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for step, (x, y) in enumerate(loader):
        lap("data")
        if step == 60 and RANK == 1:
            raise ValueError("bad batch")
        train_batch(model, optimizer, x, y)


@case(
    DDP,
    ranks=2,
    steps=150,
    findings=(Says("rank-divergence", ("weights",)),),
)
def weights_that_differ() -> None:
    """The ranks train without DDP: each has its own weights."""
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(RANK)
    model, loader = Net(), batches(150, seed=RANK)
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for x, y in loader:
        lap("data")
        train_batch(model, optimizer, x, y)
    torch.distributed.destroy_process_group()


@case(DDP, ranks=2, steps=75)
def accumulation_without_sync() -> None:
    """Two batches for each step, the first of them in ``no_sync``."""
    loader = batches(150, seed=RANK)
    model = distributed(Net())
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    total = 0.0
    for number, (x, y) in enumerate(loader, 1):
        lap("data")
        with contextlib.nullcontext() if number % 2 == 0 else model.no_sync():
            logits = model(x)
            lap("forward")
            loss = cross_entropy(logits, y) / 2
            loss.backward()
            lap("backward")
        total += loss.item()
        if number % 2 == 0:
            optimizer.step()
            lap()
            optimizer.zero_grad()
            truth.step(total, 32)
            total = 0.0
    torch.distributed.destroy_process_group()


@case(DDP, ranks=2, steps=150, findings=(Says("data-bound", ranks=(), exact=("57 %",)),))
def slow_loaders_of_all_ranks() -> None:
    """60 ms for each batch on both ranks: neither waits for the other."""
    loader = batches(150, 0.06, seed=RANK)
    model = distributed(Net())
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for x, y in loader:
        lap("data")
        train_batch(model, optimizer, x, y)
    torch.distributed.destroy_process_group()


@case(
    DDP,
    ranks=2,
    steps=60,
    at=60,
    clock="real",
    phases=False,
    status="killed",
    code=-9,
    findings=(Says("hang", ("rank 1", "forward"), (1,)), Says("died", ("killed",))),
)
def rank_1_hangs() -> None:
    """Rank 1 does not leave the forward pass of step 60, and rank 0 waits; both are killed."""
    loader = batches(150, seed=RANK)
    model = distributed(Net())
    optimizer = SGD(model.parameters(), lr=0.1)
    stepwell.watch(model, optimizer, loader)
    truth.begin()
    truth.epoch()
    for step, (x, y) in enumerate(loader):
        lap("data")
        if step == 60:
            threading.Timer(25.0, kill).start()
            if RANK == 1:
                model.module.body.register_forward_pre_hook(lambda *_: sleep(60))
        train_batch(model, optimizer, x, y)
