"""Delivery: each record exactly once, whichever process is killed; training does not wait for a backend."""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell import Run
from stepwell._core import files
from stepwell._core.errors import StepwellError
from stepwell.loggers.delivery.backend import NotYet
from stepwell.loggers.delivery.feed import Busy, LogDelivery, LogFeed, start_delivery
from stepwell.loggers.delivery.forwarder import ForwardedLog, forward_log
from tests.durability.helpers import Child
from tests.exporters.programs import end
from tests.harness import has_ended, wait_until
from tests.journal.logging_rows import folder_of, log_for, write_line
from tests.loggers.lines_backend import LinesBackend

BACKEND = "tests.loggers.lines_backend.LinesBackend"
BEGIN = """
from stepwell.loggers.delivery.feed import start_delivery
from tests.journal.logging_rows import log_for, write_line
from tests.loggers.lines_backend import LinesBackend
run = init("training", dir="runs")
backend = LinesBackend(number=1, **options)
write_line("logger", "lines", number=1, to="lines", **backend.description())
delivery = start_delivery(run, backend)
answer = [str(run.path), run.exporters[0].process_id]
"""
LOG = """
for i in range(begin, end): log_for("1", "loss", i / 2, i)
answer = None
"""


class Training(Child):
    """A process that trains and logs to a backend of lines."""

    def __init__(self, root: Path, **options: Any) -> None:
        super().__init__(root, STEPWELL_FINISH_TIMEOUT="60")
        self.out = root / "out.jsonl"
        path, self.sidecar = self.do(BEGIN, options={"path": str(self.out), **options})
        self.path = Path(path)

    def log(self, begin: int, end: int) -> None:
        self.do(LOG, begin=begin, end=end)

    def drain(self, timeout: float = 100.0) -> bool:
        return bool(self.do("answer = run.flush(timeout)", timeout=timeout))


@contextmanager
def training(root: Path, **options: Any) -> Iterator[Training]:
    with Training(root, **options) as trainer:
        try:
            yield trainer
        finally:
            end(trainer.sidecar)


def steps(out: Path) -> list[int]:
    """The steps that arrived, each with the value that it must have."""
    if not out.exists():
        return []
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    for _, name, step, value, _ in lines:
        assert (name, value) == ("loss", step / 2)
    return [line[2] for line in lines]


def calls(out: Path, kind: str) -> list[list[Any]]:
    found = [json.loads(line) for line in Path(f"{out}.calls").read_text().splitlines()]
    return [call[1:] for call in found if call[0] == kind]


def kept(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (folder_of(run) / "delivery-lines-1.json").read_text(encoding="utf-8")
    )
    return found


# The usual


def test_what_is_logged_arrives_while_it_runs_and_at_its_end(tmp_path: Path) -> None:
    """In another process, in batches that respect the limit, with the status last."""
    with training(tmp_path) as trainer:
        trainer.log(0, 350)
        assert trainer.drain()
        assert steps(trainer.out) == list(range(350))
        ((rank, application, pid, state),) = calls(trainer.out, "open")
        assert (rank, application, pid, state) == (0, "training", trainer.sidecar, {})
        trainer.log(350, 360)
        trainer.do("run.finish('failed')\nanswer = None")
        assert steps(trainer.out) == list(range(360))
        assert calls(trainer.out, "finish") == [["failed"]]
        assert all(count <= 100 and not again for count, again in calls(trainer.out, "deliver"))
        assert trainer.do("answer = delivery.state()")["size"] == trainer.out.stat().st_size
        assert trainer.do("answer = warnings") == []
        assert not list(folder_of(trainer.path).glob("export-*"))


@pytest.mark.full
def test_a_logger_that_ends_is_finished_while_the_run_goes_on(tmp_path: Path) -> None:
    """Its sidecar ends with it, and is not started again at the end of the run."""
    with training(tmp_path) as trainer:
        trainer.log(0, 10)
        trainer.do("write_line('logger', 'lines', number=1, status='finished')\nanswer = None")
        wait_until(lambda: has_ended(trainer.sidecar))
        assert calls(trainer.out, "finish") == [["finished"]]
        trainer.do("delivery.close(10)\nanswer = None")
        assert trainer.drain()
        trainer.do("run.finish()\nanswer = None")
        assert trainer.do("answer = run.exporters[0]._starts") == 1
        assert trainer.do("answer = [delivery.drain(1), warnings]") == [True, []]
    assert steps(trainer.out) == list(range(10))


