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
"""How often a finding is sent to a receiver that fails."""
PAUSE = 2.0
"""Seconds before a finding is sent again when the run has ended; twice that before the next time."""

_logger = logging.getLogger("stepwell")
Send = Callable[[Finding], None]
Key = tuple[str, tuple[Any, ...]]
"""A receiver and a finding."""


class _Refused(Exception):
    """The receiver answered, and will give the same answer next time."""


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
        self._receivers: dict[str, Send] = {}
        if callback is not None:
            self._receivers["the callback"] = callback
        if command is not None:
            words = shlex.split(command) if isinstance(command, str) else list(command)
            if not words:
                raise StepwellError("the command is empty")
            self._receivers[words[0]] = lambda finding: _execute(words, as_json(run, finding))
        if webhook is not None:
            # Not the whole address: with Slack and others it is a secret.
            host = webhook.split("/")[2].rpartition("@")[2]
            self._receivers[host] = lambda finding: _post(webhook, as_json(run, finding))
        self._tries: dict[Key, int] = {}
        self._undelivered: dict[Key, tuple[Finding, Exception]] = {}

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
                self.deliver_rest()
                return
            time.sleep(every)

    def deliver_rest(self) -> None:
        """Send again what receivers did not take, a few times with pauses."""
        for attempt in range(TRIES):
            waiting = [key for key in self._undelivered if self._tries[key] < TRIES]
            if not waiting:
                return
            time.sleep(PAUSE * 2**attempt)
            for key in waiting:
                self._send(key, self._undelivered[key][0])

    @property
    def undelivered(self) -> list[str]:
        """One sentence for each receiver that has not taken all findings."""
        lost: dict[str, list[Exception]] = {}
        for (receiver, _), (_, error) in self._undelivered.items():
            lost.setdefault(receiver, []).append(error)
        return [
            f"{len(errors)} {'finding was' if len(errors) == 1 else 'findings were'} not delivered "
            f"to {receiver}: {errors[-1]}"
            for receiver, errors in lost.items()
        ]

    def _tell(self, finding: Finding) -> bool:
        """Send a finding to those who have not taken it yet; return whether it is new to any of them."""
        keys: list[Key] = [(receiver, finding.key) for receiver in self._receivers or ("",)]
        is_new = any(key not in self._tries for key in keys)
        for key in keys:
            if self._tries.get(key, 0) < TRIES:
                self._send(key, finding)
        return is_new

    def _send(self, key: Key, finding: Finding) -> None:
        tries = self._tries.get(key, 0)
        send = self._receivers.get(key[0])
        try:
            if send is not None:
                send(finding)
        except Exception as error:
            self._tries[key] = TRIES if isinstance(error, _Refused) else tries + 1
            self._undelivered[key] = finding, error
            if not tries:
                _logger.warning("an alert could not be delivered to %s: %s", key[0], error)
        else:
            self._tries[key] = TRIES
            self._undelivered.pop(key, None)


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
    import urllib.error
    import urllib.request

    request = urllib.request.Request(
        address,
        data=json.dumps(about).encode(),
        headers={"Content-Type": "application/json", "User-Agent": "stepwell"},
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            answer.read(1 << 16)
    except urllib.error.HTTPError as error:
        error.close()
        is_final = 400 <= error.code < 500 and error.code not in (408, 425, 429)
        text = f"it answered {error.code} {error.reason}"
        raise (_Refused if is_final else RuntimeError)(text) from None
    except urllib.error.URLError as error:
        raise RuntimeError(f"it cannot be reached ({error.reason})") from None
