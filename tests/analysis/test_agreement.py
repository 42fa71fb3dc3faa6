"""The same training measured by others: the phases of the ledger agree with theirs within 2 %."""

from __future__ import annotations

import gzip
import json
import math
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from stepwell.analysis.time import ledger, steps
from tests.processes.programs import environ, only_run

pytestmark = [pytest.mark.torch, pytest.mark.full]
pytest.importorskip("torch")

PROGRAM = Path(__file__).parent / "agreement.py"
WITHIN = 0.02
HELD_UP = 0.05
"""Of the intervals: so many may be left out."""
TRACED = {
    ("dataloader", "fetch"): "data",
    ("compute", "forward"): "forward",
    ("compute", "backward"): "backward",
    ("compute", "step"): "optimizer",
    ("pipeline", "evaluate"): "validation",
}
"""Category and name of dftracer's events."""


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one training that all of them measured."""
    folder = tmp_path_factory.mktemp("agreement")
    subprocess.run(
        [sys.executable, str(PROGRAM), str(folder)],
        env={**environ(folder), "DFTRACER_ENABLE": "1", "PATH": os.environ["PATH"]},
        cwd=folder,
        check=True,
        timeout=280,
    )
    return folder


def own(folder: Path) -> dict[str, list[float]]:
    """Microseconds by phase, step by step where it has any: they sum to what the ledger has."""
    run = only_run(folder)
    table = steps(run)
    totals = dict(ledger(run, by=()).select("phase", "ns").iter_rows())
    found = {}
    for phase in TRACED.values():
        times = table[phase].filter(table[phase] > 0)
        assert times.sum() == totals[phase]
        found[phase] = [ns / 1e3 for ns in times]
    return found


def check(ours: dict[str, list[float]], theirs: dict[str, list[float]]) -> None:
    """In all they are the same; where the processor was taken away between two clocks, that is left out."""
    ratios = {}
    for phase, times in theirs.items():
        assert len(times) == len(ours[phase])
        assert sum(times) > 100_000
        pairs = sorted(
            zip(ours[phase], times, strict=True), key=lambda pair: abs(pair[0] - pair[1])
        )
        kept = pairs[: len(pairs) - math.ceil(HELD_UP * len(pairs))]
        ratios[phase] = sum(pair[0] for pair in kept) / sum(pair[1] for pair in kept)
    assert ratios == pytest.approx(dict.fromkeys(theirs, 1.0), abs=WITHIN)


def test_torch_profiler(training: Path) -> None:
    """Ranges of ``record_function``."""
    check(own(training), json.loads((training / "times.json").read_text()))


def test_dftracer(training: Path) -> None:
    """The events of its trace, read here line by line."""
    if not find_spec("dftracer"):
        pytest.skip("NOT COMPARED with dftracer, which is not installed: pip install dftracer")
    events = []
    for path in training.glob("trace*.pfw*"):
        open_it = gzip.open if path.suffix == ".gz" else open
        with open_it(path, "rt") as lines:
            events += [json.loads(line.strip()) for line in lines if line.startswith("{")]
    theirs: dict[str, list[float]] = {phase: [] for phase in TRACED.values()}
    for event in sorted(events, key=lambda event: event.get("ts", 0)):
        phase = TRACED.get((event["cat"], event["name"]))
        if phase is not None:
            theirs[phase].append(event["dur"])
    check(own(training), theirs)
