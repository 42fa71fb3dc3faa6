"""Panels as a file: a PNG drawn by matplotlib, or an HTML page without external resources."""

from __future__ import annotations

import dataclasses
import html as escaping
import io
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepwell._core.errors import StepwellError
from stepwell._core.files import replacing
from stepwell.analysis.plots.curves import Curve, Panel

PAGE = Path(__file__).with_name("page.html")
DIGITS = 7
"""Significant digits of the numbers in the page."""
COLOURS = (
    "#2a6fbb",
    "#d1602f",
    "#2f8f5b",
    "#8a5bb5",
    "#b8860b",
    "#c23b6a",
    "#3a9aa8",
    "#6b6b6b",
    "#7a4a2b",
    "#9aa13a",
)
INK = "#333333"
PALE = "#e4e4e4"
LONGEST = 80


def save(panels: Sequence[Panel], path: str | os.PathLike[str], title: str = "") -> Path:
    """Write panels to a file that ends in .png (needs matplotlib) or .html, and return its path."""
    target = Path(path)
    ending = target.suffix.lower()
    if ending not in (".png", ".html", ".htm"):
        raise StepwellError(f"path must end in .png or .html, got {str(target)!r}")
    data = png(panels, title) if ending == ".png" else html(panels, title).encode()
    try:
        with replacing(target) as new:
            new.write_bytes(data)
    except OSError as error:
        raise StepwellError(f"cannot write {str(target)!r}: {error.strerror}") from None
    return target


def html(panels: Sequence[Panel], title: str = "") -> str:
    """Return the HTML page. Names and titles are inserted as data, never as markup."""
    data = json.dumps([_rounded(dataclasses.asdict(panel)) for panel in panels], allow_nan=False)
    # Only these characters could end a script element or start a comment in it.
    data = data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    head, middle, end = PAGE.read_text(encoding="utf-8").split("{{}}")
    return head + escaping.escape(title or "stepwell") + middle + data + end


def _rounded(value: Any) -> Any:
    """Return the value with fewer digits, to keep the page small."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def png(panels: Sequence[Panel], title: str = "") -> bytes:
    """Return a PNG with the panels in two columns, or a single panel."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise StepwellError(
            "saving a PNG needs matplotlib: pip install 'stepwell[plots]', or save an .html file instead"
        ) from None
    across = 1 if len(panels) < 2 else 2
    down = math.ceil(len(panels) / across)
    figure: Any = Figure(figsize=(6.4 * across + 0.4, 3.2 * down + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(down, across, squeeze=False)
    for place, panel in zip(axes.flat, panels, strict=False):
        _draw(place, panel)
    for place in axes.flat[len(panels) :]:
        place.set_visible(False)
    if title:
        figure.suptitle(_literal(title), fontsize=12, color=INK)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130, facecolor="white")
    return buffer.getvalue()


def _draw(axes: Any, panel: Panel) -> None:
    number = 0
    drawn: list[tuple[Any, Any]] = []
    for curve in panel.curves:
        if curve.faint:
            axes.plot(curve.x, curve.y, color="#8aa4c0", linewidth=0.5, alpha=0.45, zorder=1)
        else:
            colour = number if curve.colour < 0 else curve.colour
            # Identical curves are drawn dashed on top of each other, so that all are visible.
            hides = (curve.x, curve.drawn) in drawn
            _draw_curve(axes, curve, COLOURS[colour % len(COLOURS)], "--" if hides else "-")
            drawn.append((curve.x, curve.drawn))
            number += 1
    if panel.log:
        axes.set_yscale("log")
    if panel.zero:
        axes.axhline(0, color=INK, linewidth=0.8, linestyle=":", zorder=2)
    for mark in panel.marks:
        axes.axvline(mark.x, color="#999999", linewidth=0.9, linestyle="--", zorder=0)
        axes.annotate(
            mark.label,
            (mark.x, 1),
            xycoords=("data", "axes fraction"),
            xytext=(2, -8),
            textcoords="offset points",
            fontsize=7,
            color="#777777",
        )
    _dress(axes, panel, number)


def _draw_curve(axes: Any, curve: Curve, colour: str, style: str) -> None:
    few = len(curve.x) <= 30
    if curve.low:
        axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.16, linewidth=0)
    if curve.smooth:
        axes.plot(curve.x, curve.y, color=colour, linewidth=0.6, alpha=0.28, zorder=2)
    axes.plot(
        curve.x,
        curve.drawn,
        color=colour,
        linewidth=1.6,
        linestyle=style,
        marker="o" if few and style == "-" else None,
        markersize=3,
        label=_literal(curve.label) + (" (smoothed)" if curve.smooth else ""),
        zorder=3,
    )
    if curve.nonfinite:
        axes.plot(
            curve.nonfinite,
            [0.03] * len(curve.nonfinite),
            transform=axes.get_xaxis_transform(),
            color="#c62828",
            marker="x",
            linestyle="none",
            markersize=5,
            label=_literal(f"{curve.label}: NaN or infinite"),
            zorder=4,
        )


def _dress(axes: Any, panel: Panel, number: int) -> None:
    axes.set_title(_literal(panel.title), fontsize=10, loc="left", color=INK)
    axes.set_xlabel(panel.x_label, fontsize=8, color=INK)
    axes.tick_params(labelsize=8, colors=INK, length=3)
    axes.grid(True, color=PALE, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#bbbbbb")
    axes.margins(x=0.02)
    if panel.x_label in ("step", "epoch"):
        # Steps and epochs are integers.
        axes.xaxis.get_major_locator().set_params(integer=True)
    if not panel.log:
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-3, 5), useMathText=True)
        axes.yaxis.get_offset_text().set_fontsize(7)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        axes.legend(handles, labels, fontsize=7, frameon=False, ncols=2 if number > 5 else 1)
    if panel.note:
        axes.text(
            1, 1.02, panel.note, fontsize=7, color="#777777", ha="right", transform=axes.transAxes
        )


def _literal(text: str) -> str:
    """Return the text so that matplotlib does not read $ as a formula or hide a label that starts with _."""
    shown = "".join(c if c.isprintable() else "?" for c in text[:LONGEST]).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown
