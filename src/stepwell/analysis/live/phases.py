"""Where the time of the last minute went, kept up with while spans come in."""

from __future__ import annotations

from stepwell.analysis.time.words import (
    BEFORE,
    BETWEEN,
    CODE_MASK,
    FINAL,
    INHERITED,
    INSIDE,
    ITERATION,
    LIKE_ITERATION,
    NAMES,
    NOTHING,
    code_of,
)
from stepwell.journal.records import SpanRecord

SECOND = 1_000_000_000
KEPT_S = 60
_INHERITED: list[list[int]] = INHERITED.tolist()
_FINAL: list[list[int]] = FINAL.tolist()


class PhaseClock:
    """One thread: which span owns each instant, summed up by second.

    The owner is the innermost open span, or of siblings the one that began last. A collection of garbage
    counts to what it interrupted.
    """

    def __init__(self) -> None:
        self.has_steps = False
        self._open: dict[int, tuple[SpanRecord, int, bool]] = {}
        self._codes: dict[tuple[str, str | None], int] = {}
        self._seconds: dict[int, dict[int, int]] = {}
        self._at: int | None = None
        self._iterations = 0

    @property
    def inside(self) -> list[SpanRecord]:
        """The spans that are open, the outermost first."""
        return [record for record, _, _ in self._open.values()]

    @property
    def at_ns(self) -> int | None:
        """The time of the latest change."""
        return self._at

    def restart(self, since: int) -> None:
        """What comes next is all there is to know since this time; what went on before is left out."""
        self._open.clear()
        self._iterations = 0
        self._at = since or None

    def take(self, record: SpanRecord) -> None:
        """A span of this thread began or ended."""
        if record.type == "start":
            self._move(record.start_ns)
            self._begin(record)
        else:
            self._move(record.end_ns or record.start_ns)
            known = self._open.pop(record.id, None)
            if known is not None and known[2]:
                self._iterations -= 1

    def _begin(self, record: SpanRecord) -> None:
        key = record.name, record.category
        code = self._codes.get(key)
        if code is None:
            code = self._codes[key] = code_of(record.name, record.category or "")
        outer = self._open.get(record.parent) if record.parent is not None else None
        own = code & CODE_MASK
        inherited = _INHERITED[NOTHING if outer is None else outer[1]][own]
        is_iteration = bool(code & (ITERATION | LIKE_ITERATION))
        self._open[record.id] = record, inherited, is_iteration
        if is_iteration:
            self.has_steps = True
            self._iterations += 1

    def _move(self, time: int) -> None:
        """Let time pass: it belongs to what was open until now."""
        before = self._at
        if before is None:
            self._at = time
        elif time > before:
            # What is older than a minute is of no interest.
            _add(self._seconds, self._phase(), max(before, time - KEPT_S * SECOND), time)
            self._at = time

    def _phase(self) -> int:
        place = INSIDE if self._iterations else BETWEEN if self.has_steps else BEFORE
        inherited = next(reversed(self._open.values()))[1] if self._open else NOTHING
        return _FINAL[place][inherited]

    def shares(self, until: int) -> dict[str, int]:
        """Nanoseconds by phase in the minute before this time, the open stretch included."""
        first = until // SECOND - KEPT_S
        for second in [second for second in self._seconds if second < first]:
            del self._seconds[second]
        sums: dict[int, int] = {}
        latest: dict[int, dict[int, int]] = {}
        if self._at is not None and self._at < until:
            _add(latest, self._phase(), max(self._at, first * SECOND), until)
        for table in (self._seconds, latest):
            for phases in table.values():
                for phase, ns in phases.items():
                    sums[phase] = sums.get(phase, 0) + ns
        return {NAMES[phase]: ns for phase, ns in sums.items()}


def _add(seconds: dict[int, dict[int, int]], phase: int, begin: int, end: int) -> None:
    while begin < end:
        second = begin // SECOND
        stop = min(end, (second + 1) * SECOND)
        phases = seconds.setdefault(second, {})
        phases[phase] = phases.get(phase, 0) + stop - begin
        begin = stop
