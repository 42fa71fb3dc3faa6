"""OTLP from real training processes, through a sidecar, to receivers in good and bad shape."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.durability.helpers import run_script
from tests.exporters.otlp_receiver import Receiver
from tests.exporters.programs import EXPECTED, TREE, end, read, training
from tests.harness import COLD_SIDECARS, environment, has_ended, run_stepwell, wait_until


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as listening:
        yield listening


def test_the_tree_arrives_as_it_was_recorded(receiver: Receiver, tmp_path: Path) -> None:
    """Finish waits until it is delivered; the sidecar is gone then, and leaves nothing behind."""
    with training(tmp_path, receiver) as trainer:
        assert trainer.do(TREE + "\nanswer = run.flush(100)") is True
        assert receiver.tree() == EXPECTED
        trainer.do("run.finish()")
        wait_until(lambda: has_ended(trainer.sidecar))
        assert trainer.do("answer = warnings") == []
        assert not list(trainer.folder.glob("export-*"))
    save = receiver.named("checkpoint_save")[0]
    assert (save.status, save.message) == ("error", "disk full")
    assert save.events[0][0] == "exception"
    assert receiver.named("application")[0].events[0][0] == "configured"
    epochs = sorted(span.attributes["number"] for span in receiver.named("epoch"))
    assert epochs == [0, 1, 2]


def test_what_is_open_is_announced_while_training_goes_on(
    receiver: Receiver, tmp_path: Path
) -> None:
    """Nobody has to wait for the end of a training to see that it runs, and what it is called."""
    with training(tmp_path, receiver, announce_after=0.3) as trainer:
        trainer.do("run.label(session_tag='s7')\nouter = span('application')\nouter.__enter__()")
        receiver.wait(lambda r: r.named("application"))
        (announced,) = receiver.named("application")
        assert announced.attributes["stepwell.open"] is True
        trainer.do("outer.__exit__(None, None, None)\nrun.finish()")
        assert receiver.by_id()[announced.parent].name == "application"
    real = receiver.by_id()[announced.parent]
    assert real.resource["service.name"] == "training"
    assert real.resource["stepwell.session_tag"] == "s7"
    assert real.resource["stepwell.rank"] == 0


def test_a_receiver_that_comes_late_gets_everything(tmp_path: Path) -> None:
    """Down when training begins, up while it runs."""
    receiver = Receiver().up()
    receiver.down()
    with receiver_later(receiver), training(tmp_path, receiver) as trainer:
        trainer.do(TREE)
        log = trainer.folder / "export-otlp.log"
        wait_until(lambda: log.exists() and "Connection refused" in log.read_text())
        assert trainer.do("answer = run.flush(0.5)") is False
        receiver.up()
        trainer.do(TREE + "\nrun.flush(100)\nrun.finish()")
        assert receiver.tree() == EXPECTED
        assert len([s for s in receiver.by_id().values() if s.name == "application"]) == 2


class receiver_later:
    """Takes down at the end what is not up at the beginning."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.receiver.down()


def test_training_does_not_wait_for_a_slow_receiver(receiver: Receiver, tmp_path: Path) -> None:
    """While the receiver sits on a request, a thousand spans are recorded and calls return."""
    receiver.ready.clear()
    with training(tmp_path, receiver, timeout=60.0) as trainer:
        trainer.do("with span('first'): pass")
        wait_until(lambda: receiver.requests)
        done = trainer.do(
            "for i in range(1000):\n    with span('step', i=i): event('e')\nanswer = 'went on'"
        )
        assert done == "went on"
        assert trainer.do("answer = run.flush(0.3)") is False
        assert (receiver.requests, receiver.spans) == (1, [])
        receiver.ready.set()
        assert trainer.do("answer = run.flush(40)") is True
        assert len(receiver.named("step")) == 1000


@pytest.mark.full
@pytest.mark.parametrize("mode", ["overloaded", "refusing", "page", "noise", "no http"])
def test_a_receiver_that_answers_nonsense_gets_it_again(
    receiver: Receiver, tmp_path: Path, mode: str
) -> None:
    """Nothing counts as delivered but what was taken, and the log says what is wrong."""
    receiver.mode = mode
    with training(tmp_path, receiver) as trainer:
        trainer.do(TREE)
        log = trainer.folder / "export-otlp.log"
        wait_until(lambda: log.exists() and "not delivered, will retry" in log.read_text())
        assert receiver.spans == []
        receiver.mode = "ok"
        assert trainer.do("answer = run.flush(100)") is True
        assert receiver.tree() == EXPECTED
        trainer.do("run.finish()")
        wait_until(lambda: has_ended(trainer.sidecar))
        assert "delivered again" in log.read_text()
        assert not list(trainer.folder.glob("*.undelivered.json"))


