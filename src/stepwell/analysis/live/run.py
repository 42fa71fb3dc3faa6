"""A running job: each look reads the records that are new since the last one."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from stepwell._core import clock
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.live.curves import LiveCurves, MetricNow
from stepwell.analysis.live.rank import LiveRank, RankNow
from stepwell.analysis.progress import (
    EPOCHS,
    explicit_target,
    loader_target,
    whole_number,
)
from stepwell.analysis.throughput import Throughput
from stepwell.analysis.timeline.phases import phase_title
from stepwell.analysis.tracebacks import is_lost_peer
from stepwell.reading import RecordedRun
from stepwell.reading.documents import error_text
from stepwell.reading.process import process_folders, read_document

MOST_RANKS = 64
"""Ranks that are followed: the first ones of a larger job."""
MOST_METRICS = 8
EVERY_S = 30.0
REST = 20
"""The pause after applying the rules is this many times their duration: they use at most 1/20 of a core."""
Findings = tuple[Finding, ...]


@dataclass(frozen=True)
class Snapshot:
    """The state of a run.

    ``time`` has the share of each phase in the last ``time_seconds`` of all ranks, the largest first. That is
    a minute, or less if the run is younger or records too many spans to read. ``findings`` are all findings,
    ``new`` those that no earlier snapshot had.
    """

    id: str
    name: str
    path: Path
    time_ns: int
    status: str
    error: str | None
    seconds: float
    attempt: int
    step: int | None
    epoch: int | None
    target: int | None
    steps_per_second: float | None
    seconds_left: float | None
    samples_per_second: float | None
    tokens_per_second: float | None
    throughput: Throughput | None
    """Over the whole training loop; the two rates above are from the latest update alone."""
    metrics: tuple[MetricNow, ...]
    time: dict[str, float]
    time_seconds: float
    ranks: tuple[RankNow, ...]
    not_followed: int
    """Number of ranks that are not followed."""
    findings: tuple[Finding, ...] = field(default=())
    new: tuple[Finding, ...] = field(default=())

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.status not in ("running", "empty")

    @property
    def done(self) -> float | None:
        """Share of the steps that are done."""
        if not self.target or self.step is None:
            return None
        return min(1.0, (self.step + 1) / self.target)


class LiveRun:
    """Follows a run from a minute ago on.

    Args:
        run: the run.
        findings: whether to apply the rules, which read the whole run, from time to time in a thread.
    """

    def __init__(self, run: RecordedRun, findings: bool = True) -> None:
        self.run = run
        self._ranks: dict[str, LiveRank] = {}
        self._attempt = 0
        self._first_ns: int | None = None
        self._seen: set[str] = set()
        self._others = 0
        self._curves = LiveCurves(run)
        self._findings = LiveFindings(run) if findings else None

    def look(self, last: bool = False) -> Snapshot:
        """Return the current state of the run. With ``last``, wait for its findings."""
        self._find_ranks()
        # Read first: all that is read afterwards is at least as new as the status.
        status = self.run.status
        for rank in self._ranks.values():
            rank.look(self._curves)
        findings, new = ((), ()) if self._findings is None else self._findings.take(last)
        ranks = sorted(self._ranks.values(), key=lambda rank: rank.rank)
        until = max((rank.until() for rank in ranks), default=clock.wall())
        leader = next((rank for rank in ranks if rank.step is not None), None)
        # While it hangs there is no pace, and the time left is unknown.
        hangs = any(finding.rule == "hang" for finding in findings)
        pace = leader.pace(until) if leader is not None and not hangs else None
        target = self._target(leader)
        step = leader.step if leader is not None else None
        shares, covered = _time(ranks, until)
        left = None
        if pace and target and step is not None and status == "running":
            left = max(0, target - step - 1) / pace
        return Snapshot(
            id=self.run.id,
            name=self.run.name,
            path=self.run.path,
            time_ns=clock.wall(),
            status=status,
            error=self._error(),
            seconds=max(0, until - (self._first_ns or until)) / 1e9,
            attempt=self._attempt,
            step=step,
            epoch=leader.epoch if leader is not None else None,
            target=target,
            steps_per_second=pace,
            seconds_left=left,
            samples_per_second=_rate(ranks, "samples"),
            tokens_per_second=_rate(ranks, "tokens"),
            throughput=_throughput(ranks),
            metrics=self._curves.latest(MOST_METRICS),
            time=shares,
            time_seconds=covered,
            ranks=tuple(rank.now(max(until, rank.until())) for rank in ranks),
            not_followed=self._others,
            findings=findings,
            new=new,
        )

    def _find_ranks(self) -> None:
        """Follow new ranks, or those of the next attempt. Reads the document of each process once."""
        for folder in process_folders(self.run.path):
            document = None if folder.name in self._seen else read_document(folder)
            if document is None:
                continue
            self._seen.add(folder.name)
            attempt = int(document["attempt"])
            started = int(document.get("started") or clock.wall())
            self._first_ns = min(started, self._first_ns or started)
            if attempt > self._attempt:
                self._attempt = attempt
                self._ranks.clear()
                self._others = 0
            if attempt < self._attempt:
                continue
            if len(self._ranks) < MOST_RANKS:
                self._ranks[folder.name] = LiveRank(folder)
            else:
                self._others += 1

    def _target(self, leader: LiveRank | None) -> int | None:
        """Return the planned number of steps, from the loop, the configuration or the epochs."""
        config = self.run.config or RecordedRun(self.run.path).config
        loop = leader.loop if leader is not None else {}
        explicit, epochs = explicit_target(config, loop), whole_number(config, EPOCHS)
        if explicit is not None or epochs is None:
            return explicit
        start = (leader.epoch_start if leader is not None else None) or self._curves.epoch_start
        each = start[1] / start[0] if start is not None and start[0] > 0 else None
        return loader_target(epochs, loop, each) or (round(epochs * each) if each else None)

    def _error(self) -> str | None:
        texts = (error_text(rank.document.get("error")) for rank in self._ranks.values())
        errors = [text[:400] for text in texts if text]
        # Prefer an error that is not about a lost peer.
        return min(errors, key=is_lost_peer, default=None)


def _rate(ranks: list[LiveRank], kind: str) -> float | None:
    """Return the largest rate: each rank counts the samples of the whole job."""
    return max((rank.rates[kind] for rank in ranks if kind in rank.rates), default=None)


def _throughput(ranks: list[LiveRank]) -> Throughput | None:
    """Return the throughput of the rank with the highest rate: each counts the samples of the whole job."""
    each_rank = [rank.throughput for rank in ranks if rank.throughput is not None]
    return max(each_rank, key=lambda each: each.samples_per_second or 0.0, default=None)


def _time(ranks: list[LiveRank], until: int) -> tuple[dict[str, float], float]:
    """Return the share of each phase, and the seconds per rank that these cover."""
    sums: dict[str, int] = {}
    for rank in ranks:
        for phase, ns in rank.lane.shares(max(until, rank.until())).items():
            sums[phase] = sums.get(phase, 0) + ns
    whole = sum(sums.values())
    order = sorted(sums, key=lambda phase: (phase == "other", -sums[phase]))
    shares = {phase_title(phase): sums[phase] / whole for phase in order if sums[phase]}
    return shares, whole / 1e9 / max(1, len(ranks))


class LiveFindings:
    """The findings of a running job. The rules run in a separate thread from time to time."""

    def __init__(self, run: RecordedRun) -> None:
        self._run = run
        self._thread: threading.Thread | None = None
        self._due = time.monotonic()
        self._findings: Findings = ()
        self._returned: set[object] = set()

    def take(self, wait: bool = False) -> tuple[Findings, Findings]:
        """Return all findings of the last time, and those that were not returned before.

        With ``wait``, apply the rules now and wait for them.
        """
        if wait:
            if self._thread is not None:
                self._thread.join()
            self._apply()
        elif self._is_due():
            # A daemon: the program may end while it runs.
            self._thread = threading.Thread(target=self._apply, daemon=True)
            self._thread.start()
        current = self._findings
        new = tuple(f for f in current if f.key not in self._returned)
        self._returned.update(finding.key for finding in new)
        return current, new

    def _is_due(self) -> bool:
        # The thread sets the time before it ends, so look at the thread first.
        is_running = self._thread is not None and self._thread.is_alive()
        return not is_running and time.monotonic() >= self._due

    def _apply(self) -> None:
        from stepwell.analysis.findings import findings

        began = time.monotonic()
        try:
            all_findings = findings(RecordedRun(self._run.path))
            self._findings = tuple(f for f in all_findings if f.severity != "note")
        except Exception:
            # A file may disappear while it is read. The rules run again later.
            pass
        self._due = clock.due_after(began, EVERY_S, REST)
