"""The commands, run as a person would run them."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

import stepwell
from tests.cli.cases import kill_a_run
from tests.harness import run_stepwell


def record(root: Path, name: str = "training") -> stepwell.Run:
    """A small finished run: 20 steps of two spans, a loss, an event and an artifact."""
    with stepwell.init(name, dir=root, config={"lr": 0.1}) as run:
        for i in range(20):
            run.set_step(i, epoch=i // 10)
            with run.span("forward"), run.span("attention", head=i % 4):
                pass
            run.log({"loss": 2.0 - i / 10})
        run.event("done")
        run.artifact(b"weights", "model.pt")
    return run


def test_ls_lists_runs_newest_first(tmp_path: Path) -> None:
    """Each run is a line with its state and its whole id, the newest first."""
    first, second = record(tmp_path / "runs", "one"), record(tmp_path / "runs", "two")
    lines = run_stepwell("ls", cwd=tmp_path).stdout.splitlines()
    assert [line.split()[-1] for line in lines[1:]] == [second.id, first.id]
    assert [line.split()[2] for line in lines[1:]] == ["finished", "finished"]
    listed = json.loads(run_stepwell("ls", "--json", cwd=tmp_path).stdout)
    assert [row["id"] for row in listed] == [second.id, first.id]


def test_ls_of_nothing_says_how_to_begin(tmp_path: Path) -> None:
    """An empty folder is not an error."""
    done = run_stepwell("ls", cwd=tmp_path)
    assert done.returncode == 0
    assert "stepwell.init()" in done.stdout


def test_show_tells_the_end_the_spans_and_the_metrics(tmp_path: Path) -> None:
    """The summary of the newest run has its state, counts, and first, last and lowest values."""
    record(tmp_path / "runs")
    done = run_stepwell("show", cwd=tmp_path)
    assert done.returncode == 0
    assert "training  finished after" in done.stdout
    assert ", step 19" in done.stdout
    assert "40 spans · 20 numbers" in done.stdout
    loss = next(line for line in done.stdout.splitlines() if line.startswith("loss")).split()
    assert loss[1:8] == ["2", "0.1", "0.1", "19", "2", "0", loss[7]]
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_show_json_is_strict_and_complete(tmp_path: Path) -> None:
    """Scripts get the same as strict JSON."""
    run = record(tmp_path / "runs")

    def refuse(token: str) -> None:
        raise AssertionError(token)

    shown = json.loads(run_stepwell("show", "--json", cwd=tmp_path).stdout, parse_constant=refuse)
    assert shown["id"] == run.id
    assert {line["name"]: line["count"] for line in shown["spans"]} == {
        "forward": 20,
        "attention": 20,
    }
    assert (shown["events"], shown["artifacts"], shown["dropped"]) == (1, 1, 0)


def test_show_of_a_killed_run_says_what_it_was_inside_of(tmp_path: Path) -> None:
    """After kill -9 the summary names the open spans, outermost first."""
    kill_a_run(tmp_path / "runs")
    shown = run_stepwell("show", cwd=tmp_path).stdout
    assert "killed  killed after" in shown
    assert "rank 0 MainThread: epoch › all-reduce" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("show", "nothing"), "No runs in runs/."),
        (("show", "no/such/folder"), "there is no run folder 'no/such/folder'"),
        (("export", "--to", "excel"), "--to must be one of parquet, csv, jsonl, chrome"),
    ],
)
def test_mistakes_are_one_clear_line(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    """A wrong argument gives one line on stderr, with exit code 2."""
    done = run_stepwell(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_newest_of_several_runs_with_a_name(tmp_path: Path) -> None:
    """A name, or the beginning of an id, that several runs have means the newest; one line says so."""
    first, second = record(tmp_path / "runs", "a"), record(tmp_path / "runs", "a")
    assert (
        json.loads(run_stepwell("show", first.id, "--json", cwd=tmp_path).stdout)["id"] == first.id
    )
    for text in ("a", "a-2"):
        done = run_stepwell("show", text, "--json", cwd=tmp_path)
        assert json.loads(done.stdout)["id"] == second.id
        assert done.stderr == f"stepwell: 2 runs are named 'a'; this is the newest, {second.id}\n"


def test_a_beginning_that_runs_of_several_names_have(tmp_path: Path) -> None:
    """It is refused, with the ids of those runs."""
    first, second = record(tmp_path / "runs", "bert"), record(tmp_path / "runs", "beta")
    done = run_stepwell("show", "be", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"stepwell: 2 runs in runs/ begin with 'be': {second.id}, {first.id}\n"


def test_version(tmp_path: Path) -> None:
    """`stepwell --version` prints the version of the package."""
    assert run_stepwell("--version", cwd=tmp_path).stdout == f"stepwell {stepwell.__version__}\n"


def test_parquet_export_is_read_by_another_tool(tmp_path: Path) -> None:
    """Pyarrow reads the exported tables, partitioned by run and rank, with the recorded values."""
    dataset = pytest.importorskip("pyarrow.dataset")
    run = record(tmp_path / "runs")
    done = run_stepwell("export", run.id, "--to", "parquet", "-o", "out", cwd=tmp_path)
    assert done.stdout == "6 files in out\n"
    table = dataset.dataset(tmp_path / "out" / "metrics", partitioning="hive").to_table()
    rows = table.sort_by("step").to_pydict()
    assert rows["value"] == [2.0 - i / 10 for i in range(20)]
    assert rows["epoch"] == [i // 10 for i in range(20)]
    assert set(rows["run"]) == {run.id}
    assert set(rows["rank"]) == {0}
    spans = pl.read_parquet(tmp_path / "out" / "spans" / "**" / "*.parquet")
    assert spans["name"].value_counts().sort("name").rows() == [("attention", 20), ("forward", 20)]


def test_recover_collects_an_abandoned_spool(tmp_path: Path) -> None:
    """A run whose live files were in a spool is whole in its folder after recover, spool gone."""
    kill_a_run(tmp_path / "runs", STEPWELL_SPOOL=str(tmp_path / "spool"))
    assert list((tmp_path / "spool").rglob("*.live"))
    (run,) = stepwell.list_runs(tmp_path / "runs")
    before = run.spans().sort("id").collect()
    assert before.height == 102
    done = run_stepwell("recover", cwd=tmp_path)
    assert "sealed" in done.stdout
    assert not list((tmp_path / "spool").rglob("*.*"))
    assert run.spans().sort("id").collect().equals(before)
    assert run.metrics().collect().height == 100
    assert run.events().collect()["name"].to_list() == ["ready"]
    assert run.open_spans().sort("depth").collect()["name"].to_list() == ["epoch", "all-reduce"]
    assert run.status == "killed"
    assert run_stepwell("recover", cwd=tmp_path).stdout == "Nothing to recover.\n"


def test_recover_leaves_a_living_run_alone(tmp_path: Path) -> None:
    """A process that still records is not touched."""
    with stepwell.init("alive", dir=tmp_path / "runs") as run:
        with run.span("before"):
            done = run_stepwell("recover", cwd=tmp_path)
        with run.span("after"):
            pass
    assert "still running, not changed" in done.stdout
    assert sorted(stepwell.open_run(run.path).spans().collect()["name"]) == ["after", "before"]


@pytest.mark.torch
def test_demo_trains_and_sums_up(tmp_path: Path) -> None:
    """The demo records epochs, steps, workers and a checkpoint, and its hints are real commands."""
    done = run_stepwell("demo", "--seconds", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = stepwell.list_runs(tmp_path / "runs")
    spans = run.spans().collect()
    epochs = spans.filter(pl.col("name") == "epoch").height
    steps = spans.filter(pl.col("name") == "optimizer").height
    assert epochs >= 1
    assert steps == 60 * epochs
    drawn = spans.filter(pl.col("name") == "draw", pl.col("process").str.contains("worker-"))
    assert drawn.height == 64 * steps
    assert run.artifacts().collect()["name"].to_list() == ["model.pt"]
    assert "demo  finished after" in done.stdout
    hints = done.stdout.split("next\n")[1].splitlines()
    assert hints[0].split() == ["stepwell", "ui", "runs"]
    shown = run_stepwell(*hints[1].split()[1:], "--json", cwd=tmp_path)
    assert json.loads(shown.stdout)["id"] == run.id
    page = tmp_path / done.stdout.split("page  ")[1].split()[0]
    assert 100_000 < page.stat().st_size < 1_000_000


def test_recover_leaves_a_run_on_another_machine_alone(tmp_path: Path) -> None:
    """A process with a recent heartbeat from another machine is not touched."""
    with stepwell.init("far", dir=tmp_path / "runs") as run:
        with run.span("before"):
            pass
        run.flush()
        (document,) = run.path.glob("rank-*/process.json")
        about = json.loads(document.read_text())
        document.write_text(json.dumps({**about, "boot": "another", "host": "elsewhere"}))
        done = run_stepwell("recover", cwd=tmp_path)
        with run.span("after"):
            pass
    assert "still running, not changed" in done.stdout
    assert sorted(stepwell.open_run(run.path).spans().collect()["name"]) == ["after", "before"]


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    """Square brackets are not markup, and names cannot control the terminal."""
    with stepwell.init("run[/bold]", dir=tmp_path / "runs") as run:
        run.log({"acc[train]": 1.0, "loss[/x]": 2.0, "red\x1b[31m": 3.0})
        with run.span("[red]span"):
            pass
    shown = run_stepwell("show", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    for name in ("run[/bold]", "acc[train]", "loss[/x]", "[red]span"):
        assert name in shown.stdout
    assert "\x1b" not in shown.stdout


def test_show_names_the_error_of_the_latest_attempt_only(tmp_path: Path) -> None:
    """A run that failed once and then finished is shown as finished, with no error."""
    with (
        pytest.raises(ValueError, match="boom"),
        stepwell.init("x", dir=tmp_path / "runs", run_id="x"),
    ):
        raise ValueError("boom")
    assert "ended with ValueError: boom" in run_stepwell("show", cwd=tmp_path).stdout
    stepwell.init("x", dir=tmp_path / "runs", run_id="x").finish()
    shown = run_stepwell("show", cwd=tmp_path).stdout
    assert "finished" in shown
    assert "boom" not in shown