def test_a_killed_training_is_delivered_all_the_same(receiver: Receiver, tmp_path: Path) -> None:
    """After kill -9 the sidecar sends the rest, what was open included, and ends."""
    receiver.mode = "overloaded"
    with training(tmp_path, receiver) as trainer:
        trainer.do(TREE + "\nspan('application').__enter__()\nspan('doomed').__enter__()")
        wait_until(lambda: receiver.requests)
        trainer.kill()
        receiver.mode = "ok"
        wait_until(lambda: has_ended(trainer.sidecar))
    assert receiver.tree() == EXPECTED | {("doomed", "application")}
    (doomed,) = receiver.named("doomed")
    assert (doomed.status, doomed.message) == ("error", "the process ended before the span")


def test_what_nobody_took_is_noted_and_said_once(tmp_path: Path) -> None:
    """Down until after the end: one warning, a note with the command, and no secret in it."""
    receiver = Receiver().up()
    receiver.down()
    url = receiver.url.replace("//", "//user:s3cret@")
    with training(tmp_path, url, linger=0.5, headers={"authorization": "s3cret"}) as trainer:
        trainer.do(TREE)
        log = trainer.folder / "export-otlp.log"
        wait_until(log.exists)
        trainer.do("run.finish()")
        (warning,) = trainer.do("answer = warnings")
        wait_until(lambda: has_ended(trainer.sidecar))
        note = read(trainer.folder / "export-otlp.undelivered.json")
        path = trainer.path
    assert warning.startswith("otlp is missing ")
    assert f"stepwell forward {path} --to otlp" in warning
    assert note["exporter"] == "otlp"
    assert note["waiting"] > 0
    assert "Connection refused" in note["problem"]
    assert note["command"] == (f"stepwell forward {path} --to otlp={receiver.url}/v1/traces")
    for text in (warning, str(note), log.read_text()):
        assert "s3cret" not in text
    with receiver.up():
        done = forward(path, receiver)
        assert done.returncode == 0, done.stderr
        assert "1 process sent to otlp" in done.stdout
        assert receiver.tree() == EXPECTED
    assert not list(path.glob("*/*.undelivered.json"))


def forward(path: Path, receiver: Receiver, *more: str) -> subprocess.CompletedProcess[str]:
    options = ["--to", "otlp", "--option", f"endpoint={receiver.url}", "--option", "timeout=1"]
    return run_stepwell("forward", str(path), *options, *more, cwd=path.parent, COLUMNS="200")


@pytest.mark.full
def test_forward_says_when_nobody_takes_it(receiver: Receiver, tmp_path: Path) -> None:
    """Exit code 1 and one clear line; sending again later gives each span once."""
    script = f"run = init('t', dir={str(tmp_path)!r})\n{TREE}\nprint(run.path)\nrun.finish()"
    path = Path(run_script(script, tmp_path).stdout.strip())
    receiver.down()
    done = forward(path, receiver)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("stepwell: otlp: ")
    assert "Connection refused" in line
    receiver.up()
    for _ in range(2):
        assert forward(path, receiver).returncode == 0
    assert receiver.tree() == EXPECTED
    assert len(receiver.by_id()) == 9
    done = forward(path, receiver, "--all")
    assert ("attention", "model_forward") in receiver.tree()
    assert "12 spans of 1 process sent to otlp" in done.stdout


def test_sent_live_and_forwarded_a_span_is_the_same_one(receiver: Receiver, tmp_path: Path) -> None:
    """Ids do not depend on the way: forwarding what was delivered adds nothing."""
    with training(tmp_path, receiver) as trainer:
        trainer.do(TREE + "\nrun.finish()")
        live = set(receiver.by_id())
        assert forward(trainer.path, receiver).returncode == 0
    assert len(live) == 9
    assert set(receiver.by_id()) == live


def test_a_sidecar_that_dies_is_started_again(receiver: Receiver, tmp_path: Path) -> None:
    """Whoever asks it to drain notices; what it had sent before is not doubled."""
    with training(tmp_path, receiver) as trainer:
        assert trainer.do(TREE + "\nanswer = run.flush(100)") is True
        end(trainer.sidecar)
        wait_until(lambda: has_ended(trainer.sidecar))
        assert trainer.do("with span('after'): pass\nanswer = run.flush(100)") is True
        assert receiver.tree() == EXPECTED | {("after", None)}
        assert len(receiver.by_id()) == 10
        second = trainer.do("answer = run.exporters[0].process_id")
        assert second != trainer.sidecar
        trainer.do("run.finish()")
        wait_until(lambda: has_ended(second))


def test_a_sidecar_takes_nothing_from_training(receiver: Receiver, tmp_path: Path) -> None:
    """No file, terminal or pipe of the trainer, no device, a low priority, no heavy library."""
    with training(tmp_path, receiver, COLD_SIDECARS) as trainer:
        trainer.do("with span('a'): pass\nrun.flush(100)")
        pid = trainer.sidecar
        own = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, pid) == min(own + 10, 19)
        assert os.getsid(pid) == pid
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        assert b"CUDA_VISIBLE_DEVICES=" in variables
        maps = Path(f"/proc/{pid}/maps").read_text()
        assert not [name for name in ("numpy", "torch", "polars") if f"/{name}/" in maps]
        own = {os.readlink(f"/proc/{trainer.process.pid}/fd/{n}") for n in (0, 1, 2)}
        files = [os.readlink(f) for f in Path(f"/proc/{pid}/fd").iterdir()]
        assert own.isdisjoint(files)
        assert b"secret" not in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.full
