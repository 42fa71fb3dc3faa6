"""The same training recorded by other tools: the phases of the ledger are the same intervals, within theirs.

How long they are is compared by ``make bench``, on a machine that does nothing else.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.agreement import PHASES, Times, dftracer_times, own_times
from tests.harness import environment, run_script

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

STEPS = 30
PROGRAM = f"""
import json, sys
from pathlib import Path
from benchmarks.agreement import record
folder = Path(sys.argv[1])
times = record(folder, {STEPS}, width=256)
(folder / "times.json").write_text(json.dumps(times))
"""
CLOCKS_US = 50
"""Other tools use other clocks, which may differ by this many microseconds."""


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one training that all tools recorded."""
    folder = tmp_path_factory.mktemp("agreement")
    env = environment(STEPWELL_STRICT="1", DFTRACER_ENABLE="1")
    run_script(PROGRAM, folder, env=env, cwd=folder, check=True)
    return folder


def check(ours: Times, theirs: Times) -> None:
    """Equally many intervals of each phase, each within one of the other tool."""
    expected = dict.fromkeys(PHASES, STEPS) | {"validation": STEPS // 30}
    assert {phase: len(times) for phase, times in ours.items()} == expected
    assert {phase: len(times) for phase, times in theirs.items()} == expected
    for phase in PHASES:
        for inner, outer in zip(ours[phase], theirs[phase], strict=True):
            assert 0 < inner <= 1.01 * outer + CLOCKS_US


@pytest.mark.full
def test_torch_profiler(training: Path) -> None:
    """Ranges of ``record_function``."""
    check(own_times(training), json.loads((training / "times.json").read_text()))


def test_dftracer(training: Path) -> None:
    """The events of its trace, read line by line."""
    if not find_spec("dftracer"):
        pytest.skip("NOT COMPARED with dftracer, which is not installed: pip install dftracer")
    check(own_times(training), dftracer_times(training))
