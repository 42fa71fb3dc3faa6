"""Faults planted in real trainings: each gets the right sentence, rank and steps, and nothing false."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.analysis.findings import Finding, findings
from tests.harness import recording_environment, run_ranks
from tests.harness.marks import others_in_full
from tests.processes.programs import only_run

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

PROGRAM = Path(__file__).parent / "planted.py"


def planted(folder: Path, case: str, ranks: int = 1, code: int = 0) -> list[Finding]:
    """Return the findings in a training with this fault."""
    # System metrics are on, as a person would have them.
    runs = str(folder / "runs")
    env = recording_environment(runs, STEPWELL_RUNTIME="on")
    for done in run_ranks(PROGRAM, case, world=ranks, env=env, cwd=folder):
        assert done.returncode == code, done.stderr
    # Other tests run beside it: that the machine is busy may be true.
    return [found for found in findings(only_run(folder)) if found.rule != "busy-machine"]


def only(found: list[Finding], rule: str) -> Finding:
    """The one finding, which is of this rule."""
    assert [finding.rule for finding in found] == [rule], [f.sentence for f in found]
    return found[0]


@pytest.mark.parametrize("ranks", others_in_full([1, 2], [2]))
def test_a_healthy_run(tmp_path: Path, ranks: int) -> None:
    """Nothing is said of it."""
    assert [f.sentence for f in planted(tmp_path, "healthy", ranks)] == []


def test_a_slow_loader(tmp_path: Path) -> None:
    """15 ms for each batch, more than the 5 ms of the model."""
    found = only(planted(tmp_path, "slow-loader"), "data-bound")
    assert found.evidence["share"] > 0.5
    assert found.evidence["typical_ns"] > 15e6


def test_one_slow_batch_in_20(tmp_path: Path) -> None:
    """Which ones they are, and how slow."""
    found = only(planted(tmp_path, "burst"), "data-bound")
    assert "every 20th batch" in found.sentence
    assert found.steps == (7, 27, 47, 67, 87, 107)
    assert found.evidence["slow_ns"] == pytest.approx(0.3e9, rel=0.003)


def test_pauses_outside_of_the_step(tmp_path: Path) -> None:
    """200 ms after every tenth step."""
    found = only(planted(tmp_path, "pauses"), "pauses")
    assert "follows every 10th step" in found.sentence
    assert set(range(9, 119, 10)) <= set(found.steps)
    assert found.evidence["slow_ns"] == pytest.approx(0.2e9, rel=0.003)


@pytest.mark.full
def test_a_slow_rank_in_forward(tmp_path: Path) -> None:
    """The rank that is slow is named, not the one that waits for it in backward."""
    found = only(planted(tmp_path, "slow-rank-forward", ranks=2), "straggler")
    assert (found.ranks, found.evidence["phase"]) == ((1,), "forward")
    assert len(found.steps) > 100


@pytest.mark.full
def test_a_slow_rank_in_the_loader(tmp_path: Path) -> None:
    """And the phase."""
    found = only(planted(tmp_path, "slow-rank-loader", ranks=2), "straggler")
    assert (found.ranks, found.evidence["phase"]) == ((1,), "data")
    assert len(found.steps) > 100


def test_a_crash(tmp_path: Path) -> None:
    """The error and the step."""
    found = only(planted(tmp_path, "crash", code=1), "died")
    assert found.steps == (150,)
    assert "ValueError: the batch of step 150 is broken" in found.sentence


def test_an_overfit(tmp_path: Path) -> None:
    """Since which step."""
    found = only(planted(tmp_path, "overfit"), "overfitting")
    assert found.steps[0] == pytest.approx(120, abs=5)
    assert found.evidence["best"] == pytest.approx(1.17, abs=0.05)


@pytest.mark.full
def test_every_tenth_step_is_slow(tmp_path: Path) -> None:
    """Four times as slow: which ones, and in which phase."""
    found = only(planted(tmp_path, "tenth"), "slow-steps")
    assert "Every 10th step takes" in found.sentence
    assert found.steps[:3] == (9, 19, 29)
    assert found.evidence["phase"] == "forward"
