"""Tools that record scalars: one call with one number, at a step."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from benchmarks.floor import SPANS, Measured, compare
from benchmarks.peers import checked
from benchmarks.row import Effort


def trackio(effort: Effort) -> Measured:
    import trackio

    trackio.init(project="bench", auto_log_gpu=False, auto_log_cpu=False, embed=False)

    def block(count: int) -> None:
        for i in range(count):
            trackio.log({"loss": i / 3}, step=i)

    count = SPANS // 20
    measured = compare(block, rounds=effort.rounds, count=count)
    trackio.finish()
    with closing(sqlite3.connect(Path(os.environ["TRACKIO_DIR"]) / "bench.db")) as database:
        rows = database.execute("select count(*) from metrics").fetchone()[0]
    return checked(measured, "values", rows, count * (effort.rounds + 1))


def wandb(effort: Effort) -> Measured:
    import wandb

    run = wandb.init(project="bench", mode="offline", dir=".")
    steps = iter(range(10**9))

    def block(count: int) -> None:
        # A step that does not rise would be dropped.
        for step, _ in zip(steps, range(count), strict=False):
            run.log({"loss": step / 3}, step=step)

    count = SPANS // 100
    measured = compare(block, rounds=effort.rounds, count=count)
    run.finish()
    size = sum(file.stat().st_size for file in Path.cwd().rglob("*.wandb"))
    return checked(measured, "bytes", size, 30 * count * (effort.rounds + 1))


def tensorboard(effort: Effort) -> Measured:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter("events")

    def block(count: int) -> None:
        for i in range(count):
            writer.add_scalar("loss", i / 3, i)

    count = SPANS // 50
    measured = compare(block, rounds=effort.rounds, count=count, between=writer.flush)
    writer.close()
    size = sum(file.stat().st_size for file in Path("events").iterdir())
    return checked(measured, "bytes", size, 30 * count * (effort.rounds + 1))


def mlflow(effort: Effort) -> Measured:
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{Path('mlflow.db').absolute()}")
    count = SPANS // 1000
    with mlflow.start_run() as run:

        def block(count: int) -> None:
            for i in range(count):
                mlflow.log_metric("loss", i / 3, step=i)

        measured = compare(block, rounds=effort.rounds, count=count)
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")
    return checked(measured, "values", len(history), count * (effort.rounds + 1))
