"""Alerts: the same rules while a run goes on, each new finding handed on once.

    Alerts(run, callback=print, webhook="https://hooks.example.org/…").follow()

This reads the run folder, and so runs beside the training, not inside of it.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import time
from collections.abc import Callable, Sequence
from typing import Any

from stepwell.analysis.findings.finding import SEVERITIES, Finding
from stepwell.journal.errors import StepwellError
from stepwell.reading import RecordedRun

TIMEOUT = 10.0
TRIES = 3
"""So often a finding is offered to a receiver that does not take it."""

_logger = logging.getLogger("stepwell")
Send = Callable[[Finding], None]


class Alerts:
    """Looks at a run now and then, and tells of what was not there before.

    Args:
        run: the run.
        callback: a function of a finding.
        command: a program to be run for each; it has the finding as JSON on its standard input, and in the
            environment ``STEPWELL_RUN``, ``STEPWELL_RULE``, ``STEPWELL_SEVERITY`` and ``STEPWELL_TEXT``.
        webhook: an http or https address that gets the finding as JSON; its ``text`` is what chat
            programs show.
        least: the least severity that is told of.
    """

    def __init__(
        self,
        run: RecordedRun,
        *,
        callback: Send | None = None,
        command: str | Sequence[str] | None = None,
        webhook: str | None = None,
        least: str = "warning",
    ) -> None:
        if least not in SEVERITIES:
            raise StepwellError(f"least={least!r}: write one of {', '.join(SEVERITIES)}")
        if webhook is not None and not webhook.startswith(("http://", "https://")):
            raise StepwellError(f"the webhook {webhook!r} has to begin with http:// or https://")
        self.run = run
        self._least = SEVERITIES.index(least)
        self._receivers: list[Send] = []
        if callback is not None:
            self._receivers.append(callback)
        if command is not None:
            words = shlex.split(command) if isinstance(command, str) else list(command)
            if not words:
                raise StepwellError("the command is empty")
            self._receivers.append(lambda finding: _execute(words, as_json(run, finding)))
        if webhook is not None:
            self._receivers.append(lambda finding: _post(webhook, as_json(run, finding)))
        self._tries: dict[tuple[int, tuple[Any, ...]], int] = {}

    def check(self) -> list[Finding]:
        """Look once; returns what is new, after everybody was told."""
        from stepwell.analysis.findings.rules import findings

        found = [f for f in findings(self.run) if SEVERITIES.index(f.severity) <= self._least]
        new = []
        for finding in found:
            if self._tell(finding):
                new.append(finding)
        return new

    def follow(self, every: float = 30.0, until_end: bool = True) -> None:
        """Look every so many seconds until the run has ended, and once more then."""
        while True:
            is_over = self.run.status != "running"
            self.check()
            if is_over and until_end:
                return
            time.sleep(every)

    def _tell(self, finding: Finding) -> bool:
        """Offer a finding to those who have not taken it yet; whether anybody heard it for the first time."""
        is_new = False
        for number, send in enumerate(self._receivers):
            key = number, finding.key
            tries = self._tries.get(key, 0)
            if tries >= TRIES:
                continue
            is_new = is_new or tries == 0
            try:
                send(finding)
                self._tries[key] = TRIES
            except Exception as error:
                self._tries[key] = tries + 1
                _logger.warning("an alert could not be delivered: %s", error)
        if not self._receivers:
            key = -1, finding.key
            is_new = key not in self._tries
            self._tries[key] = TRIES
        return is_new


def as_json(run: RecordedRun, finding: Finding) -> dict[str, Any]:
    """A finding for others."""
    return {
        "text": f"{run.name}: {finding.sentence}",
        "run": run.id,
        "rule": finding.rule,
        "severity": finding.severity,
        "sentence": finding.sentence,
        "advice": finding.advice,
        "steps": list(finding.steps[:100]),
        "ranks": list(finding.ranks),
        "link": finding.link,
        "lines": list(finding.lines),
    }


def _execute(words: list[str], about: dict[str, Any]) -> None:
    import subprocess

    more = {
        "STEPWELL_RUN": str(about["run"]),
        "STEPWELL_RULE": str(about["rule"]),
        "STEPWELL_SEVERITY": str(about["severity"]),
        "STEPWELL_TEXT": str(about["text"]),
    }
    done = subprocess.run(
        words,
        input=json.dumps(about),
        text=True,
        env={**os.environ, **more},
        timeout=6 * TIMEOUT,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{words[0]} ended with {done.returncode}")


def _post(address: str, about: dict[str, Any]) -> None:
    # Slow to import, and most who look at findings send nothing.
    import urllib.request

    request = urllib.request.Request(
        address,
        data=json.dumps(about).encode(),
        headers={"Content-Type": "application/json", "User-Agent": "stepwell"},
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        answer.read(1 << 16)
