"""How long things usually take in a run, and so from when on they take too long."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from stepwell.analysis.ranks.habits import Habits, habits_of
from stepwell.analysis.ranks.stacks import Frame, Stack
from stepwell.analysis.time.words import phase_of_span
from stepwell.reading import RecordedRun
from stepwell.vocabulary import StandardTrainingJobSpanName

TIMES = 10.0
"""What takes this many times as long as it ever took …"""
MOST_MORE_S = 600.0
"""… or so much longer, takes too long."""
OFTEN = 3
"""So often a thing must have been done to know how long it takes."""
FIRST_S = 300.0
"""What others or the data are waited for in may take so long while that is not known …"""
FIRST_WORK_S = 3600.0
"""… and so long what works for long as a rule."""
LONG = ("validation", "testing", "checkpoint", "restore")
"""Phases that take long as a rule, with all that is inside of them."""
WAITS = ("communication", "data")
"""Phases in which one waits for somebody else."""
DIST_INIT = StandardTrainingJobSpanName.DIST_INIT.value


@dataclass
class Usual:
    """What was done before: by name how often, and how long it took at most; collectives by rank."""

    done: dict[str, tuple[int, float]] = field(default_factory=dict)
    collectives: dict[int, int] = field(default_factory=dict)
    """How many each rank began in the latest attempt."""

    def judged(self, stack: Stack) -> Frame | None:
        """The span that tells whether a thread hangs: the innermost, or one that works for long around it."""
        for frame in stack.frames:
            if phase_of_span(frame.name, frame.category) in LONG:
                return frame
        return stack.innermost

    def limit_s(self, frame: Frame) -> float | None:
        """From how many seconds on a span takes too long; None when nobody can say."""
        count, longest = self.done.get(frame.name, (0, 0.0))
        usual = longest + min((TIMES - 1) * longest, MOST_MORE_S)
        phase = phase_of_span(frame.name, frame.category)
        if phase in LONG:
            return usual if count else FIRST_WORK_S
        if count >= OFTEN:
            return usual
        if phase in WAITS or frame.name == DIST_INIT:
            return max(FIRST_S, usual)
        return None

    def is_too_long(self, stack: Stack) -> bool:
        """Whether a thread sits somewhere for longer than that can take."""
        frame = self.judged(stack)
        limit = None if frame is None else self.limit_s(frame)
        return frame is not None and limit is not None and frame.seconds >= limit

    def is_at_work(self, stack: Stack) -> bool:
        """Whether a thread is in something that may well take as long as it has."""
        frame = self.judged(stack)
        limit = None if frame is None else self.limit_s(frame)
        return frame is not None and limit is not None and frame.seconds < limit


def usual(run: RecordedRun, attempt: int, known: Iterable[Habits] | None = None) -> Usual:
    """What was done before; earlier attempts tell how long things take, too.

    ``known`` is what each process did, if that has been read already.
    """
    found = Usual()
    each = (habits_of(tables) for tables in run.by_process()) if known is None else known
    for process in each:
        if process.role != "worker":
            _add(found, process, attempt)
    return found


def _add(found: Usual, process: Habits, attempt: int) -> None:
    for (name, category), (begun, ended, longest) in process.done.items():
        count, most = found.done.get(name, (0, 0.0))
        found.done[name] = count + ended, max(most, longest / 1e9)
        is_meeting = phase_of_span(name, category) == "communication"
        if is_meeting and process.attempt == attempt:
            so_far = found.collectives.get(process.rank, 0)
            found.collectives[process.rank] = so_far + begun
