"""Runs a case and compares its report with its truth."""

from __future__ import annotations

import json
import math
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from stepwell.analysis.findings import Finding
from stepwell.analysis.report import Report, report
from stepwell.reading import RecordedRun
from tests.harness import TRAINERS as TRAINER_MODULES
from tests.harness import environment, run_ranks, run_script
from tests.harness.programs import PRELOADED
from tests.processes.programs import only_run
from tests.truth.case import TRAINERS, Case, Says

PROGRAM = "from tests.truth.program import main; main()"
TOLERANCE = {"virtual": 0.001, "real": 0.03}
"""How far phases may be off, as a share: with a clock that is set forward by hand, and with the real one."""
RATE_TOLERANCE = {"virtual": 0.005, "real": 0.03}
"""The same for samples per second: ranks need not end at the same time."""
LEAST_SHARE = 0.01
"""How far a phase may always be off with the real clock, as a share of the wall time."""


@dataclass(frozen=True)
class Truth:
    """The values in the side channel: seconds as the mean of all ranks, the rest from rank 0."""

    steps: int
    epochs: int
    samples: int
    elapsed: float
    losses: list[float]
    seconds: dict[str, float]


@dataclass(frozen=True)
class Outcome:
    """A case that was run: its truth, and its report."""

    case: Case
    clock: str
    truth: Truth
    run: RecordedRun
    report: Report
    ends: list[subprocess.CompletedProcess[str]]

    @property
    def steps(self) -> int:
        """How many steps the report counts."""
        return self.report.steps.count if self.report.steps else 0

    @property
    def epochs(self) -> int:
        """How many epochs it has."""
        return 0 if self.report.epoch is None else self.report.epoch + 1

    @property
    def losses(self) -> list[float]:
        """The losses that rank 0 has recorded, step by step."""
        table = self.run.metrics().filter(pl.col("name") == self.case.loss, pl.col("rank") == 0)
        values: list[float] = table.sort("step", maintain_order=True).collect()["value"].to_list()
        return values

    @property
    def phase_errors(self) -> dict[str, float]:
        """By how many seconds each phase of the time table is off."""
        table = {line.phase: line.ns / 1e9 for line in self.report.time}
        truth = self.truth.seconds if self.case.phases else {}
        return {phase: table.get(phase, 0.0) - seconds for phase, seconds in truth.items()}

    @property
    def phase_error(self) -> float:
        """By which share the worst phase is off."""
        seconds = self.truth.seconds
        return max(
            (abs(off) / seconds[phase] for phase, off in self.phase_errors.items()), default=0
        )

    @property
    def samples_per_second(self) -> tuple[float, float] | None:
        """Throughput in truth and in the report; None where the report has none."""
        said = self.report.throughput and self.report.throughput.samples_per_second
        if not said or not self.truth.samples:
            return None
        return self.truth.samples * self.case.ranks / self.truth.elapsed, said

    def mistakes(self) -> Iterator[str]:
        """Yield what the report has wrong, one sentence each."""
        yield from self._ends()
        yield from self._numbers()
        yield from self._phases()
        yield from self._findings()

    def _ends(self) -> Iterator[str]:
        codes = tuple(done.returncode for done in self.ends)
        expected = self.case.code if isinstance(self.case.code, tuple) else (self.case.code,)
        if codes != expected * (len(codes) // len(expected)):
            output = "\n".join(done.stderr for done in self.ends)
            yield f"the script ended with {codes}:\n{output}"
        for done in self.ends:
            if "problem inside stepwell" in done.stderr:
                yield f"a problem inside stepwell: {done.stderr}"

    def _numbers(self) -> Iterator[str]:
        case, truth = self.case, self.truth
        if (truth.steps, truth.epochs) != (case.steps, case.epochs or 0):
            yield f"the script made {truth.steps} steps in {truth.epochs} epochs"
        said = {
            "status": (self.report.status, case.status),
            "steps": (self.steps, case.steps),
            "epochs": (self.epochs, case.epochs or 0),
            "last step": (self.report.step, case.last_step),
        }
        for name, (is_said, is_true) in said.items():
            if is_said != is_true:
                yield f"{name}: {is_said} instead of {is_true}"
        rates = self.samples_per_second
        if rates is not None and abs(rates[1] / rates[0] - 1) > RATE_TOLERANCE[self.clock]:
            yield f"samples/s: {rates[1]:.4g} instead of {rates[0]:.4g}"
        if case.loss is not None and not _same(self.losses, truth.losses):
            yield f"losses: {_summary(self.losses)} instead of {_summary(truth.losses)}"

    def _phases(self) -> Iterator[str]:
        parts = [part.ns for part in self.report.time]
        if sum(parts) != self.report.wall_ns:
            yield f"time table: sums to {sum(parts)} of {self.report.wall_ns} ns"
        for phase, off in self.phase_errors.items():
            seconds = self.truth.seconds[phase]
            least = LEAST_SHARE * self.report.wall_ns / 1e9 if self.clock == "real" else 0.0
            if abs(off) > max(TOLERANCE[self.clock] * seconds, least):
                yield f"{phase}: {seconds + off:.3f} s instead of {seconds:.3f} s"

    def _findings(self) -> Iterator[str]:
        # Whether the machine is busy is not planted: other cases run at the same time.
        rest = [found for found in self.report.findings if found.rule != "busy-machine"]
        for says in self.case.findings:
            fitting = [finding for finding in rest if fits(says, finding, self.clock == "virtual")]
            if fitting:
                rest.remove(fitting[0])
            else:
                yield f"missing: {says}"
        for finding in rest:
            yield (
                f"unexpected: {finding.rule} ({finding.severity}; ranks {finding.ranks}, steps "
                f"{finding.steps[:5]}): {finding.sentence} → {finding.advice}"
            )


def fits(says: Says, finding: Finding, is_exact: bool) -> bool:
    """Whether this is the finding that a report must have."""
    text = f"{finding.sentence} {finding.advice}"
    words = says.words + says.exact * is_exact
    if says.rule != finding.rule or not all(part in text for part in words):
        return False
    if says.ranks is not None and says.ranks != finding.ranks:
        return False
    if isinstance(says.steps, tuple):
        return says.steps == finding.steps
    if says.steps is not None:
        return bool(finding.steps) and abs(finding.steps[0] - says.steps) <= says.within
    return True


def _same(said: list[float], true: list[float]) -> bool:
    """Whether two lists have the same numbers, bit for bit; what is not a number equals itself."""
    pairs = zip(said, true, strict=False)
    return len(said) == len(true) and all(
        a == b or (math.isnan(a) and math.isnan(b)) for a, b in pairs
    )


def _summary(values: list[float]) -> str:
    return f"{len(values)} ({', '.join(f'{value:.9g}' for value in [*values[:3], *values[-2:]])})"


def run_case(case: Case, folder: Path, clock: str = "virtual") -> Outcome:
    """Run the script of a case in a folder, and make its report."""
    clock = "real" if case.clock == "real" else clock
    env = environment(TRUTH_CLOCK=clock, **case.env)
    words = PROGRAM, case.family, case.script.__name__
    modules = TRAINER_MODULES if case.framework in TRAINERS else PRELOADED
    if case.ranks == 1:
        ends = [run_script(*words, env=env, cwd=folder, modules=modules)]
    else:
        ends = run_ranks(*words, world=case.ranks, env=env, cwd=folder, modules=modules)
    run = only_run(folder)
    return Outcome(case, clock, read_truth(folder), run, report(run), ends)


def read_truth(folder: Path) -> Truth:
    """Return what the side channel of each rank says."""
    ranks = [
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(folder.glob("truth-*.jsonl"))
    ]
    seconds: Counter[str] = Counter()
    for lines in ranks:
        seconds.update(lines[-1]["seconds"])
    first, last = ranks[0], ranks[0][-1]
    losses = [line["loss"] for line in first if line.get("loss") is not None]
    return Truth(
        last["steps"],
        last["epochs"],
        last["samples"],
        last["elapsed"],
        losses,
        {phase: total / len(ranks) for phase, total in seconds.items()},
    )
