"""What a synthetic run consists of: its size, its pace, and the faults that are planted in it."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepwell.journal.errors import StepwellError

MS = 1_000_000
SECOND = 1000 * MS
OWN_PHASES = ("data", "forward", "backward", "optimizer")
"""The phases in which a rank works by itself, so that it can be slower than others there."""
FAULTS = ("straggler", "stall", "data", "restart")


@dataclass(frozen=True)
class Straggler:
    """A rank that takes longer than the others in one phase of these steps; they wait for it."""

    rank: int
    phase: str
    steps: range
    ns: int
    """How much longer, in each of the steps."""


@dataclass(frozen=True)
class Stall:
    """Something stops once for a long while: on one rank, or with ``rank=None`` on all of them."""

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
    """The job dies within this step and goes on later from its last checkpoint."""

    step: int
    gap_ns: int = 20 * SECOND
    failed: bool = False
    """Whether it ends with an exception; else it is killed."""


@dataclass(frozen=True)
class Hang:
    """The job ends hanging: in this step one rank stays in its data loading, all others in a collective."""

    rank: int
    step: int
    ns: int = 300 * SECOND
    """For how long, until it is killed."""


Fault = Straggler | Stall | DataBound | Restart | Hang


@dataclass(frozen=True)
class Pace:
    """How long things take when nothing is wrong, in nanoseconds; steps vary by ``jitter`` of it."""

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
    """How long it takes after each checkpoint; 0 for none."""
    restore: int = 3 * SECOND
    launch: int = 2 * SECOND
    """From the start of a process until its first span."""
    initialisation: tuple[int, int, int, int] = (2 * SECOND, 300 * MS, 1500 * MS, 200 * MS)
    """Of the processes, the data loaders, the model and the optimizer."""
    ending: int = 500 * MS
    jitter: float = 0.02


@dataclass(frozen=True)
class Plan:
    """A run to write."""

    ranks: int
    steps: int
    """Its last step is the one before this."""
    faults: tuple[Fault, ...] = ()
    pace: Pace = field(default_factory=Pace)
    checkpoint_every: int = 100
    ranks_per_node: int = 8
    steps_per_epoch: int = 1000
    seed: int = 0
    began_ns: int = 1_767_225_600 * SECOND
    """When the first process started."""
    collectives: bool = True
    """Whether collectives are recorded as such; else they are something within the backward pass."""
    session: str | None = None
    first_step: int = 0
    """Where it goes on from, after another run."""
    name: str = "simulated"

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.steps <= self.first_step or self.checkpoint_every < 1:
            raise StepwellError("a run has at least 1 rank, 1 step and 1 step between checkpoints")
        for fault in self.faults:
            _check(fault, self)


def _check(fault: Fault, plan: Plan) -> None:
    rank = getattr(fault, "rank", None)
    if rank is not None and not 0 <= rank < plan.ranks:
        raise StepwellError(f"{fault}: the ranks are 0 to {plan.ranks - 1}")
    steps = (
        fault.steps
        if isinstance(fault, Straggler | DataBound)
        else range(fault.step, fault.step + 1)
    )
    if not steps or steps.step < 1 or steps[0] < 0 or steps[-1] >= plan.steps:
        raise StepwellError(f"{fault}: the steps are 0 to {plan.steps - 1}")
    if isinstance(fault, Straggler | Stall) and fault.phase not in OWN_PHASES:
        raise StepwellError(f"{fault}: write one of the phases {', '.join(OWN_PHASES)}")


def make_plan(
    ranks: int, steps: int, kinds: tuple[str, ...] = FAULTS, *, seed: int = 0, jitter: float = 0.02
) -> Plan:
    """A plan with one fault of each of these kinds, in different places of the run.

    With few steps some have no room: at least 200 are needed for all of them. A straggler needs a
    second rank.
    """
    unknown = [kind for kind in kinds if kind not in FAULTS]
    if unknown:
        raise StepwellError(f"{unknown[0]!r} cannot be planted: write one of {', '.join(FAULTS)}")
    faults: list[Fault] = []
    if "straggler" in kinds and ranks > 1:
        faults.append(Straggler(ranks - 1, "forward", range(steps // 10, steps // 4), 15 * MS))
    if "data" in kinds:
        faults.append(DataBound(range(steps * 3 // 10, steps * 4 // 10), 60 * MS))
    if "stall" in kinds:
        faults.append(Stall(steps * 9 // 20, "data", 8 * SECOND, rank=ranks // 2))
    every = max(1, min(100, steps // 5))
    if "restart" in kinds and steps >= 20:
        at = steps * 7 // 10
        faults.append(Restart(at - at % every + every // 2))
    return Plan(ranks, steps, tuple(faults), Pace(jitter=jitter), every, seed=seed)
