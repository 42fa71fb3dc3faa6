"""A backend that writes JSON lines, each record once, and fails as configured."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, ClassVar

from stepwell.loggers.delivery.backend import Backend, LogRecord, NotYet, Source


class LinesBackend(Backend):
    """``path`` is the file. Calls are told in ``<path>.calls``, a line each.

    ``die_at``: how many batches it takes before it kills its own process with -9, in the midst of the next
    one, once. While there is a file ``<path>.down`` it raises; while there is ``<path>.hang`` it hangs.
    ``about``: what it has to say of its own run. ``delay``: seconds that each batch takes.
    """

    name: ClassVar[str] = "lines"
    batch: ClassVar[int] = 100

    def open(self, source: Source, state: dict[str, Any]) -> None:
        self.path = Path(self.options["path"])
        self.state = state
        self._tell("open", source.rank, source.application, os.getpid(), dict(state))
        self._may_fail()
        wait_for = self.options.get("wait_for")
        if wait_for is not None and self.shared(wait_for) is None:
            raise NotYet(f"nobody has published {wait_for}")
        if self.options.get("publish"):
            state["shared"] = self.publish(self.options["publish"], {"rank": self.rank})
        state.setdefault("size", 0)
        state.update(self.options.get("about", {}))

    def deliver(self, records: list[LogRecord], again: bool) -> None:
        self._tell("deliver", len(records), again)
        assert len(records) <= self.batch
        self._may_fail()
        time.sleep(self.options.get("delay", 0))
        size = self.state["size"]
        with self.path.open("ab") as file:
            # What a try that got half through has left.
            left = file.tell() > size
            assert again or not left, "this batch is not said to come again"
            file.truncate(size)
            for number, record in enumerate(records):
                file.write(line_of(record))
                if number == len(records) // 2:
                    file.flush()
                    self._may_die()
        self.state["size"] = self.path.stat().st_size
        self.state["batches"] = self.state.get("batches", 0) + 1

    def finish(self, status: str) -> None:
        self._tell("finish", status)
        self._may_fail()

    def flush(self) -> None:
        self._tell("flush")

    def close(self) -> None:
        self._tell("close")

    def _tell(self, *what: Any) -> None:
        with open(f"{self.path}.calls", "a") as file:
            file.write(json.dumps(what) + "\n")

    def _may_fail(self) -> None:
        if os.path.exists(f"{self.path}.down"):
            raise ConnectionError("it is down")
        deadline = time.monotonic() + 120
        while os.path.exists(f"{self.path}.hang"):
            if time.monotonic() > deadline:
                raise TimeoutError("the test that made this backend hang does not end it")
            time.sleep(0.05)

    def _may_die(self) -> None:
        died = f"{self.path}.died"
        at = self.options.get("die_at")
        if at is not None and self.state.get("batches", 0) >= at and not os.path.exists(died):
            open(died, "w").close()
            os.kill(os.getpid(), 9)


def line_of(record: LogRecord) -> bytes:
    """A record as a line."""
    about = [record.type, record.name, record.step, record.value, record.time_ns]
    return json.dumps(about).encode() + b"\n"
