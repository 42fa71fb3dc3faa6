"""A real training recorded at once by stepwell, by torch.profiler, and by dftracer where there is one.

python agreement.py FOLDER

The three are around the same code, so that each measures nearly the same interval; parts take so long that
what the tools themselves take, up to 100 µs each after code that filled the caches, does not matter.
times.json has the microseconds of each range as torch.profiler has them; dftracer leaves its trace beside it.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

import stepwell
from stepwell import training

FOLDER = Path(sys.argv[1])
STEPS = 120
PHASES = ("data", "forward", "backward", "optimizer", "validation")

try:
    from dftracer.python import ai, dftracer
except ImportError:
    ai = dftracer = None


NODES: dict[str, AbstractContextManager[Any]] = {}
if ai is not None:
    NODES = {
        "data": ai.dataloader.fetch,
        "forward": ai.compute.forward,
        "backward": ai.compute.backward,
        "optimizer": ai.compute.step,
        "validation": ai.pipeline.evaluate,
    }


def traced(phase: str) -> AbstractContextManager[Any]:
    """The span of dftracer for a phase."""
    return NODES.get(phase) or nullcontext()


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """As a loader would make them, at some expense."""
    while True:
        x = torch.randn(256, 2048).sort(dim=1).values[:, ::4].contiguous()
        yield x, x.sum(dim=1, keepdim=True)


@training.validation_loop()
@torch.no_grad()
def validate(model: torch.nn.Module, source: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for _ in range(10):
        model(next(source)[0])


def train() -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(512, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1)
    )
    optimizer = torch.optim.Adam(model.parameters())
    source = batches()
    with training.application(), training.training_loop(train_iterations_start=0):
        for step in range(STEPS):
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
                    validate(model, source)


def main() -> None:
    torch.set_num_threads(1)
    log = dftracer.initialize_log(str(FOLDER / "trace"), None, -1) if dftracer else None
    run = stepwell.init("agreement", dir=FOLDER / "runs")
    with run, profile(activities=[ProfilerActivity.CPU]) as profiler:
        train()
    if log is not None:
        log.finalize()
    ranges = sorted(profiler.events(), key=lambda event: event.time_range.start)
    times = {
        phase: [event.time_range.elapsed_us() for event in ranges if event.name == phase]
        for phase in PHASES
    }
    (FOLDER / "times.json").write_text(json.dumps(times))


main()
