"""Provenance documents as files: PROV-JSON, and its graph as DOT, Mermaid and SVG."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

from stepwell.loggers.prov.drawing import svg_of
from stepwell.loggers.prov.graph import graph_of
from stepwell.loggers.prov.graph_text import dot_of, mermaid_of

DOCUMENT = "provenance.json"


def documents_of(document: dict[str, Any], graph: bool = True, svg: bool = True) -> dict[str, str]:
    """The files for a document, by their names."""
    files = {DOCUMENT: json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"}
    condensed = graph_of(document) if graph or svg else None
    if condensed is not None and graph:
        files["provenance.dot"] = dot_of(condensed)
        files["provenance.mmd"] = mermaid_of(condensed)
    if condensed is not None and svg:
        files["provenance.svg"] = svg_of(condensed)
    return files


def replace_text(path: Path, text: str) -> Path:
    """Write a file in one step."""
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    return path
