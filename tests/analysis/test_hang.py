"""What hangs and what merely takes its time: told by what is usual in the run itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stepwell.analysis.findings import Finding, findings
from stepwell.analysis.ranks import hang
from stepwell.reading import RecordedRun
from tests.analysis.time.writing import Process, Thread, Written, write_run

S = 1_000_000_000

Parts = list[tuple[str, float]]
STEP: Parts = [("data_loading", 0.2), ("model_forward", 0.5), ("all_reduce", 0.3)]


def category_of(name: str) -> str:
    """Messages are recorded with a category; their names alone are plain words."""
    return "comm" if name.startswith(("send", "receive")) else ""


def rank(
    number: int,
    last: Parts,
    *,
    steps: int = 10,
    before: Parts = (),  # type: ignore[assignment]
    status: str = "killed",
) -> Process:
    """A rank with steps of a second each, then spans inside of each other, open for so long at the end.

    ``before`` are done one after the other ahead of these; of ``last`` the outermost comes first, and the
    seconds say for how long each was open.
    """
    spans: list[Written] = []
    now = 0.0
    told = []
    for step in range(steps):
        told.append((round(now * S), step, None))
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
    return Process([Thread(spans)], round(end * S), told, number, status=status)


END = 10_000.0


def run_of(folder: Path, *ranks: Process) -> RecordedRun:
    return write_run(folder, *ranks)


def test_a_rank_that_never_comes(tmp_path: Path) -> None:
    """One reads for 100 s what it always had in 0.2, the others wait for it in the collective."""
    run = run_of(
        tmp_path,
        rank(0, [("all_reduce", 99)]),
        rank(1, [("data_loading", 100)]),
        rank(2, [("all_reduce", 98)]),
    )
    found = hang(run)
    assert found is not None
    assert found.collective == "all_reduce"
    assert [w.ranks for w in found.waiting] == [(0, 2)]
    assert [(m.rank, m.inside) for m in found.missing] == [(1, ("data_loading",))]
    assert found.sentence == (
        "ranks 0, 2 sit in all_reduce for 99 s (step 9); rank 1 never came: "
        "it is in data_loading for 100 s"
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
    """Rank 0 saves or validates alone: how long that may take is told by how long it took before."""
    run = run_of(
        tmp_path,
        rank(0, [(name, seconds)], before=before),
        rank(1, [("all_reduce", seconds - 1)]),
    )
    assert (hang(run) is not None) == is_hang


def test_what_is_inside_of_a_validation_is_validation(tmp_path: Path) -> None:
    """Its first batch takes longer than any of the training's: its workers start."""
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
    """The first time nobody knows how long a thing takes; later it is ten times as long as ever."""
    assert (hang(run_of(tmp_path, rank(0, last, steps=steps))) is not None) == is_hang


def test_a_fetch_that_was_as_long_before(tmp_path: Path) -> None:
    """A shard took 30 s to come: 40 s are nothing new, 400 are."""
    for seconds, is_hang in ((40, False), (299, False), (400, True)):
        run = run_of(tmp_path, rank(0, [("data_loading", seconds)], before=[("data_loading", 30)]))
        assert (hang(run) is not None) == is_hang


def test_all_are_there(tmp_path: Path) -> None:
    """None is missing: it is the network, or a deadlock."""
    found = hang(run_of(tmp_path, *(rank(i, [("all_reduce", 60)]) for i in range(3))))
    assert found is not None
    assert found.missing == ()
    assert found.waiting[0].ranks == (0, 1, 2)


def hang_of(run: RecordedRun) -> Finding:
    """What the report says about it."""
    (found,) = [finding for finding in findings(run) if finding.rule == "hang"]
    return found


def test_all_ranks_in_the_same_operation(tmp_path: Path) -> None:
    """Only then it is the network, or the data that they give."""
    found = hang_of(run_of(tmp_path, *(rank(i, [("all_reduce", 60)]) for i in range(3))))
    assert found.sentence == "Ranks 0, 1, 2 sit in all_reduce for 60 s (step 9)."
    assert found.advice.startswith("All ranks are in the same operation of the same step")


@pytest.mark.parametrize("before", [0, 1, 20])
def test_ranks_in_different_operations(tmp_path: Path, before: int) -> None:
    """A receive that was never made before is part of the deadlock, as are those of which there were many."""
    run = run_of(
        tmp_path,
        rank(0, [("all_reduce", 59)]),
        rank(1, [("receive", 60)], before=[("receive", 0.1)] * before),
    )
    found = hang_of(run)
    assert found.sentence == (
        "Rank 0 waits in all_reduce for 59 s (step 9) while rank 1 is in receive for 60 s (step 9): "
        "the ranks are in different operations."
    )
    assert found.advice.startswith("All ranks of a process group must call the same operations")
    assert found.ranks == (0, 1)


