"""Differences between the phases of a run and other measurements of the same training.

stepwell, torch.profiler and, where it is installed, dftracer record one training at once. They are around the
same code, so that each measures nearly the same interval; parts take so long that what the tools themselves
take, up to 100 µs each after code that filled the caches, does not matter.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import stepwell
from benchmarks.floor import Measured
from benchmarks.row import Effort, Skipped
from stepwell import training

if TYPE_CHECKING:
    from torch import Tensor

Times = dict[str, list[float]]
"""Microseconds of each interval, by phase."""

STEPS = 120
PHASES = ("data", "forward", "backward", "optimizer", "validation")
HELD_UP = 0.05
"""This share of the intervals is left out: those in which the processor was taken away between two clocks."""
TRACED = {
    ("dataloader", "fetch"): "data",
    ("compute", "forward"): "forward",
    ("compute", "backward"): "backward",
    ("compute", "step"): "optimizer",
    ("pipeline", "evaluate"): "validation",
}
"""Category and name of dftracer's events."""


def with_torch_profiler(effort: Effort) -> Measured:
    """The largest difference in any phase, in percent, to ranges of ``record_function``."""
    with TemporaryDirectory() as place:
        theirs = record(Path(place))
        return _difference(own_times(Path(place)), theirs)


def with_dftracer(effort: Effort) -> Measured:
    """The same to the events of dftracer's trace."""
    import dftracer  # noqa: F401

    with TemporaryDirectory() as place:
        record(Path(place))
        return _difference(own_times(Path(place)), dftracer_times(Path(place)))


def record(folder: Path, steps: int = STEPS, width: int = 4096) -> Times:
    """Train and record in this folder; returns what torch.profiler measured."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.set_num_threads(1)
    log, nodes = _start_dftracer(folder)
    run = stepwell.init("agreement", dir=folder / "runs")
    with run, profile(activities=[ProfilerActivity.CPU]) as profiler:
        _train(nodes, steps, width)
    if log is not None:
        log.finalize()
    ranges = sorted(profiler.events(), key=lambda event: event.time_range.start)
    return {
        phase: [event.time_range.elapsed_us() for event in ranges if event.name == phase]
        for phase in PHASES
    }


def own_times(folder: Path) -> Times:
    """By phase, step by step where it has any: they sum to what the ledger has."""
    from stepwell.analysis.timeline import ledger, steps

    (run,) = stepwell.list_runs(folder / "runs")
    table = steps(run)
    totals = dict(ledger(run, by=()).select("phase", "ns").iter_rows())
    times = {}
    for phase in PHASES:
        durations = table[phase].filter(table[phase] > 0)
        assert durations.sum() == totals[phase]
        times[phase] = [ns / 1e3 for ns in durations]
    return times


def dftracer_times(folder: Path) -> Times:
    """The events of its trace, read line by line."""
    events = []
    for path in folder.glob("trace*.pfw*"):
        open_it = gzip.open if path.suffix == ".gz" else open
        with open_it(path, "rt") as lines:
            events += [json.loads(line.strip()) for line in lines if line.startswith("{")]
    if not events:
        raise Skipped("dftracer left no trace: set DFTRACER_ENABLE=1")
    times: Times = {phase: [] for phase in PHASES}
    for event in sorted(events, key=lambda event: event.get("ts", 0)):
        phase = TRACED.get((event["cat"], event["name"]))
        if phase is not None:
            times[phase].append(event["dur"])
    return times


def _difference(ours: Times, theirs: Times) -> Measured:
    differences = {}
    for phase, times in theirs.items():
        pairs = sorted(
            zip(ours[phase], times, strict=True), key=lambda pair: abs(pair[0] - pair[1])
        )
        kept = pairs[: len(pairs) - math.ceil(HELD_UP * len(pairs))]
        ratio = sum(pair[0] for pair in kept) / sum(pair[1] for pair in kept)
        differences[phase] = 100 * abs(ratio - 1)
    worst = max(differences, key=differences.__getitem__)
    values = differences.values()
    return Measured(max(values), min(values), max(values), note=f"most in {worst}")


# The training


def _start_dftracer(folder: Path) -> tuple[Any, dict[str, AbstractContextManager[Any]]]:
    """Its log and its spans by phase; none where it is not installed."""
    try:
        from dftracer.python import ai, dftracer
    except ImportError:
        return None, {}
    nodes = {
        "data": ai.dataloader.fetch,
        "forward": ai.compute.forward,
        "backward": ai.compute.backward,
        "optimizer": ai.compute.step,
        "validation": ai.pipeline.evaluate,
    }
    return dftracer.initialize_log(str(folder / "trace"), None, -1), nodes


def _batches() -> Iterator[tuple[Tensor, Tensor]]:
    """As a loader would make them, at some expense."""
    import torch

    while True:
        x = torch.randn(256, 2048).sort(dim=1).values[:, ::4].contiguous()
        yield x, x.sum(dim=1, keepdim=True)


def _train(nodes: dict[str, AbstractContextManager[Any]], steps: int, width: int) -> None:
    import torch
    from torch.profiler import record_function

    def traced(phase: str) -> AbstractContextManager[Any]:
        return nodes.get(phase) or nullcontext()

    @training.validation_loop()
    @torch.no_grad()
    def validate() -> None:
        for _ in range(10):
            model(next(source)[0])

    model = torch.nn.Sequential(
        torch.nn.Linear(512, width), torch.nn.ReLU(), torch.nn.Linear(width, 1)
    )
    optimizer = torch.optim.Adam(model.parameters())
    source = _batches()
    with training.application(), training.training_loop(train_iterations_start=0):
        for step in range(steps):
            with traced("data"), record_function("data"), training.data_loading():
                x, y = next(source)
            with training.training_iteration():
                optimizer.zero_grad()
                with traced("forward"), record_function("forward"), training.model_forward():
                    loss = torch.nn.functional.mse_loss(model(x), y)
                with traced("backward"), record_function("backward"), training.model_backward():
                    loss.backward()
                with (
                    traced("optimizer"),
                    record_function("optimizer"),
                    training.optimizer_update(),
                ):
                    optimizer.step()
            if step % 30 == 29:
                with traced("validation"), record_function("validation"):
                    validate()
