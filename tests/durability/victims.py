"""Starting and killing what ``workload`` describes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

from tests.durability import workload
from tests.durability.workload import ITEM_IN, THREADS, WORKERS, Book
from tests.harness import environment, start_script, wait_until

WITHOUT_END = 1_000_000_000
"""Length of a dataset whose epoch never ends."""


class Nursery:
    """A process that has imported everything, and forks a victim when asked."""

    def __init__(self, **variables: str) -> None:
        self.process = start_script(
            Path(workload.__file__),
            env=environment(**variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, folder: Path, length: int, rest: float = 0.0) -> Victim:
        """A victim that records below ``folder``; returns when all of its threads do."""
        folder.mkdir(exist_ok=True)
        book = Book(folder / "book")
        order = {
            "root": str(folder / "runs"),
            "book_path": str(folder / "book"),
            "length": length,
            "rest": rest,
        }
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        pid = json.loads(self.process.stdout.readline())["pid"]
        rows = [book.thread(number) for number in range(THREADS)]
        if length:
            rows += [book.worker(0, number) for number in range(WORKERS)]
        victim = Victim(pid, book)
        try:
            wait_until(lambda: all(row[ITEM_IN] for row in rows), seconds=120)
        except BaseException:
            # It would run for ten minutes, on all cores.
            victim.kill()
            raise
        return victim

    def close(self) -> None:
        """No more victims."""
        self.process.kill()
        self.process.communicate()


class Victim:
    """A recording process, its workers, and the book that they keep."""

    def __init__(self, pid: int, book: Book) -> None:
        self.pid = pid
        self.book = book

    def kill(self) -> None:
        """Kill -9, the workers as well."""
        os.killpg(self.pid, signal.SIGKILL)
        wait_until(self._is_gone)

    def _is_gone(self) -> bool:
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return True
        return False
