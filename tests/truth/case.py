"""A case: a training script, and the facts and findings that its report must have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

LIGHTNING, TRAINER, ACCELERATE = "Lightning", "HF Trainer", "Accelerate"
TRAINERS = (LIGHTNING, TRAINER, ACCELERATE)
WATCH, SPANS, DDP = "watch", "spans", "DDP"


@dataclass(frozen=True)
class Says:
    """A finding that a report must have: its rule, and what its sentence must name.

    Attributes:
        rule: the name of the rule.
        words: parts of the sentence or the advice.
        exact: parts that hold only with a clock that is set forward by hand.
        ranks: the ranks that it is about, if the finding must name any.
        steps: the first step in which it shows, or all of them as a tuple.
        within: how far the first step may be off, for faults that show only after some steps.
    """

    rule: str
    words: tuple[str, ...] = ()
    ranks: tuple[int, ...] | None = None
    steps: int | tuple[int, ...] | None = None
    within: int = 0
    exact: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """A training script and its truth.

    Attributes:
        script: the training, as a function without arguments.
        framework: which kind of recording it uses.
        steps: optimizer steps that were completed.
        epochs: epochs that were begun; None where the script has none.
        at: the step in progress when the process ended; the last one where the run finished.
        status: how the run ended.
        findings: all findings that the report must have, none for a healthy run.
        phases: whether the time table must agree with the script's stopwatch.
        ranks: number of processes.
        code: exit code of each rank.
        loss: name of the metric that must have the losses, bit for bit; None: not compared.
        env: variables of the environment.
        clock: "real" for what no other clock can show.
        wrong: why the product is not right yet. The test is expected to fail.
    """

    script: Callable[[], Any]
    framework: str
    steps: int
    epochs: int | None = 1
    at: int | None = None
    status: str = "finished"
    findings: tuple[Says, ...] = ()
    ranks: int = 1
    code: int | tuple[int, ...] = 0
    loss: str | None = "loss"
    phases: bool = True
    env: Mapping[str, str] = field(default_factory=dict)
    clock: str = "virtual"
    wrong: str = ""

    @property
    def name(self) -> str:
        """The name of the script's function, in words."""
        return self.script.__name__.strip("_").replace("_", " ")

    @property
    def family(self) -> str:
        """The module that has the script."""
        return self.script.__module__.rpartition(".")[2]

    @property
    def planted(self) -> str:
        """The purpose of the script, in one sentence."""
        return (self.script.__doc__ or "").strip().splitlines()[0]

    @property
    def last_step(self) -> int:
        """The step that the report must name as the last or the present one."""
        return self.steps - 1 if self.at is None else self.at


def case(framework: str, **truth: Any) -> Callable[[Callable[[], Any]], Case]:
    """Return a decorator that makes a case of a training script."""
    return lambda script: Case(script, framework, **truth)
