"""run.json: what a run is called, how it was configured, and what produced each attempt."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepwell.journal import clock, forks
from stepwell.journal.document import read_json, write_json
from stepwell.telemetry import identity
from stepwell.telemetry.place import Place

RUN = "run.json"


class RunDocument:
    """The run.json of a run. Rank 0 writes it, or the first rank that records if rank 0 does not.

    Attributes:
        about: name, tags, config, labels and summary, as they are to be written.
        is_due: whether they have changed since they were last written.
    """

    def __init__(
        self, folder: Path, run_id: str, place: Place, attempt: int, about: dict[str, Any]
    ) -> None:
        self.path = folder / RUN
        self.run_id = run_id
        self.place = place
        self.about = about
        self.is_due = False
        self.attempt: dict[str, Any] = {
            "attempt": attempt,
            "started": clock.wall(),
            "world_size": place.world_size,
            "launcher": place.launcher,
            "argv": identity.mask_argv(sys.argv),
            "cwd": identity.working_folder(),
            "config": about["config"],
        }

    def complete(self, is_ending: Callable[[], bool]) -> None:
        """Add facts that take a moment to find: host, versions, the state of the code.

        If the run ends meanwhile, git gets 0.1 s more. Ranks that write nothing find out nothing.
        """
        if self._is_written_by_another():
            return
        with forks.held_off():
            identity.warm_up()
            self.attempt["host"] = identity.describe_host()
            self.attempt["user"] = identity.user_name()
        self.attempt["python"] = identity.describe_python()
        self.attempt["code"] = identity.describe_code(Path(self.attempt["cwd"]), is_ending)
        self.write()

    def _is_written_by_another(self) -> bool:
        return self.place.rank != 0 and read_json(self.path) is not None

    def write(self) -> None:
        """Write what is known, beside what earlier attempts wrote."""
        self.is_due = False
        if self._is_written_by_another():
            return
        before = read_json(self.path) or {}
        attempts = {item["attempt"]: item for item in _earlier(before)}
        attempts[self.attempt["attempt"]] = self.attempt
        about = self.about
        write_json(
            self.path,
            {
                "stepwell": 1,
                "id": self.run_id,
                "name": about["name"] or before.get("name") or self.run_id,
                "tags": about["tags"] or before.get("tags", []),
                "config": about["config"] or before.get("config", {}),
                "labels": {**_mapping(before, "labels"), **about.get("labels", {})},
                "summary": {**_mapping(before, "summary"), **about.get("summary", {})},
                "created": before.get("created", self.attempt["started"]),
                "world_size": self.place.world_size,
                "attempts": [attempts[number] for number in sorted(attempts)],
            },
        )


def _mapping(before: dict[str, Any], key: str) -> dict[str, Any]:
    found = before.get(key)
    return found if isinstance(found, dict) else {}


def _earlier(before: dict[str, Any]) -> list[dict[str, Any]]:
    """The attempts that an existing document names; somebody may have edited it."""
    found = before.get("attempts")
    items = found if isinstance(found, list) else []
    return [i for i in items if isinstance(i, dict) and isinstance(i.get("attempt"), int)]
