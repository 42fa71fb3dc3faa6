"""The time of the last minute by phase, updated span by span."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.analysis.timeline.phases import (
    BEFORE,
    CODE_MASK,
    DURING,
    HAS_NO_PHASE,
    INHERITED,
    ITERATION,
    LIKE_ITERATION,
    NAMES,
    NOTHING,
    OWN_NAME,
    OWN_SPAN,
    PHASES,
    TRAINING,
    code_of,
    final_phases,
)
from stepwell.follower.records import SpanRecord

SECOND = 1_000_000_000
KEPT_S = 60
_INHERITED: list[list[int]] = INHERITED.tolist()
_FINAL: list[list[int]] = final_phases().tolist()


@dataclass
class _ActiveSpan:
    """An open span.

    Attributes:
        code: code of its own time.
        is_iteration: whether it is a training iteration.
        own: line of the time table, if it is a user's own span that has one.
        around: the same for a user's own span around each step.
    """

    record: SpanRecord
    code: int
    is_iteration: bool
    own: str | None = None
    around: str | None = None


class PhaseClock:
    """The time of one thread by second and phase.

    Each instant belongs to the innermost open span, or to the sibling that began last. Time without a phase
    belongs to the outermost own span of the user. A garbage collection belongs to the span it interrupts.
    """

    def __init__(self) -> None:
        self.has_steps = False
        self._open: dict[int, _ActiveSpan] = {}
        self._codes: dict[tuple[str, str | None], int] = {}
        self._seconds: dict[int, dict[str, int]] = {}
        self._at: int | None = None

    @property
    def inside(self) -> list[SpanRecord]:
        """The open spans, the outermost first."""
        return [span.record for span in self._open.values()]

    @property
    def at_ns(self) -> int | None:
        """The time of the latest change."""
        return self._at

    def restart(self, since: int) -> None:
        """Forget open spans, because records before ``since`` are skipped. Time counts from there on."""
        self._open.clear()
        self._at = since or None

    def take(self, record: SpanRecord) -> None:
        """Add the start or the end of a span of this thread."""
        if record.type == "start":
            self._move(record.start_ns)
            self._begin(record)
        else:
            self._move(record.end_ns or record.start_ns)
            ended = self._open.pop(record.id, None)
            if ended is not None and ended.is_iteration:
                for span in self._open.values():
                    if span.record.start_ns <= ended.record.start_ns:
                        # A span that contains a whole iteration is a container.
                        span.own = None

    def _begin(self, record: SpanRecord) -> None:
        key = record.name, record.category
        code = self._codes.get(key)
        if code is None:
            code = self._codes[key] = code_of(record.name, record.category or "")
        outer = self._open.get(record.parent) if record.parent is not None else None
        inherited = _INHERITED[NOTHING if outer is None else outer.code][code & CODE_MASK]
        span = _ActiveSpan(record, inherited, bool(code & (ITERATION | LIKE_ITERATION)))
        if inherited in HAS_NO_PHASE and record.name not in PHASES:
            span.own = OWN_SPAN + record.name if code & OWN_NAME else None
            span.around = OWN_SPAN + record.name if code & LIKE_ITERATION else None
        self._open[record.id] = span
        self.has_steps = self.has_steps or span.is_iteration

    def _move(self, time: int) -> None:
        """Advance the clock. The time since the last change belongs to the spans that were open."""
        before = self._at
        if before is None:
            self._at = time
        elif time > before:
            # Nothing older than a minute is needed.
            _add(self._seconds, self._phase(), max(before, time - KEPT_S * SECOND), time)
            self._at = time

    def _phase(self) -> str:
        spans = self._open.values()
        code = next(reversed(spans)).code if spans else NOTHING
        if code in HAS_NO_PHASE:
            own = next((span.own for span in spans if span.own), None)
            if own is None and code == TRAINING:
                own = next((span.around for span in spans if span.around), None)
            if own is not None:
                return own
        return NAMES[_FINAL[DURING if self.has_steps else BEFORE][code]]

    def shares(self, until: int) -> dict[str, int]:
        """Return nanoseconds by phase in the minute before ``until``, with the time since the last change."""
        first = until // SECOND - KEPT_S
        for second in [second for second in self._seconds if second < first]:
            del self._seconds[second]
        sums: dict[str, int] = {}
        latest: dict[int, dict[str, int]] = {}
        if self._at is not None and self._at < until:
            _add(latest, self._phase(), max(self._at, first * SECOND), until)
        for table in (self._seconds, latest):
            for phases in table.values():
                for phase, ns in phases.items():
                    sums[phase] = sums.get(phase, 0) + ns
        return sums


def _add(seconds: dict[int, dict[str, int]], phase: str, begin: int, end: int) -> None:
    while begin < end:
        second = begin // SECOND
        stop = min(end, (second + 1) * SECOND)
        phases = seconds.setdefault(second, {})
        phases[phase] = phases.get(phase, 0) + stop - begin
        begin = stop
