"""``stepwell query``, at the terminal and from Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stepwell
from stepwell._core.errors import StepwellError
from stepwell.analysis.query import query
from tests.cli.terminal import in_terminal
from tests.harness import run_stepwell


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two runs: "one" with 10 steps and "two" with 5, each with a loss, spans and an event."""
    root = tmp_path / "runs"
    for name, count in (("one", 10), ("two", 5)):
        with stepwell.init(name, dir=root, run_id=name, config={"lr": count / 10}) as run:
            for i in range(count):
                run.set_step(i)
                with run.span("train step"), run.span("forward", batch=i % 2):
                    pass
                run.log({"loss": float(count - i)})
            run.event("done", reason="enough")
    return root


def test_several_runs_are_told_apart(runs: Path) -> None:
    """A column ``run`` in every table."""
    sql = "SELECT run, name, count(*) AS n FROM spans GROUP BY run, name ORDER BY run, name"
    found = query(sql, [runs / "one", runs / "two"])
    assert found.rows() == [
        ("one", "forward", 10),
        ("one", "train step", 10),
        ("two", "forward", 5),
        ("two", "train step", 5),
    ]


def test_every_table_can_be_asked(runs: Path) -> None:
    """The recorded ones and those that analysis makes of them, by hand-counted rows."""
    one = stepwell.open_run(runs / "one")
    rows = {
        "spans": 20,
        "metrics": 10,
        "events": 1,
        "processes": 1,
        "open_spans": 0,
        "artifacts": 0,
        "runs": 1,
        "steps": 10,
    }
    counted = {t: query(f"SELECT count(*) AS n FROM {t}", one).item() for t in rows}
    assert counted == rows
    phases = query("SELECT phase, sum(ns) AS ns FROM ledger GROUP BY phase", one)
    assert "forward" in phases["phase"].to_list()


def test_only_the_tables_that_are_used_are_read(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question about metrics accounts for no time."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("it was read")

    monkeypatch.setattr("stepwell.analysis.timeline.ledger", fail)
    monkeypatch.setattr("stepwell.analysis.timeline.steps", fail)
    assert query("SELECT max(value) AS m FROM metrics", runs / "one").item() == 10.0
    with pytest.raises(Exception, match="it was read"):
        query("SELECT * FROM ledger", runs / "one")


def test_joins_windows_and_members_of_json(runs: Path) -> None:
    """What SQL is for: the parent of a span, the value before, an attribute."""
    one = runs / "one"
    sql = (
        "SELECT p.name, count(*) AS n FROM spans s JOIN spans p ON s.parent = p.id GROUP BY p.name"
    )
    assert query(sql, one).rows() == [("train step", 10)]
    sql = "SELECT value - LAG(value) OVER (ORDER BY step) AS d FROM metrics"
    assert query(sql, one)["d"].to_list() == [None, *[-1.0] * 9]
    sql = (
        "SELECT attributes->>'batch' AS batch, count(*) AS n FROM spans s "
        "WHERE s.name = 'forward' GROUP BY s.attributes ->> 'batch' ORDER BY batch"
    )
    assert query(sql, one).rows() == [("0", 5), ("1", 5)]
    sql = "SELECT config->>'lr' AS lr FROM runs"
    assert query(sql, [one, runs / "two"])["lr"].to_list() == ["1.0", "0.5"]


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        (
            "SELECT nme FROM spans",
            r"no column 'nme' \(did you mean 'name'\?\)(.|\n)*spans: run, attempt",
        ),
        (
            "SELECT * FROM metrcs",
            r"no table 'metrcs' \(did you mean 'metrics'\?\): the tables are spans",
        ),
        ("SELEC 1", "found: SELEC at Line: 1, Column: 1(.|\n)*The tables are spans"),
        (
            "SELECT name FROM spans WHERE step = 'x'",
            "cannot compare string with numeric(.|\n)*spans: run",
        ),
        ("SELECT foo(name) FROM events", "unsupported function 'foo'(.|\n)*events: run"),
        ("", "one .* statement"),
    ],
)
def test_a_wrong_query_is_told_what_there_is(runs: Path, sql: str, message: str) -> None:
    """The nearest name, and all that the tables have."""
    with pytest.raises(StepwellError, match=message):
        query(sql, runs / "one")


