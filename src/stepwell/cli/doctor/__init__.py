"""``stepwell doctor``: checks an installation or a run, and suggests fixes.

Checks try the real operation: write a file, map it, open a connection. They never change a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from rich.table import Table
from rich.text import Text

from stepwell.cli.doctor.check import Check, State
from stepwell.cli.doctor.environment import check_backends, check_installation, check_machine
from stepwell.cli.doctor.storage import check_folder, check_run
from stepwell.cli.output import print_json
from stepwell.cli.terminal import console, counted, plain
from stepwell.reading import RecordedRun

SIGNS: dict[State, tuple[str, str]] = {
    "ok": ("✓", "green"),
    "note": ("!", "yellow"),
    "problem": ("✗", "red"),
}


def examine(runs: Path, run: RecordedRun | None, environ: Mapping[str, str]) -> Iterator[Check]:
    """Check a run, or the installation with ``runs`` as the folder for new runs."""
    if run is not None:
        yield from check_run(run)
        return
    yield from check_installation(environ)
    yield from check_machine()
    yield from check_folder(runs, environ)
    yield from check_backends(environ)


def show_checks(checks: Iterable[Check], as_json: bool = False) -> bool:
    """Print the checks. Return whether there is no problem."""
    results = list(checks)
    problems = sum(check.state == "problem" for check in results)
    if as_json:
        print_json({"problems": problems, "checks": results})
        return not problems
    out = console()
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in results:
        sign, colour = SIGNS[check.state]
        text = plain(check.text)
        if check.advice:
            text.append("\n")
            text.append_text(Text.assemble("→ ", plain(check.advice)))
        table.add_row(Text(sign, colour), plain(check.name), text)
    out.print(table)
    notes = sum(check.state == "note" for check in results)
    out.print(Text(_sum_up(problems, notes), "bold"))
    return not problems


def _sum_up(problems: int, notes: int) -> str:
    if not problems and not notes:
        return "Everything works."
    counts = ((problems, "problem"), (notes, "note"))
    words = [counted(number, name) for number, name in counts if number]
    return f"{' and '.join(words)}. Arrows show what to do."