def test_a_send_and_its_receive(tmp_path: Path) -> None:
    """They belong together: that they are different says nothing."""
    sends: Parts = [("send", 0.1), ("receive", 0.1)] * 3
    run = run_of(
        tmp_path,
        rank(0, [("send.wait", 60)], before=[*sends, ("send.wait", 0.1)] * 3),
        rank(1, [("receive", 60)], before=sends),
    )
    found = hang_of(run)
    assert "different operations" not in found.sentence
    assert found.advice.startswith("Check that each send has a receive")


def test_the_same_operation_of_different_steps(tmp_path: Path) -> None:
    """Both began as many; one of them is a step behind."""
    more: Parts = [("all_reduce", 0.3)]
    run = run_of(
        tmp_path,
        rank(0, [("all_reduce", 60)]),
        rank(1, [("all_reduce", 60)], steps=9, before=more),
    )
    found = hang_of(run)
    assert found.sentence == (
        "Rank 0 sits in all_reduce for 60 s (step 9); rank 1 in all_reduce for 60 s (step 8)."
    )
    assert found.advice.startswith("The ranks are not all in the same operation of the same step")


def test_the_first_collective_may_take_its_time(tmp_path: Path) -> None:
    for seconds, is_hang in ((60, False), (301, True)):
        ranks = [rank(i, [("all_reduce", seconds)], steps=0) for i in range(2)]
        assert (hang(run_of(tmp_path, *ranks)) is not None) == is_hang


def test_a_rank_that_is_gone(tmp_path: Path) -> None:
    """It has finished, and has come to fewer collectives than the one that waits."""
    found = hang(run_of(tmp_path, rank(0, [("all_reduce", 60)]), rank(1, [], status="finished")))
    assert found is not None
    assert found.sentence.endswith("rank 1 never came: it has finished")


@pytest.mark.parametrize(
    ("status", "words", "is_told"),
    [("killed", "it was killed 60 s before", False), ("finished", "it finished 60 s before", True)],
)
def test_a_rank_that_ended_before(tmp_path: Path, status: str, words: str, is_told: bool) -> None:
    """The others wait for it in vain. That it was killed is the finding, and the wait a consequence."""
    gone = rank(1, [("data_loading", 100)] if status == "killed" else [], status=status)
    run = run_of(tmp_path, rank(0, [("all_reduce", 60)]), replace(gone, end=round((END - 60) * S)))
    found = hang(run)
    assert found is not None
    assert found.sentence.endswith(f"rank 1 never came: {words}")
    told = [finding.rule for finding in findings(run) if finding.rule != "low-goodput"]
    assert told == (["died", "hang"] if is_told else ["died"])


def test_a_collective_within_a_pass(tmp_path: Path) -> None:
    """DDP waits in backward, which has no span of the collective."""
    run = run_of(
        tmp_path,
        rank(0, [("training_single_iteration", 60), ("model_forward", 59)]),
        rank(1, [("training_single_iteration", 60), ("a lock", 59)]),
    )
    found = hang(run)
    assert found is not None
    assert found.waiting[0].ranks == (0,)
    assert [(m.rank, m.inside[-1]) for m in found.missing] == [(1, "a lock")]
    saving = rank(1, [("checkpoint_save_sync", 59)])
    assert hang(run_of(tmp_path, rank(0, [("model_forward", 58)]), saving)) is None


def test_a_rank_in_an_earlier_pass(tmp_path: Path) -> None:
    """It has not come to the pass in which the others wait, although it is in one."""
    inside = ("training_single_iteration", 61)
    run = run_of(
        tmp_path,
        rank(0, [inside, ("model_backward", 59)], before=[("model_backward", 0.5)] * 3),
        rank(1, [inside, ("model_forward", 60)], before=[("model_backward", 0.5)] * 3),
        rank(2, [inside, ("model_backward", 59)], before=[("model_backward", 0.5)] * 3),
    )
    found = hang(run)
    assert found is not None
    assert [w.ranks for w in found.waiting] == [(0, 2)]
    assert [(m.rank, m.inside[-1]) for m in found.missing] == [(1, "model_forward")]