def test_runs_are_chosen_by_name_by_number_or_all(runs: Path) -> None:
    """The newest if nothing is said; ids, folders, --last N, --all; not two of these."""
    sql = "SELECT DISTINCT run FROM metrics ORDER BY run"

    def asked(*more: str) -> list[str]:
        done = run_stepwell("query", sql, *more, "--json", cwd=runs.parent)
        assert done.returncode == 0, done.stderr
        return [row["run"] for row in json.loads(done.stdout)]

    assert asked() == ["two"]
    assert asked("one") == ["one"]
    assert asked("one", "runs/two", "one") == ["one", "two"]
    assert asked("--last", "1") == ["two"]
    assert asked("--all") == ["one", "two"]
    refused = run_stepwell("query", sql, "one", "--all", cwd=runs.parent)
    assert (refused.returncode, "exclude each other" in refused.stderr) == (2, True)


def test_what_is_shown_is_capped_and_says_so(runs: Path) -> None:
    """Ten rows, three shown; numbers to the right, in the order of the query."""
    shown = in_terminal(
        "query", "SELECT step, value FROM metrics", "one", "--rows", "3", cwd=runs.parent
    )
    assert shown.text.splitlines()[:5] == [
        "step  value",
        "   0     10",
        "   1      9",
        "   2      8",
        "7 more rows: use --rows 10, --csv or -o FILE",
    ]


def test_csv_and_files_hold_everything(runs: Path) -> None:
    """CSV on stdout; Parquet, CSV and JSON lines in files that another reader opens."""
    sql = "SELECT run, step, value FROM metrics ORDER BY run, step"
    done = run_stepwell("query", sql, "--all", "--csv", cwd=runs.parent)
    lines = done.stdout.splitlines()
    assert (lines[0], lines[1], len(lines)) == ("run,step,value", "one,0,10.0", 16)
    readers: dict[str, Any] = {
        "parquet": pl.read_parquet,
        "csv": pl.read_csv,
        "jsonl": pl.read_ndjson,
    }
    for ending, read in readers.items():
        done = run_stepwell("query", sql, "--all", "-o", f"out.{ending}", cwd=runs.parent)
        assert done.stdout == f"out.{ending}\n"
        assert read(runs.parent / f"out.{ending}")["value"].sum() == 55 + 15
    refused = run_stepwell("query", sql, "-o", "out.xlsx", cwd=runs.parent)
    assert (refused.returncode, ".parquet, .csv, .jsonl" in refused.stderr) == (2, True)
    assert sorted(p.name for p in runs.parent.glob(".*")) == []


def test_nothing_found_is_said(runs: Path) -> None:
    """An empty table is not an error."""
    done = run_stepwell("query", "SELECT name FROM spans WHERE step > 99", cwd=runs.parent)
    assert (done.returncode, done.stdout) == (0, "name\nNo rows.\n")
    done = run_stepwell(
        "query", "SELECT name FROM spans WHERE step > 99", "--json", cwd=runs.parent
    )
    assert json.loads(done.stdout) == []


def test_a_mistake_in_a_terminal_is_broken_into_lines(runs: Path) -> None:
    """The columns of a table are more than a line."""
    shown = in_terminal("query", "SELECT nme FROM spans", cwd=runs.parent)
    assert shown.code == 2
    assert shown.widest <= 80
    assert "attributes" in shown.text


def test_rows_count_where_no_column_of_them_is_used(runs: Path) -> None:
    """Each span with each of the 10 values, none of whose columns is asked for."""
    found = query("SELECT s.name FROM spans AS s CROSS JOIN metrics AS m", runs / "one")
    assert found.height == 20 * 10
