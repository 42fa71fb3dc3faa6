"""Entries of runs in a list: all that their table shows, computed once for a run that has ended."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import stepwell
from stepwell import Run, open_run
from stepwell.analysis import run_list
from stepwell.analysis.cache import memory, read_shelf, shelf_path, store_json
from stepwell.analysis.findings import Facts
from stepwell.analysis.run_list import (
    RunEntry,
    RunFilter,
    compute_summary,
    run_lines,
    summaries_of,
)
from stepwell.journal.archive import Block
from stepwell.journal.process_writer import ProcessWriter
from stepwell.reading import list_runs
from stepwell.testing.simulate import make_plan, simulate
from tests.analysis.detail.runs import BEGAN, CLOCK, Written

CONFIG = {"model": {"layers": 12, "norm": {"kind": "rms"}}, "lr": 0.5, "steps": [1, 2], "x": None}


def train(writer: ProcessWriter) -> None:
    for step in range(30):
        clock = CLOCK + step * 10**6
        writer.context(clock, step, 0)
        parent = writer.span("train step", "", clock, clock + 10**6 - 10)
        writer.span("forward", "", clock, clock + 10**5, parent)
        writer.metric("train/loss", clock, 30.0 - step, step)
        writer.metric("system/cpu_percent", clock, 1.0, step)


def list_summaries(folder: Path, budget_s: float = 60) -> tuple[list[RunEntry], list[str]]:
    return summaries_of(((run.id, run) for run in list_runs(folder)), budget_s=budget_s)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    written = Written(tmp_path / "runs" / "one", rows_a_segment=1000)
    written.document = {"config": CONFIG, "tags": ["a", "b"], "name": "first"}
    written.add(train, lasted=3 * 10**7)
    written.open()
    return tmp_path / "runs"


def test_an_entry_has_all_that_the_table_shows(folder: Path) -> None:
    (entry,), pending = list_summaries(folder, budget_s=60)
    assert pending == []
    assert (entry.id, entry.name, entry.status, entry.status_text) == (
        *("one", "first", "finished", "finished"),
    )
    assert (entry.created_ms, entry.duration_ns, entry.step) == (BEGAN // 10**6, 3 * 10**7, 29)
    assert (entry.tags, entry.ranks, entry.attempts) == (["a", "b"], 1, 1)
    assert entry.config == {
        "model.layers": 12,
        "model.norm.kind": "rms",
        "lr": 0.5,
        "steps": "[1, 2]",
        "x": None,
    }
    assert entry.metrics == {"train/loss": 1.0}
    assert entry.loss is not None
    assert (entry.loss.name, entry.loss.last, entry.loss.best) == ("train/loss", 1.0, 1.0)
    assert entry.loss.curve == [30.0 - step for step in range(30)]
    assert entry.findings is not None
    assert set(entry.findings) == {"critical", "warning", "note"}
    facts = Facts(open_run(folder / "one"))
    assert entry.goodput == pytest.approx(facts.goodput.share)


def test_without_time_an_entry_has_neither_findings_nor_goodput(folder: Path) -> None:
    (entry,), pending = list_summaries(folder, budget_s=-1.0)
    assert pending == ["one"]
    assert (entry.findings, entry.goodput, entry.headline, entry.loss) == (None, None, None, None)
    assert (entry.status, entry.config["lr"]) == ("finished", 0.5)
    complete = compute_summary(open_run(folder / "one"))
    assert list_summaries(folder, budget_s=-1.0) == ([complete], [])


def test_a_large_run_is_left_for_later(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_list, "SMALL_BYTES", 10)
    assert list_summaries(folder, budget_s=60)[1] == ["one"]


def test_an_ended_run_is_read_once(folder: Path, unpacked: list[Block]) -> None:
    first = list_summaries(folder, budget_s=60)
    assert unpacked
    unpacked.clear()
    memory.clear()
    assert list_summaries(folder, budget_s=60) == first
    assert unpacked == []


def test_the_list_of_runs_and_the_table_share_their_cache(folder: Path, cache: Path) -> None:
    (line,) = run_lines(folder, RunFilter())
    entry = compute_summary(open_run(folder / "one"))
    assert run_lines(folder, RunFilter()) == [line]
    assert list_summaries(folder, budget_s=-1.0) == ([entry], [])
    assert shelf_path(folder / "one", "summary").is_file()


def test_the_list_of_runs_writes_no_columns(folder: Path, cache: Path) -> None:
    """Those of a thousand large runs would push everything else out of the cache."""
    summary = shelf_path(folder / "one", "summary")
    run_lines(folder, RunFilter())
    assert list(cache.rglob("*.shelf")) == [summary]
    run_lines(folder, RunFilter(), findings=True)
    assert list(cache.rglob("*.shelf")) == [summary]


def fail_to_open(patch: pytest.MonkeyPatch) -> list[str]:
    """Let no archive of records be opened. Return those that were tried."""
    tried: list[str] = []
    real = os.open

    def refuse(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path).endswith(".zst"):
            tried.append(str(path))
            raise OSError(errno.EMFILE, "Too many open files")
        return real(path, *arguments, **options)

    patch.setattr(os, "open", refuse)
    return tried


def test_a_failed_read_is_not_cached(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        fail_to_open(patch)
        (line,) = run_lines(folder, RunFilter())
        assert (line.status, line.duration_s, line.loss) == ("finished", None, None)
        entry = compute_summary(open_run(folder / "one"))
        assert (entry.findings, entry.loss) == (None, None)
    memory.clear()
    (line,) = run_lines(folder, RunFilter(), findings=True)
    assert (line.duration_s, line.step, line.loss) == (0.03, 29, 1.0)
    assert line.findings is not None


def test_failed_findings_are_not_cached(folder: Path) -> None:
    """The figures, which were computed before, are shown."""
    (line,) = run_lines(folder, RunFilter())
    assert line.loss == 1.0
    with mock.patch.object(run_list, "_with_findings", side_effect=OSError):
        assert run_lines(folder, RunFilter(), findings=True) == [line]
    (line,) = run_lines(folder, RunFilter(), findings=True)
    assert line.findings is not None
    assert compute_summary(open_run(folder / "one")).goodput is not None


def test_a_run_that_cannot_be_read_is_tried_again_after_a_while(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        tried = fail_to_open(patch)
        (entry,), pending = list_summaries(folder)
        assert (entry.findings, pending, bool(tried)) == (None, ["one"], True)
        tried.clear()
        assert list_summaries(folder)[1] == ["one"]
        assert tried == []
    assert list_summaries(folder)[1] == ["one"]
    monkeypatch.setattr(run_list, "RETRY_S", 0.0)
    (entry,), pending = list_summaries(folder)
    assert (entry.step, pending) == (29, [])


def test_a_changed_run_is_read_again(folder: Path) -> None:
    list_summaries(folder, budget_s=60)
    document = json.loads((folder / "one" / "run.json").read_text())
    (folder / "one" / "run.json").write_text(json.dumps({**document, "name": "second"}))
    (entry,), pending = list_summaries(folder, budget_s=-1.0)
    assert (entry.name, pending) == ("second", ["one"])


@pytest.mark.parametrize("content", ["", "{}", "summary"])
def test_a_damaged_cache_is_ignored(folder: Path, content: str) -> None:
    expected = list_summaries(folder, budget_s=60)
    path = shelf_path(folder / "one", "summary")
    if content == "summary":
        shelf = read_shelf(path)
        assert shelf is not None
        entry = json.loads(shelf.get(["value"])["value"])
        entry["loss"] = {"strange": 1}
        store_json(path, shelf.note["from"], entry)
    else:
        path.write_text(content)
    memory.clear()
    assert list_summaries(folder, budget_s=60) == expected


def test_a_killed_run_says_where(tmp_path: Path) -> None:
    def write(writer: ProcessWriter) -> None:
        train(writer)
        loop = writer.span("train step", "", CLOCK + 10**8, 0)
        writer.span("backward", "", CLOCK + 10**8 + 5, 0, loop)

    written = Written(tmp_path / "runs" / "dead", rows_a_segment=1000)
    written.add(write, status="running")
    written.open()
    (entry,), _ = list_summaries(tmp_path / "runs", budget_s=60)
    assert (entry.status, entry.status_text) == ("killed", "killed inside backward")
    assert entry.headline is not None
    assert entry.findings is not None
    assert entry.findings["critical"] >= 1


def test_a_restarted_run_counts_its_attempts_and_the_ranks_of_the_last(tmp_path: Path) -> None:
    simulate(tmp_path / "runs" / "run", make_plan(3, 60, ("restart",)))
    (entry,), _ = list_summaries(tmp_path / "runs", budget_s=60)
    assert (entry.ranks, entry.attempts, entry.step) == (3, 2, 59)
    assert entry.goodput is not None
    assert 0 < entry.goodput < 1


def test_a_live_run_is_pending_until_it_was_computed(recorded: Run) -> None:
    recorded.set_step(4)
    recorded.log({"train/loss": 2.0})
    folder = Path(recorded.path).parent
    (bare,), pending = list_summaries(folder, budget_s=-1.0)
    assert (bare.status, pending) == ("running", [recorded.id])
    computed = compute_summary(stepwell.open_run(recorded.path))
    assert (computed.step, computed.metrics) == (4, {"train/loss": 2.0})
    (entry,), pending = list_summaries(folder, budget_s=-1.0)
    assert (entry.step, entry.findings, pending) == (4, computed.findings, [])


def test_settings_are_bounded() -> None:
    deep: dict[str, object] = {}
    inner = deep
    for _ in range(100):
        inner["a"] = {}
        inner = inner["a"]  # type: ignore[assignment]
    inner["a"] = 1
    flat = run_list.flat_config(
        {"long": "x" * 1000, "k" * 1000: 1, "deep": deep, **{f"{i}": i for i in range(500)}}
    )
    assert len(flat) == 200
    assert all(len(key) <= 200 for key in flat)
    assert all(len(value) <= 200 for value in flat.values() if isinstance(value, str))


def test_a_folder_without_runs_has_no_entries(tmp_path: Path) -> None:
    assert list_summaries(tmp_path / "nowhere") == ([], [])
