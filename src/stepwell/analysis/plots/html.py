"""Panels as one HTML file: data, style and script are in it, and nothing is fetched from anywhere."""

from __future__ import annotations

import dataclasses
import html as escaping
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepwell.analysis.plots.curves import Panel

PAGE = Path(__file__).with_name("page.html")
FIGURES = 7


def html(panels: Sequence[Panel], title: str = "") -> str:
    """The page. What names and titles say is data in it, never markup."""
    data = json.dumps([_plain(dataclasses.asdict(panel)) for panel in panels], allow_nan=False)
    # Inside of a script element only these could end it or begin a comment.
    data = data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    head, middle, end = PAGE.read_text(encoding="utf-8").split("{{}}")
    return head + escaping.escape(title or "stepwell") + middle + data + end


def _plain(value: Any) -> Any:
    """The same with fewer figures: a picture has no use for sixteen."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return float(f"{value:.{FIGURES}g}") if isinstance(value, float) else value
