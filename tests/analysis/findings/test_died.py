"""Which rank of a distributed run ended first, and what followed from it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import stepwell
from stepwell.analysis.findings.died import End, _first_sentence, _split, find_first_death
from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.tracebacks import is_lost_peer
from tests.harness import environment, run_ranks

SECOND = 1_000_000_000
CLOSED = "RuntimeError: [a/gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:16570"


def _end(
    rank: int,
    status: str,
    at: float,
    error: str = "",
    *,
    waits: bool = False,
    signal: str | None = None,
) -> End:
    slack = 2 * SECOND if status == "killed" else 0
    time = int(at * SECOND)
    return End(rank, status, time, slack, error, None, signal, (), (), 40, waits)


@pytest.mark.parametrize(
    ("ends", "first"),
    [
        # A rank that was killed, and the error that its end led to.
        ([_end(0, "failed", 11, CLOSED), _end(1, "killed", 10)], [1]),
        # Also when its last sign of life is newer than the wait of the others.
        ([_end(0, "failed", 10, CLOSED), _end(1, "killed", 10.5)], [1]),
        # An error of its own comes before what the launcher killed afterwards.
        ([_end(0, "killed", 9.5, waits=True), _end(1, "failed", 10, "ValueError: x")], [1]),
        # Unless the killed rank was silent long before.
        ([_end(0, "killed", 5), _end(1, "failed", 10, "ValueError: x")], [0]),
        # Of two errors, the first that says nothing of a peer.
        ([_end(0, "failed", 9, CLOSED), _end(1, "failed", 10, "ValueError: x")], [1]),
        ([_end(0, "failed", 9, "KeyError: x"), _end(1, "failed", 10, "ValueError: x")], [0]),
        # A rank that finished early leaves the others alone.
        ([_end(0, "failed", 12, CLOSED), _end(1, "finished", 10)], [1]),
        # Ranks that ended too close to each other to be ordered: those that wait come last.
        ([_end(0, "killed", 10, waits=True), _end(1, "killed", 10.5)], [1, 0]),
        ([_end(0, "killed", 20), _end(1, "killed", 10)], [1]),
        # The launcher sends a signal to the rest once a rank is gone.
        ([_end(0, "killed", 10, signal="SIGTERM"), _end(1, "killed", 10.5)], [1]),
        # Only errors about peers: the earliest.
        ([_end(0, "failed", 11, CLOSED), _end(1, "failed", 10, CLOSED)], [1]),
        ([_end(0, "interrupted", 10), _end(1, "killed", 10.5)], [0]),
        ([_end(0, "interrupted", 10), _end(1, "interrupted", 10.5)], [0, 1]),
    ],
)
def test_the_rank_that_ended_first(ends: list[End], first: list[int]) -> None:
    """It is named first; errors of other ranks about a closed connection are consequences."""
    assert [end.rank for end in _split(ends)[0]] == first


def test_several_ranks_that_a_signal_terminated() -> None:
    """They are the subject of one sentence."""
    facts = cast(Facts, SimpleNamespace(ranks=2))
    both = [_end(rank, "killed", 10, signal="SIGTERM") for rank in (0, 1)]
    assert _first_sentence(facts, both) == "Ranks 0 and 1 were terminated by SIGTERM at step 40."
    assert _first_sentence(facts, both[:1]) == "Rank 0 was terminated by SIGTERM at step 40."


@pytest.mark.parametrize(
    "error",
    [
        CLOSED,
        "DistBackendError: NCCL communicator was aborted on rank 0",
        "RuntimeError: [1] Timed out waiting 1800000ms for recv operation to complete (gloo)",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "DistNetworkError: The client socket has timed out",
    ],
)
def test_errors_about_a_lost_peer(error: str) -> None:
    """They are consequences."""
    assert is_lost_peer(error)


@pytest.mark.parametrize(
    "error",
    [
        "ValueError: x",
        "RuntimeError: CUDA out of memory",
        "RuntimeError: DataLoader worker (pid 3) is killed by signal: Killed",
        "TimeoutError: the data server did not answer",
    ],
)
def test_errors_of_its_own(error: str) -> None:
    """They are causes."""
    assert not is_lost_peer(error)


TRAIN = """
import os, signal, torch
import stepwell
import torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
run = stepwell.init("ranks", dir="runs")
for step in range(10):
    run.set_step(step)
    with run.span("forward"):
        if step == 5 and dist.get_rank() == 1:
            {}
    with run.span("all_reduce", category="communication"):
        dist.all_reduce(torch.ones(1))
"""


def _sentence(folder: Path, statement: str) -> tuple[str, str]:
    run_ranks(TRAIN.format(statement), env=environment(), cwd=folder)
    (run,) = stepwell.list_runs(folder / "runs")
    (found,) = find_first_death(Facts(run))
    return run.status, found.sentence


def test_a_rank_that_is_killed(tmp_path: Path) -> None:
    """SIGKILL of one rank is named first, with step and place; then the error of the other rank."""
    status, sentence = _sentence(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    assert status == "failed"
    first = "Rank 1 was killed at step 5 inside forward, without an exception. Rank 0 then failed: "
    assert sentence.startswith(first)
    assert "Connection" in sentence


def test_a_rank_that_fails(tmp_path: Path) -> None:
    """An error of one rank comes before the error that it causes in the other."""
    _, sentence = _sentence(tmp_path, "raise ValueError('broken sample')")
    assert sentence.startswith(
        "Rank 1 failed at step 5 inside forward: ValueError: broken sample (<string>:12 in <module>)."
    )
    assert "Rank 0 then failed: " in sentence
