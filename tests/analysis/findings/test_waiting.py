"""Who waits for whom in real DDP trainings: the rank that comes late is named, never those that wait for it.

The gradients are averaged by gloo, and the clock of each rank is set forward by hand, so all times are exact.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.findings.test_planted import only, planted
from tests.harness.marks import others_in_full

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

EVERY_20 = tuple(range(19, 119, 20))
"""The 20th, 40th, … step. After the last one nobody waits."""
WORLDS = [2, pytest.param(4, marks=pytest.mark.full)]


@pytest.mark.parametrize("ranks", WORLDS)
@pytest.mark.parametrize("case", others_in_full(["save", "save-barrier"], ["save"]))
def test_rank_0_saves(tmp_path: Path, case: str, ranks: int) -> None:
    """Three checkpoints of half a second are one finding, with their share of the wall time."""
    found = only(planted(tmp_path, case, ranks), "checkpoint-stall")
    assert (found.ranks, found.steps) == ((0,), (39, 79, 119))
    assert found.cost_ns == pytest.approx(1.5e9, rel=1e-3)
    wait = "rank waits" if ranks == 2 else "ranks wait"
    assert found.sentence.startswith(
        f"Rank 0 saves checkpoints for 500 ms every 40 steps (3 times) while the other {wait}. "
    )
    # 120 steps of about 9.5 ms, and the checkpoints.
    assert found.evidence["share"] == pytest.approx(1.5 / (120 * 0.0095 + 1.5), rel=0.05)


@pytest.mark.full
def test_all_ranks_save(tmp_path: Path) -> None:
    """Nobody waits for anybody."""
    found = only(planted(tmp_path, "everybody-saves", 2), "checkpoint-stall")
    assert found.ranks == ()
    assert found.sentence.startswith(
        "Training stops for 500 ms every 40 steps (3 times) to save checkpoints."
    )


@pytest.mark.full
@pytest.mark.parametrize("ranks", WORLDS)
def test_rank_0_validates_alone(tmp_path: Path, ranks: int) -> None:
    """Validation has a name of its own, and its own advice."""
    found = only(planted(tmp_path, "validate", ranks), "straggler")
    assert (found.ranks, found.steps) == ((0,), (39, 79))
    assert found.evidence["phase"] == "validation"
    assert found.cost_ns == pytest.approx(1.0e9, rel=0.01)
    assert "Rank 0 validates alone for 500 ms" in found.sentence
    assert "on all ranks" in found.advice


@pytest.mark.full
@pytest.mark.parametrize("ranks", WORLDS)
def test_a_rank_that_sleeps_once(tmp_path: Path, ranks: int) -> None:
    """Also if it takes as long as a hang: it is over, and only the rank that slept is named."""
    found = only(planted(tmp_path, "sleep", ranks), "straggler")
    assert (found.ranks, found.steps) == ((1,), (80,))
    assert found.evidence["phase"] == "training"
    assert found.cost_ns == pytest.approx(20e9, rel=1e-3)
    assert "Rank 1 spends 20 s in code outside any span in step 80." in found.sentence
    assert found.evidence["share"] == pytest.approx(20 / 21.15, rel=0.01)


@pytest.mark.full
@pytest.mark.parametrize(
    ("case", "phase", "words"),
    [
        ("sleeps", "training", "in code outside any span"),
        ("upload", "training", "in the span 'upload metrics'"),
        ("gc", "garbage collection", "in garbage collection"),
    ],
)
def test_a_rank_that_is_late_every_20_steps(
    tmp_path: Path, case: str, phase: str, words: str
) -> None:
    """Its work is named: its own span, a garbage collection, or code in no span."""
    found = only(planted(tmp_path, case, 2), "straggler")
    assert (found.ranks, found.steps) == ((1,), EVERY_20)
    assert (found.evidence["phase"], found.evidence["period"]) == (phase, 20)
    assert found.cost_ns == pytest.approx(5 * 0.2e9, rel=0.01)
    assert words in found.sentence
    assert "every 20 steps (in steps 19, 39, 59, …)" in found.sentence
