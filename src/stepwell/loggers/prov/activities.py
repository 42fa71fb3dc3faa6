"""The activities of a provenance document: the run, its attempts, ranks and phases, and their order."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from stepwell.journal.document import worst_of
from stepwell.loggers.prov.history import Phase, ProcessHistory, RunHistory
from stepwell.loggers.prov.statements import Name, Statements, local_name

MOST_OF_A_NAME = 100
"""A phase that occurs more often in an attempt is one activity."""
MOST_RANKS = 64
"""If there are more ranks, the document has only their number."""
STATUSES = ("error", "open", "unfinished", "ok")
"""Statuses of spans. Of several, the document has the first in this list."""

INFORMANTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "optimizer_initialization": (("model_initialization",),),
    "checkpoint_load": (("model_initialization",),),
    "training_loop": (
        ("distributed_code_initialization",),
        ("data_loader_initialization",),
        ("model_initialization",),
        ("optimizer_initialization",),
        ("checkpoint_load",),
    ),
    "validation_loop": (("training_loop", "checkpoint_load", "model_initialization"),),
    "testing_loop": (("training_loop", "checkpoint_load", "model_initialization"),),
    "checkpoint_save_sync": (("training_loop",),),
    "checkpoint_save_async": (("training_loop",),),
    "checkpoint_save_finalization": (("checkpoint_save_async",),),
}
"""The phases that each phase depends on (for the model, the data loaders, the weights). Of each inner tuple,
the first phase that exists."""


@dataclass
class Activity:
    """A phase of all ranks together. ``end`` is None while it runs.

    ``all`` is the id of the activity that contains all phases of this name; its own id if there is only one.
    """

    id: str
    all: str
    attempt: int
    name: str
    start: int
    end: int | None
    phases: list[Phase] = field(default_factory=list)

    def contains(self, start: int, end: int) -> bool:
        """Return whether an interval lies in it."""
        return self.start <= start and (self.end is None or end <= self.end)


class Activities:
    """Adds the activities of a run to a document, and finds the activity of a time or span."""

    def __init__(self, history: RunHistory, statements: Statements, experiment: str) -> None:
        self.history = history
        self.statements = statements
        self.phases: list[Activity] = []
        self.groups: list[Activity] = []
        self.attempts: dict[int, str] = {}
        self._times: dict[str, tuple[int, int | None]] = {}
        self._by_span: dict[int, Activity] = {}
        self._saved = {c.span: c.time for c in history.checkpoints if c.span is not None}
        self._group()
        self.run = self._state_run(experiment)
        for number in history.attempts:
            self._state_attempt(number)
        for activity in sorted([*self.groups, *self.phases], key=lambda a: a.start):
            if activity.id not in self._times:
                self._state_phase(activity)
        self._inform()

    def all(self) -> list[str]:
        """Return the ids of all activities."""
        return list(self._times)

    def inside(self, attempt: str) -> list[str]:
        """Return the ids of the activities in an attempt."""
        return [id for id in self._times if id.startswith(f"{attempt}/")]

    def named(self, attempt: int, name: str) -> str | None:
        """Return the id of the activity of all phases of this name in an attempt."""
        ids = (a.id for a in self.groups if a.attempt == attempt and a.name == name)
        return next(ids, None)

    def of_span(self, span: int | None) -> str | None:
        """Return the id of the activity that a span is a part of."""
        activity = self._by_span.get(span) if span is not None else None
        return activity.id if activity else None

    def around(self, attempt: int, start: int, end: int) -> str:
        """Return the id of the activity that produced something between these times.

        It is the innermost phase that contains both times. If they are in two phases of one name, it is the
        activity of all phases of that name.
        """
        first, last = self._innermost(attempt, start, start), self._innermost(attempt, end, end)
        if first is not None and last is not None and first.all == last.all:
            return first.id if first is last else first.all
        both = self._innermost(attempt, start, end)
        return both.id if both is not None else self.attempts[attempt]

    def _innermost(self, attempt: int, start: int, end: int) -> Activity | None:
        phases = [a for a in self.phases if a.attempt == attempt and a.contains(start, end)]
        return max(phases, key=lambda a: a.start, default=None)

    def generate(self, entity: str, activity: str, time: int) -> None:
        """Add that an activity generated an entity. The time is clipped to the activity."""
        if self.statements.related("wasGeneratedBy", entity):
            return
        start, end = self._times[activity]
        time = max(time, start) if end is None else min(max(time, start), end)
        self.statements.relate("wasGeneratedBy", entity, activity, time=time)

    # Times

    def _group(self) -> None:
        """Combine the ranks: the n-th training loop of every rank is one activity, and so on."""
        groups: dict[tuple[int, str], dict[str, list[Phase]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for phase in sorted(self.history.phases, key=lambda phase: phase.start):
            groups[phase.attempt, phase.name][phase.process].append(phase)
        for (attempt, name), by_process in groups.items():
            whole = f"run:attempt-{attempt}/{name}"
            parts = [phase for phases in by_process.values() for phase in phases]
            group = self._activity(whole, whole, parts)
            self.groups.append(group)
            most = max(map(len, by_process.values()))
            if most == 1 or most > MOST_OF_A_NAME:
                self._add(group)
                continue
            for number in range(most):
                parts = [phases[number] for phases in by_process.values() if number < len(phases)]
                self._add(self._activity(f"{whole}-{number + 1}", whole, parts))
        self.phases.sort(key=lambda activity: activity.start)

    def _activity(self, id: str, all: str, parts: list[Phase]) -> Activity:
        # A save ends when its checkpoint is complete, which may be after training has continued.
        saved = self._saved
        ends = [max(p.end, saved.get(p.id, 0)) for p in parts if p.end is not None]
        end = max(ends) if len(ends) == len(parts) else None
        first = parts[0]
        start = min(part.start for part in parts)
        return Activity(id, all, first.attempt, first.name, start, end, parts)

    def _add(self, activity: Activity) -> None:
        self.phases.append(activity)
        self._by_span |= {phase.id: activity for phase in activity.phases}

    def _span_of(self, attempt: int | None) -> tuple[int, int | None]:
        """Return the start and end of an attempt, or of the whole run.

        The start is that of all processes, the end that of the deciding ones.
        """
        processes = self.history.deciding(attempt)
        begun = [p.start for p in self.history.processes if attempt is None or p.attempt == attempt]
        inside = [a for a in self.phases if attempt is None or a.attempt == attempt]
        logged = [i.time for i in self.history.items if attempt is None or i.attempt == attempt]
        for series in self.history.series:
            if attempt is None or series.attempt == attempt:
                logged += [series.start, series.end]
        starts = [*filter(None, begun), *(a.start for a in inside), *logged]
        if not processes or any(process.end is None for process in processes):
            return min(starts, default=0), None
        ends = [p.end or 0 for p in processes] + [a.end or 0 for a in inside] + logged
        return min(starts, default=0), max([*ends, *starts])

    # Statements

    def _state_run(self, experiment: str) -> str:
        history = self.history
        return self._state(
            "run:run",
            self._span_of(None),
            prov_type=Name("stepwell:Run"),
            prov_label=f"run {history.name}",
            dcterms_identifier=history.id,
            stepwell_experiment=experiment,
            stepwell_status=history.status,
            stepwell_tag=history.tags,
            stepwell_attempts=len(history.attempts),
        )

    def _state_attempt(self, number: int) -> None:
        document = self.history.attempts[number]
        processes = [process for process in self.history.processes if process.attempt == number]
        size = document.get("world_size")
        hosts = sorted({process.host for process in processes if process.host})
        attempt = self._state(
            f"run:attempt-{number}",
            self._span_of(number),
            prov_type=Name("stepwell:Attempt"),
            prov_label=f"attempt {number}",
            dcterms_isPartOf=Name(self.run),
            stepwell_status=worst_of(p.status for p in self.history.deciding(number)),
            stepwell_world_size=size if isinstance(size, int) else None,
            stepwell_launcher=document.get("launcher"),
            stepwell_command=_command(document.get("argv")),
            stepwell_folder=document.get("cwd"),
            stepwell_host=hosts[:MOST_RANKS],
            stepwell_ranks=len({process.rank for process in processes}),
        )
        self.attempts[number] = attempt
        self.statements.relate("wasStartedBy", attempt, self.run)
        if number - 1 in self.attempts:
            # It continues the run with the results of the attempt before.
            self.statements.relate("wasInformedBy", attempt, self.attempts[number - 1])
        if 1 < len(processes) <= MOST_RANKS:
            self._state_ranks(attempt, processes)

    def _state_ranks(self, attempt: str, processes: list[ProcessHistory]) -> None:
        several = {p.rank for p in processes if [q.rank for q in processes].count(p.rank) > 1}
        for process in processes:
            more = f"-{process.pid}" if process.rank in several else ""
            rank = self._state(
                f"{attempt}/{local_name([f'rank-{process.rank}{more}'])}",
                (process.start, process.end),
                prov_type=Name("stepwell:Rank"),
                prov_label=f"rank {process.rank}",
                dcterms_isPartOf=Name(attempt),
                stepwell_rank=process.rank,
                stepwell_host=process.host,
                stepwell_pid=process.pid,
                stepwell_status=process.status,
            )
            self.statements.relate("wasStartedBy", rank, attempt)

    def _state_phase(self, activity: Activity) -> None:
        around = self._parent(activity)
        part_of = around if activity.id == activity.all else activity.all
        ranks = len({phase.rank for phase in activity.phases})
        times = max(Counter(phase.process for phase in activity.phases).values())
        statuses = {phase.status for phase in activity.phases}
        label = activity.id.rpartition("/")[2].replace("_", " ").replace("-", " ")
        self._state(
            activity.id,
            (activity.start, activity.end),
            prov_type=[Name("stepwell:Phase"), Name(f"stepwell:{activity.name}")],
            prov_label=f"{label}, {times} times" if times > 1 else label,
            dcterms_isPartOf=Name(part_of),
            stepwell_status=next((status for status in STATUSES if status in statuses), None),
            stepwell_times=times if times > 1 else None,
            stepwell_ranks=ranks if ranks > 1 else None,
        )
        self.statements.relate("wasStartedBy", activity.id, around)

    def _parent(self, activity: Activity) -> str:
        """Return the innermost phase around this one, else its attempt."""
        end = activity.start if activity.end is None else activity.end
        around = [
            other
            for other in self.phases
            if other.attempt == activity.attempt
            and other.all != activity.all
            and other.contains(activity.start, end)
            and (other.start, other.end) != (activity.start, activity.end)
        ]
        if around:
            return max(around, key=lambda other: other.start).id
        return self.attempts[activity.attempt]

    def _state(self, id: str, times: tuple[int, int | None], **attributes: Any) -> str:
        self._times[id] = times
        return self.statements.activity(id, *times, **attributes)

    # Order

    def _inform(self) -> None:
        """Add which phases depend on which earlier ones."""
        for later in self.groups:
            for choice in INFORMANTS.get(later.name, ()):
                before = (self._before(later, name) for name in choice)
                earlier = next((other for other in before if other is not None), None)
                if earlier is not None:
                    self.statements.relate("wasInformedBy", later.id, earlier.id)
        loops = [activity for activity in self.phases if activity.name == "training_loop"]
        for first, second in pairwise(loops):
            if first.attempt == second.attempt:
                self.statements.relate("wasInformedBy", second.id, first.id)

    def _before(self, later: Activity, name: str) -> Activity | None:
        """Return the phases of this name in the same attempt, if one of them started before."""
        for other in self.groups:
            if other.attempt == later.attempt and other.name == name and other.start <= later.start:
                return other
        return None


def _command(argv: Any) -> str | None:
    """Return a command line as it would be typed."""
    return shlex.join(map(str, argv)) if isinstance(argv, list) and argv else None
