"""Hangs, distinguished from slow operations by the usual durations in the run itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stepwell.analysis.findings import Finding, findings
from stepwell.analysis.ranks import hang
from stepwell.reading import RecordedRun
from tests.analysis.timeline.writing import Process, Thread, Written, write_run

S = 1_000_000_000

Parts = list[tuple[str, float]]
STEP: Parts = [("data_loading", 0.2), ("model_forward", 0.5), ("all_reduce", 0.3)]


def category_of(name: str) -> str:
    """Return the category of a span: messages have one, because their names alone say nothing."""
    return "comm" if name.startswith(("send", "receive")) else ""


def rank(
    number: int,
    last: Parts,
    *,
    steps: int = 10,
    before: Parts = (),  # type: ignore[assignment]
    status: str = "killed",
) -> Process:
    """A rank with steps of one second each, then nested spans that have been open for the given times.

    ``before`` are done one after the other ahead of these; of ``last`` the outermost comes first, and the
    seconds say for how long each was open.
    """
    spans: list[Written] = []
    now = 0.0
    steps_set = []
    for step in range(steps):
        steps_set.append((round(now * S), step, None))
        for name, seconds in STEP:
            spans.append(Written(name, round(now * S), round((now + seconds) * S)))
            now += seconds
    for name, seconds in before:
        ended = round((now + seconds) * S)
        spans.append(Written(name, round(now * S), ended, category=category_of(name)))
        now += seconds
    end = END
    parent = None
    for name, seconds in last:
        began = round((end - seconds) * S)
        spans.append(Written(name, began, None, parent, category_of(name)))
        parent = len(spans) - 1
    return Process([Thread(spans)], round(end * S), steps_set, number, status=status)


END = 10_000.0


def run_of(folder: Path, *ranks: Process) -> RecordedRun:
    return write_run(folder, *ranks)


def test_a_rank_that_never_comes(tmp_path: Path) -> None:
    """One rank loads data for 100 s instead of 0.2 s; the others wait for it in the collective."""
    run = run_of(
        tmp_path,
        rank(0, [("all_reduce", 99)]),
        rank(1, [("data_loading", 100)]),
        rank(2, [("all_reduce", 98)]),
    )
    result = hang(run)
    assert result is not None
    assert result.collective == "all_reduce"
    assert [w.ranks for w in result.waiting] == [(0, 2)]
    assert [(m.rank, m.inside) for m in result.missing] == [(1, ("data_loading",))]
    assert result.sentence == (
        "ranks 0, 2 have been in all_reduce for 1 min 39 s (step 9); rank 1 never arrived: "
        "it has been in data_loading for 1 min 40 s"
    )


@pytest.mark.parametrize(
    ("name", "seconds", "before", "is_hang"),
    [
        ("checkpoint_save_sync", 200, [], False),
        ("checkpoint_save_sync", 200, [("checkpoint_save_sync", 30)], False),
        ("checkpoint_save_sync", 200, [("checkpoint_save_sync", 5)], True),
        ("validation_loop", 900, [], False),
        ("validation_loop", 4000, [], True),
        ("validation_loop", 900, [("validation_loop", 800)], False),
        ("validation_loop", 1500, [("validation_loop", 800)], True),
        ("my own thing", 200, [], True),
    ],
)
def test_others_wait_while_one_works(
    tmp_path: Path, name: str, seconds: float, before: Parts, is_hang: bool
) -> None:
    """Rank 0 saves or validates alone: earlier durations determine how long that may take."""
    run = run_of(
        tmp_path,
        rank(0, [(name, seconds)], before=before),
        rank(1, [("all_reduce", seconds - 1)]),
    )
    assert (hang(run) is not None) == is_hang


def test_what_is_inside_of_a_validation_is_validation(tmp_path: Path) -> None:
    """Its first batch takes longer than any training batch, because its workers start."""
    inside = [("validation_loop", 45), ("data_loading", 44)]
    assert hang(run_of(tmp_path, rank(0, inside))) is None


@pytest.mark.parametrize(
    ("last", "steps", "is_hang"),
    [
        ([("application", 9000)], 0, False),
        ([("epoch", 9000)], 10, False),
        ([("model_initialization", 200)], 0, False),
        ([("build the index", 2000)], 0, False),
        ([("model_forward", 200)], 0, False),
        ([("data_loading", 200)], 0, False),
        ([("data_loading", 301)], 0, True),
        ([("distributed_code_initialization", 301)], 0, True),
        ([("data_loading", 11)], 10, True),
        ([("data_loading", 9)], 10, False),
        ([("model_forward", 4.9)], 10, False),
        ([("model_forward", 15)], 10, True),
    ],
)
def test_one_rank(tmp_path: Path, last: Parts, steps: int, is_hang: bool) -> None:
    """The limit is fixed at first; later it is ten times the longest duration so far."""
    assert (hang(run_of(tmp_path, rank(0, last, steps=steps))) is not None) == is_hang


def test_a_fetch_that_was_as_long_before(tmp_path: Path) -> None:
    """A shard took 30 s before: 40 s are not a hang, 400 s are."""
    for seconds, is_hang in ((40, False), (299, False), (400, True)):
        run = run_of(tmp_path, rank(0, [("data_loading", seconds)], before=[("data_loading", 30)]))
        assert (hang(run) is not None) == is_hang


def test_all_are_there(tmp_path: Path) -> None:
    """No rank is missing: it is the network or a deadlock."""
    result = hang(run_of(tmp_path, *(rank(i, [("all_reduce", 60)]) for i in range(3))))
    assert result is not None
    assert result.missing == ()
    assert result.waiting[0].ranks == (0, 1, 2)


def hang_of(run: RecordedRun) -> Finding:
    """Return the finding of the report."""
    (result,) = [finding for finding in findings(run) if finding.rule == "hang"]
    return result


def test_all_ranks_in_the_same_operation(tmp_path: Path) -> None:
    """Only then it is the network or the data they pass."""
    result = hang_of(run_of(tmp_path, *(rank(i, [("all_reduce", 60)]) for i in range(3))))
    assert result.sentence == "Ranks 0, 1, 2 have been in all_reduce for 1 min 00 s (step 9)."
    assert result.advice.startswith("All ranks are in the same operation of the same step")


@pytest.mark.parametrize("before", [0, 1, 20])
def test_ranks_in_different_operations(tmp_path: Path, before: int) -> None:
    """A receive is part of the deadlock, whether it was used before or not."""
    run = run_of(
        tmp_path,
        rank(0, [("all_reduce", 59)]),
        rank(1, [("receive", 60)], before=[("receive", 0.1)] * before),
    )
    result = hang_of(run)
    assert result.sentence == (
        "Rank 0 has been in all_reduce for 59 s (step 9), rank 1 in receive for 1 min 00 s (step 9): "
        "the ranks are in different operations."
    )
    assert result.advice.startswith("All ranks of a process group must call the same operations")
    assert result.ranks == (0, 1)


def test_a_send_and_its_receive(tmp_path: Path) -> None:
    """They belong together: their different names mean nothing."""
    sends: Parts = [("send", 0.1), ("receive", 0.1)] * 3
    run = run_of(
        tmp_path,
        rank(0, [("send.wait", 60)], before=[*sends, ("send.wait", 0.1)] * 3),
        rank(1, [("receive", 60)], before=sends),
    )
    result = hang_of(run)
    assert "different operations" not in result.sentence
    assert result.advice.startswith("Check that each send has a receive")


def test_the_same_operation_of_different_steps(tmp_path: Path) -> None:
    """Both began equally many; one of them is a step behind."""
    more: Parts = [("all_reduce", 0.3)]
    run = run_of(
        tmp_path,
        rank(0, [("all_reduce", 60)]),
        rank(1, [("all_reduce", 60)], steps=9, before=more),
    )
    result = hang_of(run)
    assert result.sentence == (
        "Rank 0 has been in all_reduce for 1 min 00 s (step 9); "
        "rank 1 in all_reduce for 1 min 00 s (step 8)."
    )
    assert result.advice.startswith("The ranks are not all in the same operation of the same step")


def test_the_first_collective_may_take_its_time(tmp_path: Path) -> None:
    for seconds, is_hang in ((60, False), (301, True)):
        ranks = [rank(i, [("all_reduce", seconds)], steps=0) for i in range(2)]
        assert (hang(run_of(tmp_path, *ranks)) is not None) == is_hang


def test_a_rank_that_is_gone(tmp_path: Path) -> None:
    """It has finished, and began fewer collectives than the rank that waits."""
    result = hang(run_of(tmp_path, rank(0, [("all_reduce", 60)]), rank(1, [], status="finished")))
    assert result is not None
    assert result.sentence.endswith("rank 1 never arrived: it has finished")


@pytest.mark.parametrize(
    ("status", "words", "is_reported"),
    [
        ("killed", "it was killed 1 min 00 s earlier", False),
        ("finished", "it finished 1 min 00 s earlier", True),
    ],
)
def test_a_rank_that_ended_before(
    tmp_path: Path, status: str, words: str, is_reported: bool
) -> None:
    """The others wait for a dead rank: its death is the finding, the wait a consequence."""
    gone = rank(1, [("data_loading", 100)] if status == "killed" else [], status=status)
    run = run_of(tmp_path, rank(0, [("all_reduce", 60)]), replace(gone, end=round((END - 60) * S)))
    result = hang(run)
    assert result is not None
    assert result.sentence.endswith(f"rank 1 never arrived: {words}")
    rules = [finding.rule for finding in findings(run) if finding.rule != "low-goodput"]
    assert rules == (["died", "hang"] if is_reported else ["died"])


def test_a_collective_within_a_pass(tmp_path: Path) -> None:
    """DDP waits in the backward pass, without a span of the collective."""
    run = run_of(
        tmp_path,
        rank(0, [("training_single_iteration", 60), ("model_forward", 59)]),
        rank(1, [("training_single_iteration", 60), ("a lock", 59)]),
    )
    result = hang(run)
    assert result is not None
    assert result.waiting[0].ranks == (0,)
    assert [(m.rank, m.inside[-1]) for m in result.missing] == [(1, "a lock")]
    saving = rank(1, [("checkpoint_save_sync", 59)])
    assert hang(run_of(tmp_path, rank(0, [("model_forward", 58)]), saving)) is None


def test_a_rank_in_an_earlier_pass(tmp_path: Path) -> None:
    """It is in a pass, but not yet in the one in which the others wait."""
    inside = ("training_single_iteration", 61)
    run = run_of(
        tmp_path,
        rank(0, [inside, ("model_backward", 59)], before=[("model_backward", 0.5)] * 3),
        rank(1, [inside, ("model_forward", 60)], before=[("model_backward", 0.5)] * 3),
        rank(2, [inside, ("model_backward", 59)], before=[("model_backward", 0.5)] * 3),
    )
    result = hang(run)
    assert result is not None
    assert [w.ranks for w in result.waiting] == [(0, 2)]
    assert [(m.rank, m.inside[-1]) for m in result.missing] == [(1, "model_forward")]
