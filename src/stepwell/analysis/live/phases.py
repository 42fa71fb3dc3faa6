"""Where the time of the last minute went, kept up with while spans come in."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.analysis.time.words import (
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
from stepwell.journal.records import SpanRecord

SECOND = 1_000_000_000
KEPT_S = 60
_INHERITED: list[list[int]] = INHERITED.tolist()
_FINAL: list[list[int]] = final_phases().tolist()


@dataclass
class _Open:
    """A span that is open.

    ``code`` is that of its own time. ``own`` is the name that the user gave it, if that is a line of the time
    table; that of spans around steps is in ``around``.
    """

    record: SpanRecord
    code: int
    is_iteration: bool
    own: str | None = None
    around: str | None = None


class PhaseClock:
    """One thread: which span owns each instant, summed up by second.

    The owner is the innermost open span, or of siblings the one that began last. Time that has no phase
    belongs to the outermost span of the user's own. A collection of garbage counts to what it interrupted.
    """

    def __init__(self) -> None:
        self.has_steps = False
        self._open: dict[int, _Open] = {}
        self._codes: dict[tuple[str, str | None], int] = {}
        self._seconds: dict[int, dict[str, int]] = {}
        self._at: int | None = None

    @property
    def inside(self) -> list[SpanRecord]:
        """The spans that are open, the outermost first."""
        return [span.record for span in self._open.values()]

    @property
    def at_ns(self) -> int | None:
        """The time of the latest change."""
        return self._at

    def restart(self, since: int) -> None:
        """What comes next is all there is to know since this time; what went on before is left out."""
        self._open.clear()
        self._at = since or None

    def take(self, record: SpanRecord) -> None:
        """A span of this thread began or ended."""
        if record.type == "start":
            self._move(record.start_ns)
            self._begin(record)
        else:
            self._move(record.end_ns or record.start_ns)
            ended = self._open.pop(record.id, None)
            if ended is not None and ended.is_iteration:
                for span in self._open.values():
                    if span.record.start_ns <= ended.record.start_ns:
                        # What has a whole iteration inside merely holds others.
                        span.own = None

    def _begin(self, record: SpanRecord) -> None:
        key = record.name, record.category
        code = self._codes.get(key)
        if code is None:
            code = self._codes[key] = code_of(record.name, record.category or "")
        outer = self._open.get(record.parent) if record.parent is not None else None
        inherited = _INHERITED[NOTHING if outer is None else outer.code][code & CODE_MASK]
        span = _Open(record, inherited, bool(code & (ITERATION | LIKE_ITERATION)))
        if inherited in HAS_NO_PHASE and record.name not in PHASES:
            span.own = OWN_SPAN + record.name if code & OWN_NAME else None
            span.around = OWN_SPAN + record.name if code & LIKE_ITERATION else None
        self._open[record.id] = span
        self.has_steps = self.has_steps or span.is_iteration

    def _move(self, time: int) -> None:
        """Let time pass: it belongs to what was open until now."""
        before = self._at
        if before is None:
            self._at = time
        elif time > before:
            # What is older than a minute is of no interest.
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
        """Nanoseconds by phase in the minute before this time, the open stretch included."""
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
