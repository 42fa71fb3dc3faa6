"""The answers of the server as JSON types: one function for each address, shaped as ``ui/src/types.ts``.

Every answer is a plain function of a run, so that the server and the one-file report show the same.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stepwell.analysis.compare import compare
from stepwell.analysis.compare.differences import code_facts, text_of
from stepwell.analysis.detail import metric_list, status_text
from stepwell.analysis.diagnostics import holdout_table
from stepwell.analysis.findings.curves import goal_of
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.ranks.grid import Grid, read_grids
from stepwell.analysis.ranks.hang import hang
from stepwell.analysis.ranks.stacks import Stack, stacks
from stepwell.analysis.ranks.stragglers import Straggler, stragglers
from stepwell.analysis.report import Report, cost_sentence, report
from stepwell.analysis.timeline import began_ns, lives_by_attempt, run_wall_ns
from stepwell.analysis.timeline.step_phases import BETWEEN
from stepwell.analysis.tracebacks import shown_lines
from stepwell.journal.document import status_of, worst_of
from stepwell.reading import RecordedRun
from stepwell.reading.documents import clean
from stepwell.reading.run import SYSTEM
from stepwell.vocabulary import HELD_OUT, loss_names

Json = dict[str, Any]

MOST_FINDINGS = 60
MOST_MEDIA = 2000
MOST_STACKS = 512
MOST_ARTIFACTS = 1000
MOST_NODES = 400
MOST_LAYERS = 400
MOST_COLUMNS = 600
LONGEST_VALUE = 20_000
MEDIA_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""Types that a browser may show by itself. An SVG may contain scripts, so it is downloaded instead."""
MEASURES = {
    "gradient_norm": ("Gradient norm", ""),
    "weight_delta": ("Weight change", ""),
    "update_ratio": ("Update ratio", "of the norm of the weights"),
    "dead_units": ("Dead units", "share"),
}
OVERALL = "overall"
EXACT = 1 << 53
"""Largest integer that JavaScript represents exactly."""
DEEPEST = 50
"""Levels of nested values that are shown. A run of a stranger may have thousands."""


# Values


def plain(value: Any, depth: int = 0) -> Any:
    """Return a value as strict JSON types. Numbers that are not finite become "nan", "inf" or "-inf".

    Recorded integers that JavaScript would round become texts. Times and other fields of results stay
    numbers: their last digits do not matter. Values nested too deeply are left out.
    """
    if depth > DEEPEST:
        return "…"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {name: v if type(v) is int else plain(v, depth + 1) for name, v in fields.items()}
    if isinstance(value, np.ndarray):
        return plain_list(value)
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, dict):
        return {
            str(key): v if type(v) is int and str(key).endswith("ns") else plain(v, depth + 1)
            for key, v in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, float):
        return number(value)
    if isinstance(value, int) and abs(value) > EXACT:
        return str(value)
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def number(value: float | None) -> float | str | None:
    """Return a number, or the word for one that JSON does not have."""
    if value is None or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def plain_list(values: np.ndarray[Any, Any]) -> list[Any]:
    """Return an array as a flat list; numbers that are not finite become None."""
    flat = values.ravel()
    if flat.dtype.kind != "f" or bool(np.isfinite(flat).all()):
        return list(flat.tolist())
    return [value if math.isfinite(value) else None for value in flat.tolist()]


def encode(answer: Any) -> bytes:
    """Return an answer as compact strict JSON."""
    text = json.dumps(answer, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def _json(text: str | None) -> Any:
    try:
        return json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}


# The run


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


def metric_names(run: RecordedRun) -> list[str]:
    """Return the names of the metrics of a run, sorted."""
    return sorted(each.name for each in metric_list(run).metrics)


def _error(processes: pl.DataFrame) -> str | None:
    texts = [text for text in processes["error"].to_list() if text]
    return clean(texts[-1])[:LONGEST_VALUE] if texts else None


def _step(result: Report) -> int | None:
    """Return the last step; without steps of the run itself, that of the logged values."""
    if result.step is not None:
        return result.step
    return max((value.last_step for value in result.values), default=None)


def _highest(table: pl.DataFrame, column: str) -> int | None:
    value = table[column].max()
    return int(value) if isinstance(value, int) else None


# Overview


def overview(run: RecordedRun) -> Json:
    """Return the report of a run with what its first page shows beside it."""
    result = report(run)
    processes = main_processes(run)
    top = head(run, processes, result)
    top["status_text"] = status_text(result.status, result.findings)
    rates = result.throughput
    return {
        "head": top,
        "findings": [_finding(finding) for finding in result.findings[:MOST_FINDINGS]],
        "unchecked": plain(result.unchecked),
        "hints": plain(result.hints),
        "time": plain(result.time),
        "background": plain(result.background),
        "steps": plain(result.steps),
        "values": plain(result.values),
        "summary": plain(result.summary),
        "left": plain(result.left),
        "goodput": result.goodput,
        "throughput": None
        if rates is None
        else {
            "samples_per_second": rates.samples_per_second,
            "tokens_per_second": rates.tokens_per_second,
        },
        "attempts": _attempts(run, processes),
        "cost": {"text": cost_sentence(result)},
        "charts": first_charts(metric_names(run)),
        "is_partial": False,
    }


