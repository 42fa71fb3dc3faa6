"""The plan of a synthetic run: its size, its durations, and the faults to plant in it."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepwell._core.checks import POSITIVE, one_of
from stepwell._core.errors import StepwellError

MS = 1_000_000
SECOND = 1000 * MS
OWN_PHASES = ("data", "forward", "backward", "optimizer")
"""The phases in which a rank works by itself, and so can be slower than others."""
FAULTS = ("straggler", "stall", "data", "restart")


@dataclass(frozen=True)
class StragglerFault:
    """A rank that takes longer than the others in one phase of some steps, so that they wait for it."""

    rank: int
    phase: str
    steps: range
    ns: int
    """How much longer, in each of the steps."""


@dataclass(frozen=True)
class Stall:
    """A single long pause on one rank, or with ``rank=None`` on all ranks."""

    step: int
    phase: str
    ns: int
    rank: int | None = None


@dataclass(frozen=True)
class DataBound:
    """Steps in which every rank waits longer for its data."""

    steps: range
    ns: int
    """How much longer, in each of the steps."""


@dataclass(frozen=True)
class Restart:
    """The job dies in this step and is resumed later from its last checkpoint."""

    step: int
    gap_ns: int = 20 * SECOND
    failed: bool = False
    """Whether it ends with an exception; if not, it is killed."""


@dataclass(frozen=True)
class HangFault:
    """In this step one rank stays in data loading and the others in a collective, until the job is killed."""

    rank: int
    step: int
    ns: int = 300 * SECOND
    """How long it hangs."""


Fault = StragglerFault | Stall | DataBound | Restart | HangFault


@dataclass(frozen=True)
class PlannedDurations:
    """Durations without faults, in nanoseconds. Those of steps vary by the share ``jitter``."""

    data: int = 1 * MS
    zero: int = 200_000
    forward: int = 20 * MS
    backward: int = 36 * MS
    communication: int = 5 * MS
    optimizer: int = 4 * MS
    between: int = 300_000
    """Between two iterations."""
    checkpoint: int = 800 * MS
    validation: int = 0
    """Validation after each checkpoint; 0 for none."""
    restore: int = 3 * SECOND
    launch: int = 2 * SECOND
    """From the start of a process to its first span."""
    initialisation: tuple[int, int, int, int] = (2 * SECOND, 300 * MS, 1500 * MS, 200 * MS)
    """Initialisation of the processes, the data loaders, the model and the optimizer."""
    ending: int = 500 * MS
    jitter: float = 0.02


@dataclass(frozen=True)
class RunPlan:
    """A run to write."""

    ranks: int
    steps: int
    """The step after the last one."""
    faults: tuple[Fault, ...] = ()
    pace: PlannedDurations = field(default_factory=PlannedDurations)
    checkpoint_every: int = 100
    ranks_per_node: int = 8
    steps_per_epoch: int = 1000
    seed: int = 0
    began_ns: int = 1_767_225_600 * SECOND
    """When the first process started."""
    collectives: bool = True
    """Whether collectives are recorded as such; if not, as an unknown span in the backward pass."""
    session: str | None = None
    first_step: int = 0
    """The first step, for a run that continues another one."""
    name: str = "simulated"

    def __post_init__(self) -> None:
        POSITIVE.check("ranks", self.ranks)
        POSITIVE.check("checkpoint_every", self.checkpoint_every)
        if self.steps <= self.first_step:
            raise StepwellError(f"steps must be at least {self.first_step + 1}, got {self.steps}")
        for fault in self.faults:
            _check(fault, self)


def _check(fault: Fault, plan: RunPlan) -> None:
    rank = getattr(fault, "rank", None)
    if rank is not None and not 0 <= rank < plan.ranks:
        raise StepwellError(f"{fault}: rank must be from 0 to {plan.ranks - 1}, got {rank}")
    steps = (
        fault.steps
        if isinstance(fault, StragglerFault | DataBound)
        else range(fault.step, fault.step + 1)
    )
    if not steps or steps.step < 1 or steps[0] < 0 or steps[-1] >= plan.steps:
        raise StepwellError(f"{fault}: steps must be from 0 to {plan.steps - 1}")
    if isinstance(fault, StragglerFault | Stall):
        one_of(*OWN_PHASES).check(f"{fault}: phase", fault.phase)


def make_plan(
    ranks: int, steps: int, kinds: tuple[str, ...] = FAULTS, *, seed: int = 0, jitter: float = 0.02
) -> RunPlan:
    """Return a plan with one fault of each of these kinds, in different places of the run.

    All of them together need at least 200 steps; a straggler needs a second rank.
    """
    for kind in kinds:
        one_of(*FAULTS).check("fault", kind)
    faults: list[Fault] = []
    if "straggler" in kinds and ranks > 1:
        faults.append(StragglerFault(ranks - 1, "forward", range(steps // 10, steps // 4), 15 * MS))
    if "data" in kinds:
        faults.append(DataBound(range(steps * 3 // 10, steps * 4 // 10), 60 * MS))
    if "stall" in kinds:
        faults.append(Stall(steps * 9 // 20, "data", 8 * SECOND, rank=ranks // 2))
    every = max(1, min(100, steps // 5))
    if "restart" in kinds and steps >= 20:
        at = steps * 7 // 10
        faults.append(Restart(at - at % every + every // 2))
    return RunPlan(ranks, steps, tuple(faults), PlannedDurations(jitter=jitter), every, seed=seed)
