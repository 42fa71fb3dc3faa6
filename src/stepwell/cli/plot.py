"""``stepwell plot``: curves in the terminal or in a file."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from stepwell._core.text import number
from stepwell.analysis.plots import Curve, Panel, save
from stepwell.cli.terminal import console, curve, plain

COLOURS = ("blue", "yellow", "green", "magenta", "cyan", "red", "white")
WIDTH, ROWS = 68, 10
MARGIN = 10
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character by row and column."""
BRAILLE = 0x2800


def show_panels(panels: Sequence[Panel], as_json: bool = False) -> None:
    """Print panels, 80 columns wide."""
    if as_json:
        print(json.dumps([dataclasses.asdict(panel) for panel in panels], indent=1))
        return
    out = console()
    for panel in panels:
        out.print()
        for line in chart(panel):
            out.print(line, soft_wrap=True)


def save_panels(panels: Sequence[Panel], output: Path, title: str) -> None:
    """Write panels to a file and print its path."""
    target = save(panels, output, title)
    print(f"{'1 panel' if len(panels) == 1 else f'{len(panels)} panels'} in {target}")


def chart(panel: Panel) -> list[Text]:
    """Return a panel as lines of text: title, canvas with axes, and a line for each curve."""
    title = plain(panel.title)
    title.stylize("bold")
    if panel.log:
        title.append("  (log scale)", "dim")
    strong = [line for line in panel.curves if not line.faint]
    points = [(x, y) for line in strong for x, y in zip(line.x, line.drawn, strict=True)]
    if not points:
        return [title, *(_legend(line, i) for i, line in enumerate(strong))]
    canvas = _Canvas(points, panel.log)
    for i, line in enumerate(strong):
        canvas.draw(line.x, line.drawn, _colour(line, i))
    lines = [title, *canvas.lines(), canvas.axis(panel.x_label)]
    lines += [_legend(line, i) for i, line in enumerate(strong)]
    lines += [plain(f"  {mark.label} from {panel.x_label} {mark.x:g}") for mark in panel.marks]
    return [*lines, plain(f"  {panel.note}")] if panel.note else lines


def _legend(line: Curve, i: int) -> Text:
    text = Text("  ")
    small = curve(_means(line.drawn, 16))
    text.append(f"{small:16}  ", COLOURS[_colour(line, i) % len(COLOURS)])
    label = plain(line.label)
    if sys.stdout.isatty():
        label.truncate(38, overflow="ellipsis")
    text.append_text(label)
    if line.y:
        text.append(f"  last {number(line.y[-1])}", "dim")
    if line.nonfinite:
        text.append(f"  NaN or infinite, first at {line.nonfinite[0]:g}", "red")
    return text


def _colour(line: Curve, i: int) -> int:
    return i if line.colour < 0 else line.colour


def _means(values: Sequence[float], count: int) -> list[float]:
    size = max(1, math.ceil(len(values) / count))
    parts = [values[i : i + size] for i in range(0, len(values), size)]
    return [sum(part) / len(part) for part in parts]


class _Canvas:
    """Braille dots, two across and four down in each character."""

    def __init__(self, points: Sequence[tuple[float, float]], log: bool) -> None:
        self.log = log
        xs, ys = [x for x, _ in points], [self._up(y) for _, y in points]
        self.left, self.right = min(xs), max(xs)
        self.low, self.high = min(ys), max(ys)
        self.cells = [[0] * WIDTH for _ in range(ROWS)]
        self.owners = [[0] * WIDTH for _ in range(ROWS)]

    def _up(self, y: float) -> float:
        return math.log10(y) if self.log else y

    def draw(self, xs: Sequence[float], ys: Sequence[float], owner: int) -> None:
        """Draw a curve through these points."""
        across, down = WIDTH * 2 - 1, ROWS * 4 - 1
        before: tuple[int, int] | None = None
        for x, y in zip(xs, ys, strict=True):
            here = (
                round(_share(x, self.left, self.right) * across),
                round((1 - _share(self._up(y), self.low, self.high)) * down),
            )
            for point in _between(before or here, here):
                self._dot(*point, owner)
            before = here

    def _dot(self, across: int, down: int, owner: int) -> None:
        row, column = down // 4, across // 2
        self.cells[row][column] |= DOTS[down % 4][across % 2]
        self.owners[row][column] = owner

    def lines(self) -> list[Text]:
        """Return the rows, with values on the left of the first, middle and last row."""
        labels = {0: self.high, ROWS - 1: self.low}
        if self.high != self.low:
            share = (ROWS // 2) / (ROWS - 1)
            labels[ROWS // 2] = self.high * (1 - share) + self.low * share
        lines = []
        for row, cells in enumerate(self.cells):
            value = labels.get(row)
            name = "" if value is None else number(10**value if self.log else value)
            line = Text(f"{name:>{MARGIN - 1}} │" if value is None else f"{name:>{MARGIN - 1}} ┤")
            for column, bits in enumerate(cells):
                colour = COLOURS[self.owners[row][column] % len(COLOURS)]
                line.append(chr(BRAILLE | bits) if bits else " ", colour if bits else "")
            line.rstrip()
            lines.append(line)
        return lines

    def axis(self, label: str) -> Text:
        """Return the x axis: its ends and its label."""
        left, right = f"{self.left:g}", f"{self.right:g}"
        middle = max(1, WIDTH - len(left) - len(right))
        return Text(f"{'':{MARGIN}}└{left}{label:^{middle}}{right}", "dim")


def _share(value: float, low: float, high: float) -> float:
    return 0.5 if high == low else (value - low) / (high - low)


def _between(a: tuple[int, int], b: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the dots of a line between two dots."""
    count = max(abs(b[0] - a[0]), abs(b[1] - a[1]), 1)
    return [
        (round(a[0] + (b[0] - a[0]) * i / count), round(a[1] + (b[1] - a[1]) * i / count))
        for i in range(count + 1)
    ]