def partial_overview(run: RecordedRun) -> Json:
    """Return the part of an overview that needs no records, while the rest is being computed."""
    processes = main_processes(run)
    return {
        "head": head(run, processes),
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


# Media and artifacts


def media(run: RecordedRun) -> Json:
    """Return logged values that are not numbers: figures, images, tables, texts."""
    began = began_ns(run)
    table = run.items().collect().filter(~pl.col("kind").is_in(["param", "parameters"]))
    items = [_item(run, row, began) for row in table.head(MOST_MEDIA).iter_rows(named=True)]
    return {"items": items, "left_out": max(0, table.height - MOST_MEDIA)}


def _item(run: RecordedRun, row: Json, began: int) -> Json:
    value = row["value"]
    return {
        "name": row["name"],
        "kind": row["kind"],
        "step": row["step"],
        "time": row["time_ns"] - began,
        "rank": row["rank"],
        "caption": row["caption"],
        "media": row["media"],
        "size": row["size"],
        "url": f"/api/runs/{run.id}/artifacts/{row['sha256']}" if row["sha256"] else None,
        "value": plain(_json(value)) if value and len(value) <= LONGEST_VALUE else None,
    }


# Ranks


def ranks(run: RecordedRun) -> Json:
    """Return the skew of the ranks, and what each of them is doing in the latest attempt."""
    grids = read_grids(run)
    open_stacks = stacks(run)
    hung = hang(run, open_stacks=open_stacks)
    several = [grid for grid in grids if len(grid.ranks) > 1]
    slow = stragglers(run, several) if several else []
    worst = max(
        (
            (each.ns, grid.attempt, each.phase)
            for grid in several
            for each in stragglers(run, [grid])
        ),
        default=None,
    )
    return {
        "ranks": _rank_lines(run, grids, slow),
        "stacks": [_stack(stack) for stack in open_stacks[:MOST_STACKS]],
        "hang": None if hung is None else f"{hung.sentence}.",
        "stragglers": [_straggler(each) for each in slow[:20]],
        "focus": None if worst is None else {"phase": worst[2], "attempt": worst[1]},
    }


def _straggler(slow: Straggler) -> str:
    from stepwell._core.text import duration

    often = f"in {len(slow.steps)} steps" if len(slow.steps) > 1 else f"in step {slow.steps[0]}"
    return (
        f"Rank {slow.rank} is slow in {slow.phase} {often}; "
        f"the others waited {duration(slow.ns)} for it."
    )


def _rank_lines(run: RecordedRun, grids: Sequence[Grid], slow: Sequence[Straggler]) -> list[Json]:
    table = main_processes(run)
    table = table.filter(pl.col("attempt") == pl.col("attempt").max()).sort("rank")
    own = _rank_times(grids)
    waited: dict[int, int] = {}
    for each in slow:
        waited[each.rank] = waited.get(each.rank, 0) + each.ns
    lines = [
        {
            "rank": row["rank"],
            "host": clean(str(row["host"] or "")),
            "status": row["status"],
            "step": row["step"],
            **own.get(row["rank"], dict.fromkeys(RANK_TIMES)),
            "waited_ns": waited.get(row["rank"], 0),
        }
        for row in table.iter_rows(named=True)
    ]
    return sorted(
        lines, key=lambda line: (-line["waited_ns"], -(line["slower"] or 0), line["rank"])
    )


RANK_TIMES = ("step_ns", "slower", "phase", "phase_ns", "typical_ns")
WAITING = ("communication", "idle")
"""Phases in which a rank waits for others: they are long on the fast ranks."""


def _rank_times(grids: Sequence[Grid]) -> dict[int, Json]:
    """Return the mean own time in a step of each rank, and its phase furthest from the median rank."""
    every = sorted({phase for grid in grids for phase in grid.phases})
    phases = [phase for phase in every if phase not in (*WAITING, *BETWEEN)]
    ranks = sorted({rank for grid in grids for rank in grid.ranks})
    if not phases:
        return {}
    sums = np.zeros((len(phases), len(ranks)))
    counts = np.zeros(len(ranks))
    for grid in grids:
        rows = np.searchsorted(ranks, grid.ranks)
        done = grid.is_done & (grid.begin >= 0)
        counts[rows] += done.sum(axis=1)
        for place, phase in enumerate(phases):
            sums[place, rows] += (grid.total(phase) * done).sum(axis=1)
    means = sums / np.maximum(1, counts)
    typical, totals = np.median(means, axis=1), means.sum(axis=0)
    usual = float(np.median(totals))
    lines = {}
    for row, rank in enumerate(ranks):
        place = int(np.argmax(means[:, row] - typical))
        lines[rank] = {
            "step_ns": round(float(totals[row])),
            "slower": float(totals[row]) / usual - 1 if usual else None,
            "phase": phases[place],
            "phase_ns": round(float(means[place, row])),
            "typical_ns": round(float(typical[place])),
        }
    return lines


def _stack(stack: Stack) -> Json:
    return {
        "rank": stack.rank,
        "attempt": stack.attempt,
        "process": stack.process,
        "thread": stack.thread,
        "status": stack.status,
        "step": stack.step,
        "frames": [
            {
                "name": frame.name,
                "category": frame.category,
                "seconds": frame.seconds,
                "attributes": plain(frame.attributes),
            }
            for frame in stack.frames
        ],
        "last": None
        if stack.last is None
        else {"name": stack.last.name, "seconds": stack.last.seconds},
        "lines": list(shown_lines(stack.lines)),
        "silent_s": stack.silent_s,
    }


# Model


def model(run: RecordedRun, measure: str | None = None) -> Json:
    """Return a measure of each layer over steps, and the names of further metrics of the model."""
    names = metric_names(run)
    present = [key for key in MEASURES if any(name.startswith(f"{key}/") for name in names)]
    chosen = measure if measure in present else next(iter(present), "")
    layers, steps, values = _layers(run, chosen, names)
    charts = [
        ("Learning rate", [n for n in names if n.startswith("learning_rate/")]),
        ("Gradient norm", [n for n in names if n.startswith("gradient_norm") and _is_whole(n)]),
        ("Holdout accuracy", [n for n in names if n == "holdout/accuracy"]),
        ("Update ratio", [n for n in names if n == f"update_ratio/{OVERALL}"]),
    ]
    return {
        "measure": chosen,
        "measures": [
            {"key": key, "title": MEASURES[key][0], "unit": MEASURES[key][1]} for key in present
        ],
        "layers": layers,
        "steps": steps,
        "values": values,
        "charts": [{"title": title, "names": own[:12]} for title, own in charts if own],
        "holdout": _holdout(run),
    }


def _is_whole(name: str) -> bool:
    return name.endswith(f"/{OVERALL}") or "/" not in name


def _layers(
    run: RecordedRun, measure: str, names: Iterable[str]
) -> tuple[list[str], list[int], list[Any]]:
    own = [n for n in names if n.startswith(f"{measure}/") and not _is_whole(n)][:MOST_LAYERS]
    if not measure or not own:
        return [], [], []
    table = (
        run.metrics()
        .filter(pl.col("name").is_in(own) & pl.col("step").is_not_null())
        .select("name", "step", "value")
        .collect()
        .group_by("name", "step")
        .agg(pl.col("value").mean())
    )
    steps = np.unique(table["step"].to_numpy())
    shown = steps[:: max(1, math.ceil(len(steps) / MOST_COLUMNS))]
    # Merged columns keep the largest value: a spike must not vanish.
    column = np.searchsorted(shown, table["step"].to_numpy(), "right") - 1
    row = np.searchsorted(own, table["name"].to_numpy())
    cells = np.full((len(own), len(shown)), -np.inf)
    np.maximum.at(cells, (row, column), np.nan_to_num(table["value"].to_numpy(), nan=np.inf))
    cells[np.isinf(cells)] = np.nan
    layers = [name.partition("/")[2] for name in own]
    return layers, [int(step) for step in shown], plain_list(cells)


def _holdout(run: RecordedRun) -> Json | None:
    table = holdout_table(run).filter(pl.col("step").is_not_null())
    if table.is_empty():
        return None
    steps = np.unique(table["step"].to_numpy())
    shown = steps[:: max(1, math.ceil(len(steps) / MOST_COLUMNS))]
    table = table.filter(pl.col("step").is_in(shown.tolist()) & (pl.col("example") < MOST_LAYERS))
    examples = np.unique(table["example"].to_numpy())
    cells = np.full((len(examples), len(shown)), np.nan)
    row = np.searchsorted(examples, table["example"].to_numpy())
    column = np.searchsorted(shown, table["step"].to_numpy())
    cells[row, column] = table["margin"].fill_null(float("nan")).to_numpy()
    labels = dict(zip(table["example"].to_list(), table["label"].to_list(), strict=True))
    return {
        "steps": [int(step) for step in shown],
        "examples": [int(example) for example in examples],
        "labels": [labels.get(int(example)) for example in examples],
        "margin": plain_list(cells),
    }


# Provenance


def provenance(run: RecordedRun) -> Json:
    """Return configuration, environment, code, artifacts, and the PROV graph of a run."""
    facts = code_facts(run)
    is_code = {key: key.startswith(("code.", "git.")) for key in facts}
    table = run.artifacts().collect()
    nodes, edges, left_out = _graph(run)
    return {
        "config": plain(run.config),
        "environment": _lines({k: v for k, v in facts.items() if not is_code[k]}),
        "git": _lines({k: v for k, v in facts.items() if is_code[k]}),
        "artifacts": [
            {
                "name": row["name"],
                "size": row["size"],
                "sha256": row["sha256"],
                "step": row["step"],
                "rank": row["rank"],
                "url": f"/api/runs/{run.id}/artifacts/{row['sha256']}",
            }
            for row in table.head(MOST_ARTIFACTS).iter_rows(named=True)
        ],
        "nodes": nodes,
        "edges": edges,
        "left_out": left_out,
    }


def _lines(facts: Json) -> list[Json]:
    return [
        {"label": key, "value": value if isinstance(value, str) else text_of(value)}
        for key, value in facts.items()
        if value not in (None, "", [], {})
    ]


def _graph(run: RecordedRun) -> tuple[list[Json], list[Json], int]:
    from stepwell.loggers.prov.document import document_of
    from stepwell.loggers.prov.graph import graph_of

    document = document_of(run.path)
    graph = graph_of(document)
    shown = list(graph.nodes.values())[:MOST_NODES]
    ids = {node.id for node in shown}
    elements = {
        id: element
        for kind in ("entity", "activity", "agent")
        for id, element in document.get(kind, {}).items()
    }
    nodes = [
        {
            "id": node.id,
            "kind": node.kind,
            "label": node.title,
            "attributes": plain(elements.get(node.id) or {"content": node.lines}),
        }
        for node in shown
    ]
    edges = [
        {"from": edge.later, "to": edge.earlier, "label": edge.relation}
        for edge in graph.edges
        if edge.later in ids and edge.earlier in ids
    ]
    return nodes, edges, len(graph.nodes) - len(shown)


# Comparison


def comparison(runs: Sequence[RecordedRun]) -> Json:
    """Return the comparison of several runs, as ``stepwell compare`` prints it."""
    result = compare(runs)
    count = len(result.runs)
    phases: dict[str, list[float | None]] = {}
    for place, pace in enumerate(result.paces):
        for phase in pace.phases if pace is not None else ():
            phases.setdefault(phase.phase, [None] * count)[place] = phase.p50_ns
    return {
        "runs": [
            {
                "id": line.id,
                "label": line.label,
                "status": line.status,
                "last_step": line.last_step,
                "seconds": line.seconds,
            }
            for line in result.runs
        ],
        "summary": list(result.summary),
        "metrics": [
            {
                "name": metric.name,
                "goal": metric.goal,
                "last": [None if s is None else plain(s.last) for s in metric.runs],
                "best": [None if s is None else plain(s.best) for s in metric.runs],
                "best_step": [None if s is None else s.best_step for s in metric.runs],
                "winner": metric.better,
            }
            for metric in result.metrics
        ],
        "config": [_difference(d.key, d.values) for d in result.config],
        "code": [_difference(d.key, d.values) for d in result.code],
        "phases": [{"phase": phase, "ns": ns} for phase, ns in phases.items()],
        "axes": _axes(result),
    }


def _difference(key: str, values: Sequence[Any]) -> Json:
    texts = [None if v is None else v if isinstance(v, str) else text_of(v) for v in values]
    return {"key": key, "values": texts}


def _axes(result: Any) -> list[Json]:
    axes = [
        {"key": d.key, "values": [v if _is_scalar(v) else text_of(v) for v in d.values]}
        for d in result.config[:12]
    ]
    for metric in result.metrics:
        if metric.goal is not None and len(axes) < 20:
            best = [None if s is None or s.best is None else number(s.best) for s in metric.runs]
            if any(value is not None for value in best):
                axes.append({"key": metric.name, "values": best})
    return axes


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


# Files


Files = dict[str, tuple[str, str | None]]
"""Name and media type of files, by sha256."""


def logged_files(run: RecordedRun) -> Files:
    """Return the files that a run names. Figures and images have a media type."""
    rows = pl.concat(
        [
            run.artifacts().select("sha256", "name", media=pl.lit(None, pl.String)).collect(),
            run.items().select("sha256", "name", "media").collect().reverse(),
        ]
    )
    return {sha256: (name, media) for sha256, name, media in rows.iter_rows() if sha256}


def artifact_file(run: RecordedRun, files: Files, sha256: str) -> tuple[Path, str, str] | None:
    """Return path, file name and media type of one of the files of a run; None if there is none.

    The name comes from the run's own table, never from the request. Links are not followed.
    """
    path = run.path.resolve() / "artifacts" / sha256
    if sha256 not in files or not sha256.isalnum() or path.resolve() != path or not path.is_file():
        return None
    name, kind = files[sha256]
    name = clean(str(name)).replace("/", "_")[-120:]
    if kind not in MEDIA_TYPES:
        return path, name, "application/octet-stream"
    ending = f".{kind.partition('/')[2]}"
    return path, name if name.endswith(ending) else name + ending, kind
