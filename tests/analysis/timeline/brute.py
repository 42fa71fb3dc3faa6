"""A slow reference implementation, instant by instant, without code of the one under test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from stepwell.reading import RecordedRun

PHASE = {
    "data_loading": "data",
    "model_forward": "forward",
    "model_backward": "backward",
    "optimizer_update": "optimizer",
    "training_single_iteration": "training",
    "validation_loop": "validation",
    "checkpoint_save_sync": "checkpoint",
    "model_initialization": "startup",
    "wait for data": "data",
    "forward": "forward",
}
CLAIMING = ("validation", "checkpoint")
HOLDERS = ("application", "training_loop", "epoch")
OWN = ("my own", "helper")
NAMES = [*PHASE, *HOLDERS, *OWN]


class Slow:
    """One process and its spans as rows of the table; ``set_at`` are the times of new steps."""

    def __init__(self, run: RecordedRun, set_at: Sequence[int] = ()) -> None:
        self.set_at = set_at
        spans = run.spans().collect().to_dicts()
        self.process = run.processes().collect().row(0, named=True)
        for span in spans:
            span["end"] = (
                self.end if span["duration_ns"] is None else span["start_ns"] + span["duration_ns"]
            )
        self.by_id = {span["id"]: span for span in spans}
        self.pauses = [s for s in spans if (s["category"], s["name"]) == ("runtime", "gc")]
        self.spans = sorted(
            (s for s in spans if s["thread"] == "MainThread"),
            key=lambda s: (s["start_ns"], s["id"]),
        )

    @property
    def start(self) -> int:
        return int(self.process["started_ns"])

    @property
    def end(self) -> int:
        return int(self.process["heartbeat_ns"])

    def phase(self, span: dict[str, Any]) -> str | None:
        """The nearest exclusive phase, else the nearest phase, else whether the user named a span."""
        chain = []
        while span is not None:
            chain.append(span)
            span = self.by_id.get(span["parent"])  # type: ignore[assignment]
        phases = [PHASE.get(link["name"]) for link in chain]
        for phase in phases:
            if phase in CLAIMING:
                return phase
        for phase in phases:
            if phase is not None:
                return phase
        return "own" if any(link["name"] not in HOLDERS for link in chain) else None

    def owner(self, instant: int) -> dict[str, Any] | None:
        open_now = [s for s in self.spans if s["start_ns"] <= instant < s["end"]]
        return max(open_now, key=lambda s: (s["start_ns"], s["id"]), default=None)

    @property
    def has_standard_iterations(self) -> bool:
        return any(span["name"] == "training_single_iteration" for span in self.spans)

    def iterations(self) -> list[dict[str, Any]]:
        """Iterations that are not within or beside another one; else what was computed in each step."""
        result: list[dict[str, Any]] = []
        if not self.has_standard_iterations:
            return self.computed()
        reach = -1
        for span in self.spans:
            if span["name"] == "training_single_iteration":
                if span["start_ns"] >= reach:
                    result.append({"span": span, "start": span["start_ns"], "end": span["end"]})
                else:
                    result[-1]["end"] = max(result[-1]["end"], span["end"])
                reach = max(reach, span["end"])
        return result

    def computed(self) -> list[dict[str, Any]]:
        """Computation in each step, from the first start to the last end."""
        result: list[dict[str, Any]] = []
        computing = [s for s in self.spans if self.phase(s) in ("forward", "backward", "optimizer")]
        assert computing or not self.set_at
        reach = self.start
        for low, high in pairwise([*self.set_at, self.end + 1]):
            these = [s for s in computing if low <= s["start_ns"] < high]
            if these:
                start = max(these[0]["start_ns"], reach)
                reach = max(reach, *(s["end"] for s in these))
                result.append({"span": these[0], "start": start, "end": reach})
        return result

    def ledger(self) -> dict[tuple[int | None, str], int]:
        """Nanoseconds by index of the iteration and phase."""
        iterations = self.iterations()
        begins = [self.begin(i, iterations) for i in range(len(iterations))]
        times = {self.start, self.end, *begins}
        for span in [*self.spans, *self.pauses]:
            times |= {span["start_ns"], span["end"]}
        for iteration in iterations:
            times |= {iteration["start"], iteration["end"]}
        cuts = sorted(t for t in times if self.start <= t <= self.end)
        result: Counter[tuple[int | None, str]] = Counter()
        for low, high in pairwise(cuts):
            result[self.step(low, begins, iterations), self.final(low, begins, iterations)] += (
                high - low
            )
        return dict(result)

    def begin(self, number: int, iterations: list[dict[str, Any]]) -> int:
        """When the wait for the data right before an iteration began."""
        floor = iterations[number - 1]["end"] if number else self.start
        begin = int(iterations[number]["start"])
        at = self.spans.index(iterations[number]["span"])
        for span in reversed(self.spans[:at]):
            phase = self.phase(span)
            if span["start_ns"] < floor or phase not in ("data", None):
                break
            if phase == "data":
                begin = span["start_ns"]
        return begin

    def work_end(self) -> int:
        ends = [s["end"] for s in self.spans if self.phase(s) not in (None, "own", "startup")]
        return max(ends, default=self.start)

    def step(self, t: int, begins: list[int], iterations: list[dict[str, Any]]) -> int | None:
        number = sum(begin <= t for begin in begins)
        if not number or (t >= iterations[-1]["end"] and t >= self.work_end()):
            return None
        return number - 1

    def final(self, t: int, begins: list[int], iterations: list[dict[str, Any]]) -> str:
        if any(s["start_ns"] <= t < s["end"] for s in self.pauses):
            return "garbage collection"
        owner = self.owner(t)
        phase = self.phase(owner) if owner else None
        if phase not in (None, "own", "training"):
            return str(phase)
        name = self.own_name(t, iterations)
        if name is not None:
            return f"span:{name}"
        if phase == "training":
            return "other"
        if iterations:
            if t < begins[0]:
                return "startup"
            return "ending" if t >= iterations[-1]["end"] else "other"
        work = [s for s in self.spans if self.phase(s) not in (None, "own", "startup")]
        if work and t < work[0]["start_ns"]:
            return "startup"
        if work and t >= self.work_end():
            return "ending"
        return "other"

    def own_name(self, t: int, iterations: list[dict[str, Any]]) -> str | None:
        """The first open span of the user's own, except those around whole iterations."""
        for span in self.spans:
            is_own = span["name"] in OWN and self.phase(span) in (None, "own", "training")
            holds = any(
                span["start_ns"] <= i["start"] and i["end"] <= span["end"] for i in iterations
            )
            if is_own and not holds and span["start_ns"] <= t < span["end"]:
                return str(span["name"])
        return None
