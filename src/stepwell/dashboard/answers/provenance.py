"""Provenance: configuration, environment, code, the PROV graph, and the files that a run stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl

from stepwell.analysis.compare.differences import code_facts, text_of
from stepwell.analysis.timeline import began_ns
from stepwell.dashboard.answers.values import Json, plain
from stepwell.reading import RecordedRun
from stepwell.reading.documents import clean

MOST_ARTIFACTS = 1000
MOST_NODES = 400
MOST_MEDIA = 2000
LONGEST_VALUE = 20_000
MEDIA_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""Types that a browser may show by itself. An SVG may contain scripts, so it is downloaded instead."""


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


def _json(text: str | None) -> Any:
    try:
        return json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}


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
