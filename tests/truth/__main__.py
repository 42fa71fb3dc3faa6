"""Run all cases with the real clock, and print a table: ``python -m tests.truth [--clock virtual]``."""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.harness.programs import PRELOADED, TRAINERS, fork_server, run_tests_here
from tests.truth.case import Case
from tests.truth.families import FAMILIES, cases_of
from tests.truth.outcome import Outcome, run_case

HEADINGS = (
    *("case", "framework", "planted", "status", "steps", "epochs", "losses", "samples/s"),
    *("phases off by", "findings expected", "findings found", "right"),
)


def main() -> None:
    """Run the cases that were asked for, a few at a time."""
    parser = argparse.ArgumentParser(prog="python -m tests.truth", description=__doc__)
    parser.add_argument("--clock", choices=("real", "virtual"), default="real", help="Clock.")
    parser.add_argument(
        "-k", default="", metavar="PATTERN", help="Cases whose family or name matches."
    )
    parser.add_argument("-j", type=int, default=2, metavar="N", help="Cases at the same time.")
    options = parser.parse_args()
    cases = [
        case
        for family in FAMILIES
        for case in cases_of(family)
        if re.search(options.k, f"{family} {case.script.__name__}")
    ]
    print(row(HEADINGS))
    print(row("---" for _ in HEADINGS), flush=True)
    run_tests_here()
    for modules in (PRELOADED, TRAINERS):
        fork_server(modules)
    mistakes: dict[str, list[str]] = {}
    with ThreadPoolExecutor(options.j) as threads:
        for case, (cells, wrong) in zip(
            cases, threads.map(lambda case: judge(case, options.clock), cases), strict=True
        ):
            print(row(cells), flush=True)
            if wrong:
                mistakes[f"{case.family}.{case.script.__name__}"] = wrong
    print(f"\n{len(cases) - len(mistakes)} of {len(cases)} right.")
    for name, wrong in mistakes.items():
        print(f"\n**{name}**\n", *(f"- {mistake}" for mistake in wrong), sep="\n")
    sys.exit(bool(mistakes))


def judge(case: Case, clock: str) -> tuple[list[str], list[str]]:
    """Run a case; return its cells of the table, and its mistakes."""
    with tempfile.TemporaryDirectory(prefix="truth-") as folder:
        try:
            outcome = run_case(case, Path(folder), clock)
            wrong = list(outcome.mistakes())
        except Exception as error:
            return [case.name, case.framework, case.planted, *[""] * 8, "no"], [repr(error)]
        return cells_of(outcome, wrong), wrong


def cells_of(outcome: Outcome, wrong: list[str]) -> list[str]:
    """Return a row of the table; where truth and report differ, both."""
    case, truth = outcome.case, outcome.truth
    is_equal = not any(mistake.startswith("losses") for mistake in wrong)
    losses = "" if case.loss is None else f"{len(truth.losses)} equal" if is_equal else "differ"
    rates = outcome.samples_per_second
    expected = ", ".join(says.rule for says in case.findings)
    found = ", ".join(finding.rule for finding in outcome.report.findings)
    return [
        case.name,
        case.framework + (f", {case.ranks} ranks" if case.ranks > 1 else ""),
        case.planted,
        both(case.status, outcome.report.status),
        both(str(case.steps), str(outcome.steps)),
        both(str(case.epochs or ""), str(outcome.epochs or "")),
        losses,
        "" if rates is None else f"{rates[1]:.3g} ({100 * (rates[1] / rates[0] - 1):+.1f} %)",
        f"{100 * outcome.phase_error:.2f} %" if truth.seconds else "",
        expected or "none",
        found or "none",
        "no" if wrong else "yes",
    ]


def both(true: str, said: str) -> str:
    """Return one of two values if they agree, otherwise both."""
    return true if true == said else f"{true} (report: {said})"


def row(cells: Iterable[str]) -> str:
    """Return a row of a Markdown table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    main()
