"""The files of a synthetic run: the folder of every process, run.json and truth.json."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell._core.errors import StepwellError
from stepwell._core.files import write_json
from stepwell.journal.format import ERROR
from stepwell.journal.process_writer import ProcessWriter
from stepwell.testing.simulate.plan import SECOND, HangFault, Restart, RunPlan
from stepwell.testing.simulate.schedule import (
    Attempt,
    SpanLayout,
    attempts,
    lay_out,
    make_truth,
    saving,
    setup,
)

TRUTH = "truth.json"
INTERVAL = 5.0
"""Seconds between heartbeats."""
ERROR_TEXT = {"type": "RuntimeError", "message": "simulated: a peer closed the connection"}
LOSS = "train/loss"

Ints = NDArray[np.int64]
Progress = Callable[[int, int], None]


def simulate(
    path: str | os.PathLike[str], plan: RunPlan, progress: Progress | None = None
) -> dict[str, Any]:
    """Write a run folder with ``truth.json`` in it. Return the content of ``truth.json``.

    ``progress`` is called with the number of processes written so far and in total.
    """
    folder = Path(path).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StepwellError(f"{str(folder)!r} exists already: pass a new or empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    run = folder.resolve().name
    all_attempts = attempts(plan)
    total, done = plan.ranks * len(all_attempts), 0
    for attempt in all_attempts:
        writer = _AttemptWriter(plan, attempt, folder, run)
        for rank in range(plan.ranks):
            writer.write(rank)
            done += 1
            if progress is not None:
                progress(done, total)
    write_json(folder / "run.json", _run_document(plan, run, all_attempts))
    truth = make_truth(plan, all_attempts)
    write_json(folder / TRUTH, truth)
    return truth


def _run_document(plan: RunPlan, run: str, all_attempts: list[Attempt]) -> dict[str, Any]:
    config = {"ranks": plan.ranks, "steps": plan.steps, "seed": plan.seed}
    return {
        "stepwell": 1,
        "id": run,
        "name": plan.name,
        "tags": ["simulated"],
        "config": config,
        "labels": {"session_tag": plan.session} if plan.session else {},
        "created": plan.began_ns,
        "world_size": plan.ranks,
        "attempts": [
            {
                "attempt": attempt.number,
                "started": attempt.started_ns,
                "world_size": plan.ranks,
                "launcher": "simulated",
                "argv": ["stepwell", "simulate"],
                "config": config,
            }
            for attempt in all_attempts
        ],
    }


class _AttemptWriter:
    """Writes the processes of one attempt."""

    def __init__(self, plan: RunPlan, attempt: Attempt, folder: Path, run: str) -> None:
        self._plan = plan
        self._attempt = attempt
        self._folder = folder
        self._run = run
        self._layout = lay_out(plan, attempt)

    def write(self, rank: int) -> None:
        """Write the folder of one rank."""
        number = self._attempt.number
        pid = 1000 + rank % self._plan.ranks_per_node + 100 * number
        process = f"rank-{rank:05d}.attempt-{number}.pid-{pid}"
        node = rank // self._plan.ranks_per_node
        # Each machine has its own uptime.
        offset = self._plan.began_ns - (node + 1) * 1000 * SECOND
        starts, ends = _rank_rows(self._plan, self._attempt, self._layout, rank)
        writer = ProcessWriter(self._folder / process, process)
        writer.begin_lane("MainThread", 1)
        self._write_metrics(writer, rank, starts[self._layout.steps] - offset)
        self._write_spans(writer, starts, ends, offset)
        writer.close(self._document(rank, process, pid, offset))

    def _write_spans(self, writer: ProcessWriter, starts: Ints, ends: Ints, offset: int) -> None:
        fails, ended = _fails(self._attempt), self._attempt.ended_ns
        times = zip(starts.tolist(), ends.tolist(), strict=True)
        ids: list[int | None] = []
        for (name, category, parent), (start, end) in zip(self._layout.rows, times, strict=True):
            if not start:
                ids.append(None)
                continue
            ids.append(
                writer.span(
                    name,
                    category,
                    start - offset,
                    end and end - offset,
                    None if parent < 0 else ids[parent],
                    mark=ERROR if fails and end == ended else 0,
                )
            )

    def _write_metrics(self, writer: ProcessWriter, rank: int, clock: Ints) -> None:
        """Write the step at the beginning of each iteration, and on rank 0 the loss."""
        first = self._attempt.steps.start
        losses = _loss(self._plan, first + np.arange(len(clock))).tolist()
        for step, (time, loss) in enumerate(zip(clock.tolist(), losses, strict=True), first):
            writer.context(time, step, step // self._plan.steps_per_epoch)
            if rank == 0:
                writer.metric(LOSS, time, loss, step)

    def _document(self, rank: int, process: str, pid: int, offset: int) -> dict[str, Any]:
        attempt, per_node = self._attempt, self._plan.ranks_per_node
        node = rank // per_node
        anchors = (attempt.started_ns, attempt.ended_ns)
        return {
            "process": process,
            "run": self._run,
            "attempt": attempt.number,
            "rank": rank,
            "local_rank": rank % per_node,
            "world_size": self._plan.ranks,
            "node_rank": node,
            "launcher": "simulated",
            "host": f"node-{node:04d}",
            "boot": f"simulated-{node:04d}",
            "argv": ["stepwell", "simulate"],
            "pid": pid,
            "start": 1,
            "role": "main",
            "parent": None,
            "spool": None,
            "started": attempt.started_ns,
            # A killed process leaves the status "running" and an old heartbeat.
            "status": "finished"
            if attempt.dies is None
            else "failed"
            if _fails(attempt)
            else "running",
            "error": ERROR_TEXT if _fails(attempt) else None,
            "heartbeat": attempt.ended_ns,
            "interval": INTERVAL,
            "anchors": [[wall - offset, wall] for wall in anchors],
            "drops": {},
            "problems": 0,
        }


def _fails(attempt: Attempt) -> bool:
    return isinstance(attempt.dies, Restart) and attempt.dies.failed


def _loss(plan: RunPlan, step: Ints) -> NDArray[np.float64]:
    random = np.random.default_rng([plan.seed, 7, int(step[0])])
    curve = 0.3 + 2.2 * np.exp(-3.0 * step / plan.steps)
    return np.asarray(curve * (1 + 0.01 * random.standard_normal(len(step))), np.float64)


def _rank_rows(plan: RunPlan, attempt: Attempt, layout: SpanLayout, rank: int) -> tuple[Ints, Ints]:
    """Return starts and ends of the rows of a rank, in nanoseconds since the epoch; 0 for no end."""
    starts, ends = np.zeros((2, len(layout.rows)), np.int64)
    _fill_setup(plan, attempt, layout, starts, ends)
    parts = {name: values[rank] for name, values in attempt.parts.items()}
    _fill_steps(attempt, layout, parts, starts, ends)
    _fill_pauses(plan, layout, starts, ends)
    ends[[0, layout.loop]] = attempt.ended_ns
    ends[layout.loop] -= plan.pace.ending if attempt.dies is None else 0
    if attempt.dies is not None:
        _fill_death(attempt, layout, rank, starts, ends)
    return starts, ends


def _fill_setup(
    plan: RunPlan, attempt: Attempt, layout: SpanLayout, starts: Ints, ends: Ints
) -> None:
    at = attempt.started_ns + plan.pace.launch
    starts[0] = at
    for row, (_, ns) in enumerate(setup(plan, attempt.number), 1):
        starts[row], ends[row] = at, at + ns
        at += ns
    starts[layout.loop] = at


def _fill_steps(
    attempt: Attempt, layout: SpanLayout, parts: dict[str, Ints], starts: Ints, ends: Ints
) -> None:
    sync = attempt.sync_ns
    arrive = sync - attempt.parts["communication"][0]
    # All ranks begin relative to the last collective; early ranks wait in this one.
    longest = _arrivals(attempt)
    began = arrive - longest
    own = [parts[name] for name in ("data", "zero", "forward", "backward")]
    edges = [began + parts["before"]]
    for part in own:
        edges.append(edges[-1] + part)
    rows = layout.steps
    for i in range(4):
        starts[rows + 1 + i], ends[rows + 1 + i] = edges[i], edges[i + 1]
    starts[rows] = edges[0]
    starts[rows + 5], ends[rows + 5] = edges[4], sync
    ends[rows + 4] = sync
    starts[rows + 6], ends[rows + 6] = sync, sync + parts["optimizer"]
    ends[rows] = sync + parts["optimizer"]


def _arrivals(attempt: Attempt) -> Ints:
    """Return the time from the end of each collective to the arrival of the last rank at the next."""
    before = np.concatenate([[attempt.first_ns], attempt.sync_ns[:-1]])
    longest: Ints = attempt.sync_ns - attempt.parts["communication"][0] - before
    return longest


def _fill_pauses(plan: RunPlan, layout: SpanLayout, starts: Ints, ends: Ints) -> None:
    """Fill in checkpoints right after the iteration before them, then validation."""
    rows = layout.pauses
    if not len(rows):
        return
    # The iteration before has seven rows.
    after = ends[rows - 7]
    starts[rows], ends[rows] = after, after + plan.pace.checkpoint
    if plan.pace.validation:
        starts[rows + 1], ends[rows + 1] = ends[rows], after + saving(plan)


def _fill_death(attempt: Attempt, layout: SpanLayout, rank: int, starts: Ints, ends: Ints) -> None:
    """Leave the last step incomplete: its spans stay open, or end with the exception."""
    row = int(layout.steps[-1])
    inside = [0, layout.loop, row, row + 4, row + 5]
    never = [row + 6]
    if isinstance(attempt.dies, HangFault) and rank == attempt.dies.rank:
        inside, never = (
            [0, layout.loop, row, row + 1],
            [row + 2, row + 3, row + 4, row + 5, row + 6],
        )
    ends[inside] = attempt.ended_ns if _fails(attempt) else 0
    starts[never] = ends[never] = 0
