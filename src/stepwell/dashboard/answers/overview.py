"""The overview of a run: its head, its report, its attempts and its first charts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import polars as pl

from stepwell.analysis.detail import metric_list
from stepwell.analysis.findings.curves import goal_of
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.report import Report, cost_sentence, highest, report
from stepwell.analysis.run_list import status_text
from stepwell.analysis.timeline import began_ns, lives_by_attempt, wall_ns
from stepwell.analysis.timeline.wall import Life
from stepwell.analysis.tracebacks import root_error
from stepwell.dashboard.answers.metrics import MEASURES
from stepwell.dashboard.answers.values import Json, plain
from stepwell.journal.document import status_of, worst_of
from stepwell.reading import RecordedRun
from stepwell.reading.documents import clean
from stepwell.reading.run import SYSTEM, joint_status
from stepwell.reading.tables import ProcessTables
from stepwell.vocabulary import HELD_OUT, loss_names

MOST_FINDINGS = 60
LONGEST_ERROR = 20_000


@dataclass(frozen=True)
class RunHeaders:
    """What a run contains, as far as names and headers tell.

    Attributes:
        names: the names of all spans, metrics and events, sorted.
        kinds: ``spans`` and ``metrics``, if there are any.
        lives: the lives of the ranks by attempt.
    """

    names: list[str]
    kinds: set[str]
    lives: dict[int, list[Life]]


def read_headers(run: RecordedRun) -> RunHeaders:
    """Read the names of a run and the headers of its segments, once."""
    names: set[str] = set()
    kinds: set[str] = set()

    def noted() -> Iterator[ProcessTables]:
        for tables in run.by_process(partial=True):
            names.update(name for _, _, name in tables.process.names.values())
            kinds.update(segment.kind for segment in tables.process.segments)
            yield tables

    lives = lives_by_attempt(noted())
    return RunHeaders(sorted(names), kinds, lives)


def head(
    run: RecordedRun, headers: RunHeaders, processes: pl.DataFrame, known: Report | None = None
) -> Json:
    """Return the name, the status and the extent of a run, from its processes and its report if known."""
    documents = [d for d in run.documents() if d["role"] != "worker"]
    status = joint_status(documents)
    current = processes.filter(pl.col("attempt") == pl.col("attempt").max())
    # A finding says it with its place.
    died = next((f for f in known.findings if f.rule == "died"), None) if known else None
    failed = None if died is not None else root_error(documents)
    return {
        "id": run.id,
        "name": run.name,
        "path": run.place,
        "status": status,
        "status_text": status,
        "error": None if failed is None else clean(failed["error"])[:LONGEST_ERROR],
        "created_ms": began_ns(run) // 1_000_000,
        "wall_ns": known.wall_ns if known else wall_ns(chain(*headers.lives.values())),
        "step": _step(known) if known else highest(current, "step"),
        "epoch": known.epoch if known else highest(current, "epoch"),
        "ranks": len({d["rank"] for d in documents}),
        "attempts": len({d["attempt"] for d in documents}),
        "tags": run.tags,
        "has": contents(run, headers, is_quick=known is None),
    }


def main_processes(run: RecordedRun) -> pl.DataFrame:
    """Return the table of processes without workers."""
    return run.processes().collect().filter(pl.col("role") != "worker")


def contents(run: RecordedRun, headers: RunHeaders, is_quick: bool) -> dict[str, bool]:
    """Return which kinds of records a run has. If it must be quick, logged files all count as media."""
    ranks = {d["rank"] for d in run.documents() if d["role"] != "worker"}
    families = {name.partition("/")[0] for name in headers.names}
    has_files = (run.path / "artifacts").is_dir()
    logged = set() if is_quick else set(run.items().select("kind").collect()["kind"].unique())
    return {
        "metrics": "metrics" in headers.kinds,
        "media": has_files if is_quick else bool(logged - {"param", "parameters", None}),
        "spans": "spans" in headers.kinds,
        "ranks": len(ranks) > 1,
        "model": bool(families & {*MEASURES, "learning_rate", "holdout"}),
        "system": any(name.startswith(SYSTEM) for name in headers.names),
        "artifacts": has_files,
    }


def _step(result: Report) -> int | None:
    """Return the last step; without steps of the run itself, that of the logged values."""
    if result.step is not None:
        return result.step
    return max((value.last_step for value in result.values), default=None)


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
    headers, processes = read_headers(run), main_processes(run)
    return {
        "head": head(run, headers, processes, known),
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
        "attempts": _attempts(run, headers, processes),
        "cost": {"text": ""},
        # Of the names that look like a loss or a rate, all but very few are metrics.
        "charts": first_charts(headers.names),
        "is_partial": True,
    }


def _finding(finding: Finding) -> Json:
    metric, phase = finding.evidence.get("metric"), finding.evidence.get("phase")
    return {
        **plain(finding),
        "metric": metric if isinstance(metric, str) else None,
        "phase": phase if isinstance(phase, str) else None,
    }


def _attempts(run: RecordedRun, headers: RunHeaders, table: pl.DataFrame) -> list[Json]:
    began = began_ns(run)
    documents = [d for d in run.documents() if d["role"] != "worker"]
    lines = []
    for attempt in sorted(table["attempt"].unique()):
        rows = table.filter(pl.col("attempt") == attempt)
        mine = [d for d in documents if d["attempt"] == attempt]
        starts, ends = zip(*headers.lives.get(attempt, [(began, began)]), strict=True)
        hosts = sorted({clean(str(host)) for host in rows["host"].to_list() if host})
        lines.append(
            {
                "attempt": int(attempt),
                "status": worst_of(map(status_of, mine)),
                "start": max(0, min(starts) - began),
                "end": max(ends) - began,
                "last_step": highest(rows, "step"),
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
