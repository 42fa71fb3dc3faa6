"""Model diagnostics on transformers of 25 and 125 million parameters, whose embedding is a large part.

torch calculates in threads of its own, so these are CPU times of the whole process, and ratios of two ways
to do the same that take turns.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import process_time_ns, sleep
from typing import TYPE_CHECKING

from benchmarks.floor import Measured, summarize
from benchmarks.row import Effort, Skipped

if TYPE_CHECKING:
    import torch

EVERY = 200
"""Batches between collections."""
TOKENS = (4, 128)
"""Sequences and their length in a batch of the training that collections are compared with."""

SIZES = {"25m": (32_000, 384, 7), "125m": (50_257, 768, 12)}
"""Words, width and layers."""


def gradients_25m(effort: Effort) -> Measured:
    return _gradients("25m", effort)


def gradients_125m(effort: Effort) -> Measured:
    return _gradients("125m", effort)


def weights_25m(effort: Effort) -> Measured:
    return _weights("25m", effort)


def weights_125m(effort: Effort) -> Measured:
    return _weights("125m", effort)


def memory_25m(effort: Effort) -> Measured:
    return _memory("25m")


def memory_125m(effort: Effort) -> Measured:
    return _memory("125m")


def sample_25m(effort: Effort) -> Measured:
    return _sample("25m", effort)


def training_25m(effort: Effort) -> Measured:
    return _training("25m", effort)


def training_125m(effort: Effort) -> Measured:
    return _training("125m", effort)


def _gradients(size: str, effort: Effort) -> Measured:
    """All of it (names, groups, norms, fetching) as a multiple of one pass of ``_foreach_norm``."""
    import torch

    from stepwell.diagnostics.gradients import Gradients
    from stepwell.diagnostics.norms import fetch

    model = _model(size)
    for one in model.parameters():
        one.grad = torch.randn_like(one)
    gradients = Gradients(model, torch.optim.SGD(model.parameters(), 0.1))
    plain = [one.grad for one in model.parameters()]
    return _ratio(
        lambda: fetch(gradients.present() or {}),
        lambda: torch.stack(torch._foreach_norm(plain)).tolist(),
        effort.rounds,
    )


def _weights(size: str, effort: Effort) -> Measured:
    """On disk, as a multiple of saving, loading and subtracting."""
    import torch

    from stepwell.diagnostics.groups import grouped
    from stepwell.diagnostics.norms import fetch
    from stepwell.diagnostics.weights import WeightBaseline

    model = _model(size)
    with tempfile.TemporaryDirectory(prefix="stepwell-bench-") as folder:
        other = Path(folder, "other.pt")

        def save() -> None:
            torch.save({name: one.detach().cpu() for name, one in model.named_parameters()}, other)

        def plain() -> float:
            before = torch.load(other, weights_only=True)
            changes = [
                torch.linalg.vector_norm(one.detach() - before[name]).item()
                for name, one in model.named_parameters()
            ]
            save()
            return sum(one * one for one in changes) ** 0.5

        save()
        baseline = WeightBaseline(Path(folder, "last_checkpoint.pt"), "disk", "bench")
        baseline.delta(grouped(model))
        return _ratio(
            lambda: fetch(baseline.delta(grouped(model)) or {}), plain, min(effort.rounds, 5)
        )


def _memory(size: str) -> Measured:
    """The most that a weight delta on disk adds to anonymous memory, in percent of the model."""
    from stepwell.diagnostics.groups import grouped
    from stepwell.diagnostics.weights import WeightBaseline

    model = _model(size)
    whole = sum(one.numel() * one.element_size() for one in model.parameters())
    with tempfile.TemporaryDirectory(prefix="stepwell-bench-") as folder:
        baseline = WeightBaseline(Path(folder, "last_checkpoint.pt"), "disk", "bench")
        with _watched() as peak:
            for _ in range(3):
                baseline.delta(grouped(model))
    return summarize([100 * peak[0] / whole], note=f"of {whole / 1e6:.0f} MB")


def _sample(size: str, effort: Effort) -> Measured:
    """A sample of the weights as a multiple of a copy of all of them in memory."""
    from stepwell.diagnostics.groups import grouped
    from stepwell.diagnostics.weights import WeightBaseline

    model = _model(size)
    sample, copy = WeightBaseline(None, "sample"), WeightBaseline(None, "memory")
    return _ratio(
        lambda: sample.delta(grouped(model)), lambda: copy.delta(grouped(model)), effort.rounds
    )


def _training(size: str, effort: Effort) -> Measured:
    """A whole collection in percent of the training steps from one to the next."""
    import torch

    from stepwell.diagnostics import TelemetryConfig, TrainingTelemetry

    model = _model(size)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    words = torch.randint(0, SIZES[size][0], TOKENS)
    with tempfile.TemporaryDirectory(prefix="stepwell-bench-") as folder:
        config = TelemetryConfig(collect_every_n=EVERY, output_dir=folder)
        with TrainingTelemetry(config) as telemetry:
            batch = 0

            def step() -> None:
                optimizer.zero_grad()
                model(words).square().mean().backward()
                optimizer.step()

            def pass_by(until: int) -> None:
                nonlocal batch
                while batch < until:
                    batch += 1
                    telemetry.on_batch_end(model, optimizer, batch, 0, "cpu", {"label": words})

            steps, collections = [], []
            for i in range(min(effort.rounds, 2) + 1):
                pass_by((i + 1) * EVERY - 1)
                # The norms are computed in the step before a collection.
                with_norms = _cpu_ns(step)
                passing = _cpu_ns(lambda number=i: pass_by((number + 1) * EVERY))
                plain = median(_cpu_ns(step) for _ in range(3))
                if i:
                    steps.append(plain)
                    collections.append(passing + max(0.0, with_norms - plain))
            if telemetry.metrics_file is None or not telemetry.metrics_file.exists():
                raise Skipped("no collection was made")
    values = [100 * one / (EVERY * median(steps)) for one in collections]
    return summarize(values, note=f"a step: {median(steps) / 1e9:.1f} s CPU")


def _ratio(ours: Callable[[], object], other: Callable[[], object], rounds: int) -> Measured:
    ratios = []
    for i in range(rounds + 1):
        below = _cpu_ns(other)
        above = _cpu_ns(ours)
        if i:  # the first round warms up
            ratios.append(above / below)
    return summarize(ratios, note=f"{below / 1e6:.0f} ms CPU")


def _cpu_ns(call: Callable[[], object]) -> float:
    begin = process_time_ns()
    call()
    return process_time_ns() - begin


@contextmanager
def _watched() -> Iterator[list[int]]:
    """The growth of anonymous memory at its peak, in bytes, once the block is over."""
    if not Path("/proc/self/status").exists():
        raise Skipped("needs /proc")
    peak, over, start = [0], threading.Event(), _anonymous()

    def watch() -> None:
        while not over.is_set():
            peak[0] = max(peak[0], _anonymous() - start)
            sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        over.set()
        watcher.join()


def _anonymous() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))


def _model(size: str) -> torch.nn.Module:
    from torch import nn

    words, width, layers = SIZES[size]
    blocks = [
        nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True)
        for _ in range(layers)
    ]
    return nn.Sequential(nn.Embedding(words, width), *blocks)
