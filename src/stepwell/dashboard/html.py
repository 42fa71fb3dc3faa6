"""The report of a run as one HTML file: the page with the answers that it would ask a server for."""

from __future__ import annotations

import base64
import contextlib
import json
import os
from collections.abc import Callable, Iterator
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from stepwell._core.errors import StepwellError
from stepwell._core.files import replacing
from stepwell.dashboard.answers.metrics import metric_list_answer, model, series_answer
from stepwell.dashboard.answers.overview import overview
from stepwell.dashboard.answers.provenance import artifact_file, logged_files, media, provenance
from stepwell.dashboard.answers.ranks import grid_answer, ranks
from stepwell.dashboard.answers.timeline import timeline_answer
from stepwell.dashboard.page import page_file
from stepwell.dashboard.parameters import Parameters
from stepwell.reading import RecordedRun
from stepwell.reading.documents import clean
from stepwell.reading.run import SYSTEM

POINTS = 400
MOST_SERIES = 400
"""Metrics in a report; a run may have thousands."""
MOST_LANES = 12
MOST_IMAGE = 200_000
IMAGES = 2_000_000
"""Largest image in a report, and the size of all of them, in bytes."""
BUDGET = 6_000_000
"""Characters of all answers. Those that come later are left out if it is used up."""


def html_report(run: RecordedRun) -> str:
    """Return the page with the answers about one run inside. It needs no server and no network."""
    contained: dict[str, Any] = {}
    left = BUDGET
    for key, answer in _contained(run):
        text = json.dumps(answer, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        if len(text) <= left:
            contained[key] = answer
            left -= len(text)
    return clean(_document(run.name, contained))


def write_html(run: RecordedRun, path: str | os.PathLike[str]) -> Path:
    """Write the report of a run as one HTML file, and return its path."""
    target = Path(path).expanduser()
    if target.is_dir():
        target = target / f"{run.id}.html"
    text = html_report(run)
    with replacing(target) as beside:
        beside.write_text(text, encoding="utf-8")
    return target


def notebook_html(run: RecordedRun, height: int) -> str:
    """Return a frame with the report of a run, for the output of a notebook cell.

    The frame is a page of its own: its script can reach neither the notebook nor the network.
    """
    inside = escape(html_report(run))
    return (
        f'<iframe title="stepwell: {escape(run.name)}" sandbox="allow-scripts" '
        f'srcdoc="{inside}" width="100%" height="{height}" style="border:0"></iframe>'
    )


def _contained(run: RecordedRun) -> Iterator[tuple[str, Any]]:
    """Yield addresses and answers, the most important first."""
    base = f"/api/runs/{run.id}"
    first_page = overview(run)
    yield base, first_page
    metrics = metric_list_answer(run)
    yield f"{base}/metrics", metrics
    names = [each["name"] for each in metrics["metrics"]]
    first = [name for chart in first_page["charts"] for name in chart["names"]]
    ordered = list(dict.fromkeys([*first, *names]))[:MOST_SERIES]
    for name in ordered:
        axis = "time" if name.startswith(SYSTEM) else "step"
        yield _answer(
            base, "series", run, series_answer, name=name, x=axis, by="mean", points=POINTS
        )
    slow = ranks(run)
    yield f"{base}/ranks", slow
    with contextlib.suppress(StepwellError, OSError):
        yield f"{base}/provenance", provenance(run)
    yield _answer(base, "timeline", run, timeline_answer, width=1200, lanes=MOST_LANES)
    # The map of the attempt with the costliest straggler.
    focus = slow["focus"] or {}
    given = {"width": 600, "height": 128, **focus}
    grid = grid_answer(run, _given(**given))
    yield f"{base}/grid", grid
    for phase in grid["phases"]:
        answer = grid_answer(run, _given(**{**given, "phase": phase}))
        yield f"{base}/grid?{urlencode({'phase': phase})}", answer
    layers = model(run)
    yield f"{base}/model", layers
    for measure in layers["measures"]:
        key = measure["key"]
        yield f"{base}/model?measure={key}", model(run, key)
    yield f"{base}/media", _with_images(run, media(run))


def _answer(
    base: str,
    path: str,
    run: RecordedRun,
    make: Callable[[RecordedRun, Parameters], Any],
    **given: Any,
) -> tuple[str, Any]:
    return f"{base}/{path}?{urlencode(given)}", make(run, _given(**given))


def _given(**values: Any) -> Parameters:
    return Parameters(QueryParams({key: str(value) for key, value in values.items()}))


def _with_images(run: RecordedRun, logged: dict[str, Any]) -> dict[str, Any]:
    """Return media with small images inside, as many as fit; the content of other files is left out."""
    files = logged_files(run)
    left = IMAGES
    for item in logged["items"]:
        url, item["url"] = item["url"], None
        file = artifact_file(run, files, url.rpartition("/")[2]) if url else None
        if file is None or not file[2].startswith("image/"):
            continue
        size = file[0].stat().st_size
        if size <= min(MOST_IMAGE, left):
            left -= size
            content = base64.b64encode(file[0].read_bytes()).decode("ascii")
            item["url"] = f"data:{file[2]};base64,{content}"
    return logged


def _document(title: str, contained: dict[str, Any]) -> str:
    script = page_file("app.js")[0].decode()
    style = page_file("app.css")[0].decode()
    data = json.dumps({"answers": contained, "report": True}, ensure_ascii=False, allow_nan=False)
    # Inside a script element, only this character can end it.
    data = data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    if "</script" in script.lower() or "</style" in style.lower():
        raise StepwellError("The page cannot be put into one file: build it again with `make ui`")
    digest = base64.b64encode(sha256(script.encode()).digest()).decode("ascii")
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return "".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            f"<title>{escape(title)} · stepwell</title>\n<style>{style}</style>\n</head>\n<body>\n",
            '<div id="app"></div>\n',
            f'<script type="application/json" id="stepwell-data">{data}</script>\n',
            f"<script>{script}</script>\n</body>\n</html>\n",
        ]
    )