def test_in_a_thread_of_the_process(recorded: Run, tmp_path: Path) -> None:
    """The same delivery, without a separate process; flush also works after it was closed."""

    class Inside(LinesBackend):
        out_of_process = False

    out = tmp_path / "out.jsonl"
    delivery = start_delivery(recorded, Inside(number=1, path=str(out)))
    for i in range(250):
        log_for("1", "loss", i / 2, i)
    assert delivery.drain(10)
    assert steps(out) == list(range(250))
    write_line("logger", "lines", number=1, status="killed")
    delivery.close(10)
    assert calls(out, "finish") == [["killed"]]
    assert recorded.flush(100)
    assert delivery.state()["batches"] >= 3


def test_without_recording_nothing_is_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """STEPWELL_MODE=off switches it off, without an error."""
    monkeypatch.setenv("STEPWELL_MODE", "off")
    run = stepwell.init("t", dir=tmp_path / "runs")
    delivery: LogDelivery = start_delivery(run, LinesBackend(number=1, path=str(tmp_path / "out")))
    assert (delivery.drain(1), delivery.state()) == (True, {})
    delivery.close(1)
    assert not (tmp_path / "out.calls").exists()


# Killed


def test_a_sidecar_that_is_killed_in_the_midst_of_a_batch(tmp_path: Path) -> None:
    """The same batch comes again, said to, and what follows; nothing twice, nothing lost."""
    with training(tmp_path, die_at=2) as trainer:
        trainer.log(0, 1000)
        wait_until(lambda: has_ended(trainer.sidecar))
        assert Path(f"{trainer.out}.died").exists()
        assert len(steps(trainer.out)) > 200, "it died with half of a batch written"
        before = kept(trainer.path)
        assert before["intent"] is not None
        assert before["state"]["batches"] == 2
        trainer.log(1000, 1100)
        trainer.do("run.finish()\nanswer = None")
    assert steps(trainer.out) == list(range(1100))
    assert [again for _, again in calls(trainer.out, "deliver")].count(True) == 1
    assert calls(trainer.out, "finish") == [["finished"]]
    assert calls(trainer.out, "open")[1][3] == before["state"]
    assert kept(trainer.path)["intent"] is None


@pytest.mark.full
def test_sidecars_that_are_killed_again_and_again(tmp_path: Path) -> None:
    """At any moment; each new one continues."""
    with training(tmp_path) as trainer:
        begin = 0
        for pause in (0.05, 0.2, 0.6):
            trainer.log(begin, begin + 3000)
            begin += 3000
            time.sleep(pause)
            end(trainer.do("answer = run.exporters[0].process_id"))
            # What flush waits for restarts it.
            assert trainer.drain()
            assert steps(trainer.out) == list(range(begin))
        trainer.do("run.finish()\nanswer = None")
    assert steps(trainer.out) == list(range(begin))


def test_a_sidecar_that_is_killed_more_often_than_it_may_fail(tmp_path: Path) -> None:
    """Being killed does not count as a failure: the end waits for a restarted sidecar."""
    with training(tmp_path) as trainer:
        for number in range(6):
            trainer.log(10 * number, 10 * number + 10)
            end(trainer.do("answer = run.exporters[0].process_id"))
            trainer.do("run.exporters[0].hurry()")
        trainer.do("run.finish()\nanswer = None")
        assert trainer.do("answer = warnings") == []
    assert steps(trainer.out) == list(range(60))
    assert calls(trainer.out, "finish") == [["finished"]]


def test_a_sidecar_that_was_killed_comes_back_while_training_goes_on(tmp_path: Path) -> None:
    """Nobody has to flush for that."""
    with training(tmp_path) as trainer:
        trainer.log(0, 10)
        assert trainer.drain()
        end(trainer.sidecar)
        trainer.log(10, 20)
        wait_until(lambda: steps(trainer.out) == list(range(20)))
        # It has ended with its logger: then it does not come back.
        trainer.do("write_line('logger', 'lines', number=1, status='finished')\nanswer = None")
        pid = trainer.do("answer = run.exporters[0].process_id")
        wait_until(lambda: has_ended(pid))
        trainer.do("run._exports.keep_running()\nanswer = None")
        assert trainer.do("answer = run.exporters[0]._starts") == 2
        trainer.do("run.finish()\nanswer = None")


