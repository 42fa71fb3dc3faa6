"""The lines at the start and at the end of a run."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

import stepwell
from stepwell.vocabulary import loss_names
from tests.harness import environment, run_ranks, run_script

TRAIN = """
import stepwell, sys
with stepwell.init() as run:
    for step in range(12):
        run.set_step(step)
        run.log({"loss": 1 / (step + 1), "accuracy": 0.5})
    if "fail" in sys.argv:
        raise ValueError("bad batch")
    if "exit" in sys.argv:
        sys.exit(3)
    if "interrupt" in sys.argv:
        raise KeyboardInterrupt
"""


def spoken(folder: Path, **variables: str) -> dict[str, str]:
    """An environment in which runs print their lines, as in a shell in this folder."""
    return environment(STEPWELL_QUIET="", PWD=str(folder), **variables)


def script(folder: Path) -> Path:
    path = folder / "train.py"
    path.write_text(TRAIN)
    return path


def test_a_line_at_the_start_and_one_at_the_end(tmp_path: Path) -> None:
    """They say where the run is, how it ended, and which command shows more."""
    done = run_script(script(tmp_path), cwd=tmp_path, env=spoken(tmp_path), check=True)
    (run,) = stepwell.list_runs(tmp_path / "runs")
    first, last = done.stderr.splitlines()
    assert first == f"stepwell: recording to runs/{run.id}; `stepwell report` shows how it is doing"
    last = re.sub(r"after \S+ m?s ", "after 1 s ", last)
    expected = "finished after 1 s at step 11, loss 0.0833"
    assert last == f"stepwell: {expected}; `stepwell report {run.id}` explains it"
    assert done.stdout == ""


def test_a_run_that_failed(tmp_path: Path) -> None:
    """The last line has the kind of the error."""
    done = run_script(script(tmp_path), "fail", cwd=tmp_path, env=spoken(tmp_path))
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("stepwell: ")]
    assert re.match(r"stepwell: failed after .* at step 11, loss 0.0833 \(ValueError\);", lines[-1])


@pytest.mark.parametrize(
    ("how", "words"),
    [("exit", "failed after .* \\(exit code 3\\);"), ("interrupt", "interrupted after ")],
)
def test_other_endings(how: str, words: str, tmp_path: Path) -> None:
    """An exit code is shown; Ctrl-C needs no reason."""
    done = run_script(script(tmp_path), how, cwd=tmp_path, env=spoken(tmp_path))
    lines = [line for line in done.stderr.splitlines() if line.startswith("stepwell: ")]
    assert re.match(f"stepwell: {words}", lines[-1])
    assert "KeyboardInterrupt" not in lines[-1]


def test_runs_elsewhere_are_named_with_their_path(tmp_path: Path) -> None:
    """Where `stepwell report` alone would not find the run, the command has its path."""
    place, shell = tmp_path / "my runs", tmp_path / "shell"
    shell.mkdir()
    env = spoken(shell, STEPWELL_DIR=str(place))
    run_script(script(tmp_path), cwd=tmp_path, env=env, check=True)
    (run,) = stepwell.list_runs(place)
    env = spoken(shell)
    code = f"import stepwell; stepwell.init('x', dir={str(place)!r}, run_id={run.id!r}).finish()"
    done = run_script(code, cwd=tmp_path, env=env, check=True)
    assert done.stderr.count(f"`stepwell report '{place}/{run.id}'`") == 2


def test_only_rank_0_speaks(tmp_path: Path) -> None:
    """The other ranks print nothing."""
    done = run_ranks(script(tmp_path), world=2, cwd=tmp_path, env=spoken(tmp_path), check=True)
    assert done[0].stderr.count("stepwell: ") == 2
    assert " on rank 0; " in done[0].stderr
    assert done[1].stderr == ""


@pytest.mark.parametrize("value", ["1", "true", "on"])
def test_silence(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`STEPWELL_QUIET=1` or `quiet=True` prints nothing; the argument counts more."""
    monkeypatch.setenv("STEPWELL_QUIET", value)
    stepwell.init("a", dir=tmp_path).finish()
    monkeypatch.delenv("STEPWELL_QUIET")
    stepwell.init("a", dir=tmp_path, quiet=True).finish()
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("STEPWELL_QUIET", value)
    stepwell.init("a", dir=tmp_path, quiet=False).finish()
    assert capsys.readouterr().err.count("stepwell: ") == 2