def test_a_pipeline_ends_with_its_training(receiver: Receiver, tmp_path: Path) -> None:
    """`train.py | tee log` is over when training is, though the sidecar still tries."""
    receiver.mode = "overloaded"
    script = tmp_path / "train.py"
    script.write_text(
        "import stepwell\nfrom stepwell.exporters import OTLPExporter\n"
        f"run = stepwell.init('t', dir={str(tmp_path / 'runs')!r})\n"
        f"run.add_exporter(OTLPExporter({receiver.url!r}, timeout=1, linger=60))\n"
        "print(run.exporters[0].process_id, flush=True)\n"
        "with stepwell.span('a'): pass\n"
    )
    done = subprocess.run(
        f"{sys.executable} {script} 2>&1 | cat",
        shell=True,
        env=environment(STEPWELL_FINISH_TIMEOUT="1"),
        capture_output=True,
        text=True,
        timeout=50,
    )
    pid = int(done.stdout.split()[0])
    try:
        assert not has_ended(pid)
        receiver.mode = "ok"
        receiver.wait(lambda r: r.named("a"))
        wait_until(lambda: has_ended(pid))
    finally:
        end(pid)


def test_a_scheduler_that_ends_the_job_lets_it_send_the_rest(
    receiver: Receiver, tmp_path: Path
) -> None:
    """SIGTERM goes to all processes of a job, a moment before SIGKILL does."""
    with training(tmp_path, receiver) as trainer:
        trainer.do("with span('early'): pass\nanswer = run.flush(100)")
        trainer.do("with span('late'): pass\nspan('open').__enter__()")
        os.kill(trainer.sidecar, signal.SIGTERM)
        trainer.kill(signal.SIGTERM)
        wait_until(lambda: has_ended(trainer.sidecar))
    assert {"early", "late"} <= {span.name for span in receiver.spans}


def test_an_exporter_from_the_environment(receiver: Receiver, tmp_path: Path) -> None:
    """Nothing in the script but the recording itself."""
    done = run_script(
        f"run = init('t', dir={str(tmp_path)!r})\n{TREE}\nrun.finish()\nprint(warnings)",
        tmp_path,
        STEPWELL_EXPORTERS="otlp",
        OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url,
    )
    assert done.stdout == "[]\n", done.stderr
    assert receiver.tree() == EXPECTED


def test_children_start_no_sidecar(receiver: Receiver, tmp_path: Path) -> None:
    """Neither a forked nor a spawned child; and what they do to the run harms nothing."""
    with training(tmp_path, receiver, COLD_SIDECARS) as trainer:
        trainer.do(
            "pid = os.fork()\n"
            "if pid == 0:\n"
            "    with span('child'): pass\n"
            "    run.flush(5)\n"
            "    run.add_exporter(OTLPExporter('http://127.0.0.1:1'))\n"
            "    run.finish()\n"
            "    os._exit(0)\n"
            "answer = os.waitpid(pid, 0)[1]"
        )
        assert trainer.do("with span('a'): pass\nanswer = run.flush(100)") is True
        # Only now: a process that has just been started shows no command for a moment.
        assert sidecars_of(trainer.path) == [trainer.sidecar]
        assert receiver.tree() == {("a", None)}
        trainer.do("run.finish()")


def sidecars_of(path: Path) -> list[int]:
    """The sidecars that run; their command says what they are."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                words = (place / "cmdline").read_bytes()
                if b"stepwell otlp sidecar" in words and str(path).encode() in words:
                    found.append(int(place.name))
            except OSError:
                continue
    return found


def test_training_goes_on_when_no_sidecar_can_be_started(
    receiver: Receiver, tmp_path: Path
) -> None:
    """One warning; the run is recorded, and can be forwarded later."""
    done = run_script(
        f"""
from stepwell.exporters import OTLPExporter
real, sys.executable = sys.executable, "/nonexistent/python"
run = init("t", dir={str(tmp_path)!r})
run.add_exporter(OTLPExporter({receiver.url!r}))
{TREE}
run.flush(1)
run.finish()
print(len(warnings), warnings[0], run.path)
""",
        tmp_path,
        **COLD_SIDECARS,
    )
    assert done.returncode == 0, done.stderr
    count, *_, path = done.stdout.split()
    assert count == "1"
    assert "Exporter otlp cannot be started" in done.stdout
    assert forward(Path(path), receiver).returncode == 0
    assert receiver.tree() == EXPECTED