def test_a_sidecar_that_is_told_to_end_is_started_again(tmp_path: Path) -> None:
    """A scheduler sends SIGTERM to all processes, and training may continue for a while."""
    with training(tmp_path) as trainer:
        trainer.log(0, 50)
        assert trainer.drain()
        os.kill(trainer.sidecar, signal.SIGTERM)
        wait_until(lambda: has_ended(trainer.sidecar))
        trainer.log(50, 60)
        trainer.do("run.finish()\nanswer = None")
    assert steps(trainer.out) == list(range(60))
    assert calls(trainer.out, "finish") == [["finished"]]


def test_a_trainer_that_is_killed(tmp_path: Path) -> None:
    """Its sidecar delivers the rest, that it was killed, and ends."""
    with training(tmp_path) as trainer:
        trainer.log(0, 5000)
        trainer.kill()
        wait_until(lambda: has_ended(trainer.sidecar))
    assert steps(trainer.out) == list(range(5000))
    assert calls(trainer.out, "finish") == [["killed"]]


def test_both_killed_and_forwarded_afterwards(tmp_path: Path) -> None:
    """The rest comes, once, however often it is forwarded."""
    with training(tmp_path, die_at=3) as trainer:
        trainer.log(0, 2000)
        wait_until(lambda: has_ended(trainer.sidecar))
        trainer.kill()
    half = len(steps(trainer.out))
    assert 300 < half < 2000
    (done,) = forward_log(trainer.path, BACKEND)
    assert done == ForwardedLog(folder_of(trainer.path).name, 1700, running=False)
    assert steps(trainer.out) == list(range(2000))
    assert calls(trainer.out, "finish") == [["killed"]]
    opened = len(calls(trainer.out, "open"))
    assert forward_log(trainer.path, BACKEND)[0].records == 0
    assert len(calls(trainer.out, "open")) == opened
    assert steps(trainer.out) == list(range(2000))


# Down, slow, broken


def test_a_backend_that_is_down_gets_what_it_missed(tmp_path: Path) -> None:
    """Every try of a batch is of the same one."""
    down = tmp_path / "out.jsonl.down"
    with training(tmp_path) as trainer:
        trainer.log(0, 10)
        assert trainer.drain()
        down.touch()
        trainer.log(10, 300)
        assert not trainer.drain(1.5)
        down.unlink()
        assert trainer.drain()
        tries = calls(trainer.out, "deliver")[1:]
        assert tries[0] == [100, False]
        assert tries[1] == [100, True]
        trainer.do("run.finish()\nanswer = None")
    assert steps(trainer.out) == list(range(300))


@pytest.mark.full
def test_a_backend_that_hangs_holds_up_nobody(tmp_path: Path) -> None:
    """The end of training is bounded; the sidecar continues when the backend answers again."""
    hang = tmp_path / "out.jsonl.hang"
    hang.touch()
    with training(tmp_path) as trainer:
        trainer.log(0, 100)
        # Only a sidecar that hangs in the backend keeps others from delivering.
        wait_until(Path(f"{trainer.out}.calls").exists)
        # This returns although the backend hangs until the end of this test.
        trainer.do("os.environ['STEPWELL_FINISH_TIMEOUT'] = '1'\nrun.finish()\nanswer = None")
        (warning,) = trainer.do("answer = warnings")
        assert f"stepwell forward {trainer.path} --to lines" in warning
        assert trainer.end() == 0
        with pytest.raises(Exception, match="another process is delivering these records"):
            forward_log(trainer.path, BACKEND)
        hang.unlink()
        wait_until(lambda: has_ended(trainer.sidecar))
    assert steps(trainer.out) == list(range(100))
    assert calls(trainer.out, "finish") == [["finished"]]


# One feed, step by step


def feed_of(run: Run, out: Path, **options: Any) -> LogFeed:
    return LogFeed(LinesBackend(number=1, path=str(out), **options), folder_of(run.path))


