"""The overview of a run: its head, its report, its attempts and its first charts."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from stepwell.analysis.detail import metric_list
from stepwell.analysis.findings.curves import goal_of
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.report import Report, cost_sentence, report
from stepwell.analysis.run_list import status_text
from stepwell.analysis.timeline import began_ns, lives_by_attempt, run_wall_ns
from stepwell.dashboard.answers.metrics import MEASURES
from stepwell.dashboard.answers.values import Json, plain
from stepwell.journal.document import status_of, worst_of
from stepwell.reading import RecordedRun
from stepwell.reading.documents import clean
from stepwell.reading.run import SYSTEM
from stepwell.vocabulary import HELD_OUT, loss_names

MOST_FINDINGS = 60
LONGEST_ERROR = 20_000


def head(run: RecordedRun, processes: pl.DataFrame, known: Report | None = None) -> Json:
    """Return the name, the status and the extent of a run, from its processes and its report if known."""
    documents = [d for d in run.documents() if d["role"] != "worker"]
    last = max((d["attempt"] for d in documents), default=0)
    latest = [d for d in documents if d["attempt"] == last]
    status = worst_of(map(status_of, latest)) if latest else "empty"
    current = processes.filter(pl.col("attempt") == last)
    died = next((f for f in known.findings if f.rule == "died"), None) if known else None
    return {
        "id": run.id,
        "name": run.name,
        "path": run.place,
        "status": status,
        "status_text": status,
        # A finding says it with its place.
        "error": None if died is not None else _error(current),
        "created_ms": began_ns(run) // 1_000_000,
        "wall_ns": known.wall_ns if known else run_wall_ns(run) or 0,
        "step": _step(known) if known else _highest(current, "step"),
        "epoch": known.epoch if known else _highest(current, "epoch"),
        "ranks": len({d["rank"] for d in documents}),
        "attempts": len({d["attempt"] for d in documents}),
        "tags": run.tags,
        "has": contents(run, is_quick=known is None),
    }


def main_processes(run: RecordedRun) -> pl.DataFrame:
    """Return the table of processes without workers."""
    return run.processes().collect().filter(pl.col("role") != "worker")


def contents(run: RecordedRun, is_quick: bool = False) -> dict[str, bool]:
    """Return which kinds of records a run has. If it must be quick, logged files all count as media."""
    names, kinds = set(recorded_names(run)), set()
    for tables in run.by_process(partial=True):
        kinds |= {kind for kind in ("spans", "metrics") if tables.process.of_kind(kind)}
    ranks = {d["rank"] for d in run.documents() if d["role"] != "worker"}
    families = {name.partition("/")[0] for name in names}
    has_files = (run.path / "artifacts").is_dir()
    logged = set() if is_quick else set(run.items().select("kind").collect()["kind"].unique())
    return {
        "metrics": "metrics" in kinds,
        "media": has_files if is_quick else bool(logged - {"param", "parameters", None}),
        "spans": "spans" in kinds,
        "ranks": len(ranks) > 1,
        "model": bool(families & {*MEASURES, "learning_rate", "holdout"}),
        "system": any(name.startswith(SYSTEM) for name in names),
        "artifacts": has_files,
    }


def recorded_names(run: RecordedRun) -> list[str]:
    """Return the names of all spans, metrics and events of a run, sorted, without reading these records."""
    every = (tables.process.names.values() for tables in run.by_process(partial=True))
    return sorted({name for names in every for _, _, name in names})


def _error(processes: pl.DataFrame) -> str | None:
    texts = [text for text in processes["error"].to_list() if text]
    return clean(texts[-1])[:LONGEST_ERROR] if texts else None


def _step(result: Report) -> int | None:
    """Return the last step; without steps of the run itself, that of the logged values."""
    if result.step is not None:
        return result.step
    return max((value.last_step for value in result.values), default=None)


def _highest(table: pl.DataFrame, column: str) -> int | None:
    value = table[column].max()
    return int(value) if isinstance(value, int) else None


def overview(run: RecordedRun) -> Json:
    """Return the report of a run with what its first page shows beside it."""
    result = report(run)
    rates = result.throughput
    throughput = rates and {
        "samples_per_second": rates.samples_per_second,
        "tokens_per_second": rates.tokens_per_second,
    }
    parts = ("unchecked", "hints", "time", "background", "steps", "values", "summary", "left")
    answer = partial_overview(run, result)
    answer["head"]["status_text"] = status_text(result.status, result.findings)
    return answer | {
        "findings": [_finding(finding) for finding in result.findings[:MOST_FINDINGS]],
        **{name: plain(getattr(result, name)) for name in parts},
        "goodput": result.goodput,
        "throughput": throughput,
        "cost": {"text": cost_sentence(result)},
        "charts": first_charts(sorted(each.name for each in metric_list(run).metrics)),
        "is_partial": False,
    }


def partial_overview(run: RecordedRun, known: Report | None = None) -> Json:
    """Return the part of an overview that needs no records, while the rest is being computed."""
    processes = main_processes(run)
    return {
        "head": head(run, processes, known),
        "findings": [],
        "unchecked": [],
        "hints": [],
        "time": [],
        "background": [],
        "steps": None,
        "values": [],
        "summary": {},
        "left": None,
        "goodput": None,
        "throughput": None,
        "attempts": _attempts(run, processes),
        "cost": {"text": ""},
        # Of the names that look like a loss or a rate, all but very few are metrics.
        "charts": first_charts(recorded_names(run)),
        "is_partial": True,
    }


def _finding(finding: Finding) -> Json:
    metric, phase = finding.evidence.get("metric"), finding.evidence.get("phase")
    return {
        **plain(finding),
        "metric": metric if isinstance(metric, str) else None,
        "phase": phase if isinstance(phase, str) else None,
    }


def _attempts(run: RecordedRun, table: pl.DataFrame) -> list[Json]:
    began = began_ns(run)
    documents = [d for d in run.documents() if d["role"] != "worker"]
    lives = lives_by_attempt(run)
    lines = []
    for attempt in sorted(table["attempt"].unique()):
        rows = table.filter(pl.col("attempt") == attempt)
        mine = [d for d in documents if d["attempt"] == attempt]
        starts, ends = zip(*lives.get(attempt, [(began, began)]), strict=True)
        hosts = sorted({clean(str(host)) for host in rows["host"].to_list() if host})
        lines.append(
            {
                "attempt": int(attempt),
                "status": worst_of(map(status_of, mine)),
                "start": max(0, min(starts) - began),
                "end": max(ends) - began,
                "last_step": _highest(rows, "step"),
                "host": hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts" if hosts else "",
                "ranks": rows["rank"].n_unique(),
            }
        )
    return lines


def first_charts(names: Sequence[str]) -> list[Json]:
    """Return the charts to draw first: training and validation loss, then quality, then rates."""
    own = [name for name in names if not name.startswith(SYSTEM)]
    losses = loss_names(own)
    held_out = [
        name
        for name in own
        if name not in losses and "loss" in name.lower() and HELD_OUT.search(name)
    ]
    charts = [{"title": "loss", "names": [*losses, *held_out][:6]}] if losses or held_out else []
    used = {*losses, *held_out}
    goals = [name for name in own if name not in used and goal_of(name) == "higher"]
    if goals:
        charts.append({"title": _common_title(goals[:4]), "names": goals[:4]})
    rates = [name for name in own if "per_second" in name or "throughput" in name or name == "mfu"]
    if rates:
        charts.append({"title": "throughput", "names": rates[:3]})
    return charts


def _common_title(names: Sequence[str]) -> str:
    last = {name.replace("/", "_").rpartition("_")[2] for name in names}
    return last.pop() if len(last) == 1 else "quality"
