"""Tasks: which processes are to be read together, and all that reading them takes."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell.analysis.time.account import Liveness
from stepwell.journal import clock
from stepwell.journal.liveness import status_of
from stepwell.reading import RecordedRun
from stepwell.reading.layout import Layout
from stepwell.reading.process import process_folders, read_documents
from stepwell.reading.remote import Mirror
from stepwell.reading.run import joint_status


@dataclass(frozen=True)
class Task:
    """The processes of one rank and attempt.

    Attributes:
        run: the folder of the run.
        url: where it is on object storage; None for one that is on a disk.
        folders: names of the folders in it that are to be read.
        layout: what these share with the rest of the run.
        expected: how many processes there are of each rank and attempt.
        alive: how each is. Told by who makes the task, who may be on their machine.
        is_latest: whether it is of the latest attempt, of which is told what is open.
        is_over: whether the run has finished; of others is told what was done so far, and inside of what.
        size: bytes in the folders, about.
    """

    run: Path
    url: str | None
    folders: tuple[str, ...]
    layout: Layout
    expected: dict[tuple[int, int], int]
    alive: dict[str, Liveness]
    is_latest: bool
    is_over: bool
    size: int

    def place(self, name: str) -> Path:
        """Where a folder is that is to be read, with its files in it."""
        if self.url is None:
            return self.run / name
        mirror = Mirror(self.url)
        mirror.fetch(name)
        return mirror.folder / name


def make_tasks(run: RecordedRun) -> tuple[list[Task], list[dict[str, Any]]]:
    """The tasks of a run in the order of its folders; and what is known of its processes."""
    found = [(folder, read_documents(folder)) for folder in process_folders(run.folder)]
    documents = [about for _, abouts in found for about in abouts]
    layout = Layout.of(run.id, documents)
    latest = max((d["attempt"] for d in documents if d["role"] != "worker"), default=0)
    groups: dict[tuple[int, int], list[tuple[Path, list[dict[str, Any]]]]] = {}
    for folder, abouts in found:
        if abouts:
            key = abouts[0]["rank"], abouts[0]["attempt"]
            groups.setdefault(key, []).append((folder, abouts))
    now = clock.wall()
    is_over = joint_status([d for d in documents if d["role"] != "worker"]) == "finished"
    tasks = []
    for members in groups.values():
        mine = [about for _, abouts in members for about in abouts]
        tasks.append(
            Task(
                run.folder,
                None if run.mirror is None else run.mirror.url,
                tuple(folder.name for folder, _ in members),
                layout.only(mine),
                dict(Counter((d["rank"], d["attempt"]) for d in mine)),
                {d["process"]: Liveness(status_of(d), now) for d in mine},
                any(d["attempt"] == latest for d in mine),
                is_over,
                sum(_size(folder) for folder, _ in members),
            )
        )
    return tasks, documents


def _size(folder: Path) -> int:
    with os.scandir(folder) as entries:
        return sum(e.stat(follow_symlinks=False).st_size for e in entries)
