"""run.json: name, tags and configuration of a run, and the identity of each attempt."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepwell._core import clock, threads
from stepwell._core.files import read_json, write_json
from stepwell._core.masking import mask_argv
from stepwell.telemetry import identity
from stepwell.telemetry.rank_info import RankInfo

RUN = "run.json"


class RunDocument:
    """The run.json of a run. Rank 0 writes it, or the first rank that records if rank 0 does not.

    Attributes:
        values: name, tags, config, labels and summary, as they are written.
        is_due: whether they have changed since they were last written.
    """

    def __init__(
        self, folder: Path, run_id: str, rank_info: RankInfo, attempt: int, values: dict[str, Any]
    ) -> None:
        self.path = folder / RUN
        self.run_id = run_id
        self.rank_info = rank_info
        self.values = values
        self.is_due = False
        self.attempt: dict[str, Any] = {
            "attempt": attempt,
            "started": clock.wall(),
            "world_size": rank_info.world_size,
            "launcher": rank_info.launcher,
            "argv": mask_argv(sys.argv),
            "cwd": identity.working_folder(),
            "config": values["config"],
        }

    def complete(self, is_ending: Callable[[], bool]) -> None:
        """Add facts that take time to find: host, versions, the state of the code.

        If the run ends meanwhile, git gets 0.1 s more. Ranks that do not write run.json skip this.
        """
        if self._is_written_by_another():
            return
        with threads.forks_blocked():
            identity.warm_up()
            self.attempt["host"] = identity.describe_host()
            self.attempt["user"] = identity.user_name()
        self.attempt["python"] = identity.describe_python()
        self.attempt["code"] = identity.describe_code(Path(self.attempt["cwd"]), is_ending)
        self.write()

    def _is_written_by_another(self) -> bool:
        return self.rank_info.rank != 0 and read_json(self.path) is not None

    def write(self) -> None:
        """Write the current values, and keep those of earlier attempts."""
        self.is_due = False
        if self._is_written_by_another():
            return
        before = read_json(self.path) or {}
        attempts = {item["attempt"]: item for item in _earlier(before)}
        attempts[self.attempt["attempt"]] = self.attempt
        values = self.values
        write_json(
            self.path,
            {
                "stepwell": 1,
                "id": self.run_id,
                "name": values["name"] or before.get("name") or self.run_id,
                "tags": values["tags"] or before.get("tags", []),
                "config": values["config"] or before.get("config", {}),
                "labels": {**_mapping(before, "labels"), **values.get("labels", {})},
                "summary": {**_mapping(before, "summary"), **values.get("summary", {})},
                "created": before.get("created", self.attempt["started"]),
                "world_size": self.rank_info.world_size,
                "attempts": [attempts[number] for number in sorted(attempts)],
            },
        )


def _mapping(before: dict[str, Any], key: str) -> dict[str, Any]:
    value = before.get(key)
    return value if isinstance(value, dict) else {}


def _earlier(before: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the valid attempts in an existing document, which may have been edited."""
    attempts = before.get("attempts")
    items = attempts if isinstance(attempts, list) else []
    return [i for i in items if isinstance(i, dict) and isinstance(i.get("attempt"), int)]