def test_a_second_run_in_the_same_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its loss may have another name than that of the first one."""
    for name, value in (("loss", 1.0), ("train/loss", 2.0)):
        with stepwell.init("a", dir=tmp_path, quiet=False) as run:
            run.log({name: value, "val/loss": 9.0})
        assert f", {name} {value:g};" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No line sends anybody to a run that is not there: the warning has said all."""
    (tmp_path / "file").touch()
    stepwell.init("a", dir=tmp_path / "file", quiet=False).finish()
    assert capsys.readouterr().err == ""


def test_quiet_must_be_true_or_false(tmp_path: Path) -> None:
    """Anything else is refused."""
    with pytest.raises(stepwell.StepwellError, match="quiet must be True, False or None, got 'no'"):
        stepwell.init("a", dir=tmp_path, quiet="no")  # type: ignore[arg-type]


def test_a_child_process_is_silent(tmp_path: Path) -> None:
    """A forked child that finishes its copy of the run, or exits, prints no line."""
    code = """
    import multiprocessing, stepwell
    run = stepwell.init("parent")
    def work():
        stepwell.log({"loss": 1.0})
        run.finish()
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start(); child.join()
    run.finish()
    """
    done = run_script(dedent(code), cwd=tmp_path, env=spoken(tmp_path), check=True)
    assert done.stderr.count("stepwell: ") == 2


@pytest.mark.parametrize("stream", ["None", "io.StringIO()", "Broken()"])
def test_any_standard_error_will_do(stream: str, tmp_path: Path) -> None:
    """A missing, closed or broken standard error does no harm."""
    code = f"""
    import io, sys, stepwell
    class Broken:
        def write(self, text): raise OSError("broken")
    sys.stderr = {stream}
    if isinstance(sys.stderr, io.StringIO):
        sys.stderr.close()
    stepwell.init("a").finish()
    sys.stderr = sys.__stderr__
    print("still there")
    """
    done = run_script(dedent(code), cwd=tmp_path, env=spoken(tmp_path), check=True)
    assert (done.stdout, done.stderr) == ("still there\n", "")


def test_a_pipe_that_nobody_reads_does_not_change_the_exit_code(tmp_path: Path) -> None:
    """Python exits with 120 where text is left in the buffer of standard error: none is."""
    program = subprocess.Popen(
        [sys.executable, str(script(tmp_path))],
        cwd=tmp_path,
        env=spoken(tmp_path),
        stderr=subprocess.PIPE,
    )
    assert program.stderr is not None
    program.stderr.close()
    assert program.wait(60) == 0


def test_progress_bars_stay_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is printed above an open bar, which is drawn again below it."""
    tqdm = pytest.importorskip("tqdm")
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with tqdm.tqdm(total=2, file=stream, ncols=40) as bar:
        bar.update(1)
        stepwell.init("a", dir=tmp_path, quiet=False).finish()
    lines = re.split(r"[\r\n]", stream.getvalue())
    assert [line for line in lines if "stepwell: " in line and "%|" in line] == []
    assert sum(line.startswith("stepwell: ") for line in lines) == 2


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["val/loss", "train/loss", "lr"], ["train/loss"]),
        (["loss/D", "loss/G", "lr"], ["loss/D", "loss/G"]),
        (["loss", "loss/aux"], ["loss"]),
        (["val/loss", "test_loss", "accuracy"], []),
        (["val_loss", "train_loss_step", "train_loss_epoch"], ["train_loss_epoch"]),
        (["testing_loss", "training_loss"], ["training_loss"]),
        (["val1_loss", "eval2/loss", "valloss", "evaluate_loss", "validationLoss"], []),
        (["value_loss", "device_loss"], ["device_loss"]),
    ],
)
def test_which_metric_is_the_loss(names: list[str], expected: list[str]) -> None:
    """The loss of the training, or those of several models; not that of a validation."""
    assert loss_names(names) == expected