@pytest.mark.parametrize("who", ["me:hunter2", "hunter2", "me:hun@ter2"])
def test_an_error_does_not_tell_secrets(
    recorded: Run, tmp_path: Path, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SDKs put whole addresses into their messages, which are printed and written into the run."""

    def refuse(*_: Any) -> None:
        raise ConnectionError(f"request to https://{who}@host/api?token=hunter2 failed")

    monkeypatch.setattr(LinesBackend, "open", refuse)
    feed = feed_of(recorded, tmp_path / "out")
    feed.step()
    assert feed.last_error == "ConnectionError: request to https://***@host/api?token=*** failed"
    feed.close()


def test_only_one_delivers_at_a_time(recorded: Run, tmp_path: Path) -> None:
    """The other waits, and continues where the first one stopped."""
    out = tmp_path / "out"
    first, second = feed_of(recorded, out), feed_of(recorded, out)
    log_for("1", "loss", 0.0, 0)
    assert first.step()
    with pytest.raises(Busy):
        second.claim()
    assert not second.step()
    assert second.failures == 0
    first.close()
    log_for("1", "loss", 0.5, 1)
    second._not_before = 0.0
    assert second.step()
    second.close()
    assert steps(out) == [0, 1]


def test_what_another_rank_publishes_is_waited_for(recorded: Run, tmp_path: Path) -> None:
    """Waiting is not a failure, and the first one to publish counts."""
    out = tmp_path / "out"
    waiting = feed_of(recorded, out, wait_for="run/1")
    log_for("1", "loss", 0.0, 0)
    assert not waiting.step()
    assert (waiting.failures, waiting.quarantined) == (0, False)
    assert 0 < waiting.pause() <= 0.5
    other = LinesBackend(rank=3, path="")
    other.run_folder = recorded.path
    assert other.publish("run/1", {"rank": 3}) == {"rank": 3}
    assert LinesBackend.publish(other, "run/1", {"rank": 4}) == {"rank": 3}
    assert waiting.drain(time.monotonic() + 5)
    assert steps(out) == [0]
    assert [p.name for p in (recorded.path / "backends").iterdir()] == ["run_1.json"]
    waiting.close()


def test_a_state_that_cannot_be_kept_is_no_delivery(
    recorded: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the note of what is about to be delivered, it could come twice."""
    out = tmp_path / "out"
    feed = feed_of(recorded, out)
    log_for("1", "loss", 0.0, 0)

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left")

    with monkeypatch.context() as patch:
        patch.setattr(files, "sync", full)
        assert not feed.step()
    assert "No space" in str(feed.last_error)
    assert calls(out, "deliver") == []
    assert feed.drain(time.monotonic() + 5)
    assert calls(out, "deliver") == [[1, False]]
    feed.close()


def test_a_damaged_state_is_for_somebody_to_decide(recorded: Run, tmp_path: Path) -> None:
    """Starting again would deliver everything twice."""
    feed = feed_of(recorded, tmp_path / "out")
    feed.memory.path.write_text("{")
    with pytest.raises(StepwellError, match="is damaged, so it is unknown"):
        feed.claim()
    feed.close()


def test_what_a_backend_noted_before_it_failed_is_kept(recorded: Run, tmp_path: Path) -> None:
    """A run that it made must not be made again by the next one."""

    class Made(LinesBackend):
        def open(self, source: Any, state: dict[str, Any]) -> None:
            state["run_id"] = "abc"
            raise ConnectionError("gone again")

    backend = Made(number=1, path=str(tmp_path / "out"))
    feed = LogFeed(backend, folder_of(recorded.path))
    assert not feed.step()
    assert kept(recorded.path)["state"] == {"run_id": "abc"}
    feed.close()


def test_a_content_is_found_by_its_sha256_alone(recorded: Run) -> None:
    """The content of a stranger's run folder does not lead outside it."""
    backend = LinesBackend(path="")
    backend.run_folder = recorded.path
    sha = "ab" * 32
    assert backend.content_path(sha) == recorded.path / "artifacts" / sha
    for wrong in ("../../etc/passwd", "", sha.upper(), sha + "\n"):
        with pytest.raises(ValueError, match="sha256 must be"):
            backend.content_path(wrong)


def test_not_yet_is_an_exception_of_its_own() -> None:
    """Backends raise it; a delivery that is taken by another process is one too."""
    assert issubclass(Busy, NotYet)
