"""Panels as a picture, drawn by matplotlib."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

from stepwell.analysis.plots.curves import Curve, Panel
from stepwell.journal.errors import StepwellError

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


def png(panels: Sequence[Panel], title: str = "") -> bytes:
    """A PNG with the panels in two columns, or one below the other when they are few."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise StepwellError(
            "matplotlib is missing: pip install 'stepwell[plots]', or write an .html instead"
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
        figure.suptitle(_plain(title), fontsize=12, color=INK)
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
            # Of curves that lie on each other all are seen: the upper one has gaps.
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
        label=_plain(curve.label) + (" (smoothed)" if curve.smooth else ""),
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
            label=_plain(f"{curve.label}: NaN or infinite"),
            zorder=4,
        )


def _dress(axes: Any, panel: Panel, number: int) -> None:
    axes.set_title(_plain(panel.title), fontsize=10, loc="left", color=INK)
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
        # There is no step 2.5.
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


def _plain(text: str) -> str:
    """A text as it is: a dollar sign begins no formula, and an underscore hides no label."""
    shown = "".join(c if c.isprintable() else "?" for c in text[:LONGEST]).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown
