"""A running job, followed: each look reads what is new since the one before."""

from __future__ import annotations

from stepwell.analysis.findings.wording import phase_title
from stepwell.analysis.live.curves import LiveCurves
from stepwell.analysis.live.rank import LiveRank
from stepwell.analysis.live.rules import LiveFindings
from stepwell.analysis.live.snapshot import Snapshot
from stepwell.analysis.progress import (
    EPOCHS,
    explicit_target,
    loader_target,
    whole_number,
)
from stepwell.analysis.ranks.peers import is_lost_peer
from stepwell.analysis.throughput import Throughput
from stepwell.journal import clock
from stepwell.reading import RecordedRun
from stepwell.reading.documents import error_text
from stepwell.reading.process import process_folders, read_document

MOST_RANKS = 64
"""So many are followed; of a larger job the first ones."""
MOST_METRICS = 8


class LiveRun:
    """Follows a run, from a minute ago on.

    Args:
        run: the run.
        findings: whether rules are applied now and then, in a thread of their own; these read all of it.
    """

    def __init__(self, run: RecordedRun, findings: bool = True) -> None:
        self.run = run
        self._ranks: dict[str, LiveRank] = {}
        self._attempt = 0
        self._started: set[str] = set()
        self._first_ns: int | None = None
        self._past: set[str] = set()
        self._others = 0
        self._curves = LiveCurves(run)
        self._findings = LiveFindings(run) if findings else None

    def look(self, last: bool = False) -> Snapshot:
        """How the run is now. With ``last`` its findings are waited for."""
        self._find_ranks()
        # First: what is read afterwards is at least as new.
        status = self.run.status
        for rank in self._ranks.values():
            rank.look(self._curves)
        found, new = ((), ()) if self._findings is None else self._findings.take(last)
        ranks = sorted(self._ranks.values(), key=lambda rank: rank.rank)
        until = max((rank.until() for rank in ranks), default=clock.wall())
        leader = next((rank for rank in ranks if rank.step is not None), None)
        # While it hangs there is no pace, and nobody knows how long it will take.
        hangs = any(finding.rule == "hang" for finding in found)
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
            findings=found,
            new=new,
        )

    def _find_ranks(self) -> None:
        """Take in ranks that have begun, or the next attempt; a document is read once for each."""
        for folder in process_folders(self.run.path):
            if folder.name in self._started or folder.name in self._past:
                continue
            about = read_document(folder)
            if about is None:
                continue
            attempt, started = int(about["attempt"]), int(about.get("started") or clock.wall())
            self._first_ns = min(started, self._first_ns or started)
            if attempt > self._attempt:
                self._attempt = attempt
                self._past.update(self._started)
                self._ranks.clear()
                self._started.clear()
                self._others = 0
            if attempt < self._attempt:
                self._past.add(folder.name)
                continue
            self._started.add(folder.name)
            if len(self._ranks) < MOST_RANKS:
                self._ranks[folder.name] = LiveRank(folder)
            else:
                self._others += 1

    def _target(self, leader: LiveRank | None) -> int | None:
        """To how many steps it is to go on, as the loop, the configuration or its epochs tell."""
        config = RecordedRun(self.run.path).config if not self.run.config else self.run.config
        loop = leader.loop if leader is not None else {}
        known, epochs = explicit_target(config, loop), whole_number(config, EPOCHS)
        if known is not None or epochs is None:
            return known
        start = (leader.epoch_start if leader is not None else None) or self._curves.epoch_start
        each = start[1] / start[0] if start is not None and start[0] > 0 else None
        return loader_target(epochs, loop, each) or (round(epochs * each) if each else None)

    def _error(self) -> str | None:
        texts = (error_text(rank.about.get("error")) for rank in self._ranks.values())
        known = [text[:400] for text in texts if text]
        # Of several errors one that is not about a lost peer.
        return min(known, key=is_lost_peer, default=None)


def _rate(ranks: list[LiveRank], kind: str) -> float | None:
    """Each rank counts what the whole job has done."""
    known = [rank.rates[kind] for rank in ranks if kind in rank.rates]
    return max(known) if known else None


def _throughput(ranks: list[LiveRank]) -> Throughput | None:
    """That of the rank with the most samples, as each counts what the whole job has done."""
    known = [rank.throughput for rank in ranks if rank.throughput is not None]
    return max(known, key=lambda each: each.samples_per_second or 0.0, default=None)


def _time(ranks: list[LiveRank], until: int) -> tuple[dict[str, float], float]:
    """Shares of phases, and how many seconds of a rank these are about."""
    sums: dict[str, int] = {}
    for rank in ranks:
        for phase, ns in rank.clock.shares(max(until, rank.until())).items():
            sums[phase] = sums.get(phase, 0) + ns
    whole = sum(sums.values())
    order = sorted(sums, key=lambda phase: (phase == "other", -sums[phase]))
    shares = {phase_title(phase): sums[phase] / whole for phase in order if sums[phase]}
    return shares, whole / 1e9 / max(1, len(ranks))
