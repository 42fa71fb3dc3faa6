"""``python -m benchmarks``: measures every row and prints tables. The exit code does not depend on them."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from benchmarks.registry import EVERYTHING, PEERS, ROWS
from benchmarks.row import Effort, Row
from benchmarks.runner import Outcome, run
from benchmarks.table import (
    Outcomes,
    machine,
    missing,
    own_table,
    peer_table,
    times_cheaper,
    verdict,
)

WIDTH = 100
"""Columns of sentences."""
UNLIMITED = 10_000
"""Columns of tables in piped output, where nothing may be cut."""


def main() -> None:
    asked = _arguments()
    effort = Effort(
        rounds=5 if asked.quick else 15, long_spans=10_000_000 if asked.long else 1_000_000
    )
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = UNLIMITED
    outcomes = _measure(_chosen(asked.only), effort, console)
    for table in (own_table(ROWS, outcomes), peer_table(PEERS, outcomes)):
        if table.row_count:
            console.print(table)
            console.print()
    for line in missing(outcomes):
        console.print(line, markup=False, soft_wrap=True)
    console.print(machine(outcomes.values()), width=min(WIDTH, console.width))
    if asked.json:
        asked.json.write_text(json.dumps(_as_json(outcomes), indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure the cost of recording, compared with other tools.",
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer rounds (two minutes, more noise)"
    )
    parser.add_argument("--long", action="store_true", help="10 million spans for memory and drift")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file for the results as JSON")
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        choices=[*EVERYTHING, "own", "peers"],
        help=f"row to measure; repeatable: own, peers, {', '.join(EVERYTHING)}",
    )
    return parser.parse_args()


def _chosen(only: list[str] | None) -> list[Row]:
    groups = {"own": ROWS, "peers": PEERS}
    names = [row.name for name in only or groups for row in groups.get(name) or (EVERYTHING[name],)]
    # A peer is compared with a row of stepwell, which must be measured too.
    names += [EVERYTHING[name].like for name in names if EVERYTHING[name].like]
    return [row for name, row in EVERYTHING.items() if name in names]


def _measure(rows: list[Row], effort: Effort, console: Console) -> Outcomes:
    outcomes: dict[str, Outcome] = {}
    with console.status("") as status:
        for number, row in enumerate(rows, 1):
            status.update(f"{number} of {len(rows)}: {row.title}")
            outcomes[row.name] = run(row, effort)
    return outcomes


def _as_json(outcomes: Outcomes) -> dict[str, object]:
    return {
        name: {
            "title": outcome.row.title,
            "unit": outcome.row.unit,
            "target": outcome.row.target,
            "measured": None if outcome.measured is None else asdict(outcome.measured),
            "why": outcome.why,
            "times_cheaper": times_cheaper(outcome, outcomes.get(outcome.row.like)),
            "verdict": verdict(outcome, outcomes.get(outcome.row.like)),
        }
        for name, outcome in outcomes.items()
    }


if __name__ == "__main__":
    main()
