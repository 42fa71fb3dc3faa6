"""Alerts: apply the rules to a running run at intervals, and send each new finding once.

    Alerts(run, callback=print, webhook="https://hooks.example.org/…").follow()

Alerts read the run folder. Run them in a process of their own, not in the training process.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import time
from collections.abc import Callable, Sequence
from typing import Any

from stepwell._core.checks import one_of
from stepwell._core.errors import StepwellError
from stepwell.analysis.findings.finding import SEVERITIES, Finding
from stepwell.analysis.findings.rules import findings
from stepwell.reading import RecordedRun

TIMEOUT = 10.0
TRIES = 3
"""Attempts to send a finding to a receiver that fails."""
PAUSE = 2.0
"""Seconds before the first retry after the run has ended; doubled for each further retry."""

_logger = logging.getLogger("stepwell")
Send = Callable[[Finding], None]
Key = tuple[str, tuple[Any, ...]]
"""A receiver and a finding."""


class _Refused(Exception):
    """The receiver refused the finding for good; a retry would get the same answer."""


class Alerts:
    """Sends each new finding of a run to a callback, a command or a webhook.

    Args:
        run: the run.
        callback: a function that takes a finding.
        command: a program to run for each finding. It gets the finding as JSON on standard input, and the
            environment variables ``STEPWELL_RUN``, ``STEPWELL_RULE``, ``STEPWELL_SEVERITY`` and
            ``STEPWELL_TEXT``.
        webhook: an http or https address to which the finding is posted as JSON. Chat programs show its
            ``text``.
        least: the lowest severity that is sent.
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
        one_of(*SEVERITIES).check("least", least)
        if webhook is not None and not webhook.startswith(("http://", "https://")):
            raise StepwellError(f"webhook must start with http:// or https://, got {webhook!r}")
        self.run = run
        self._least = SEVERITIES.index(least)
        self._receivers: dict[str, Send] = {}
        if callback is not None:
            self._receivers["the callback"] = callback
        if command is not None:
            words = shlex.split(command) if isinstance(command, str) else list(command)
            if not words:
                raise StepwellError(f"command must not be empty, got {command!r}")
            self._receivers[words[0]] = lambda finding: _execute(words, as_json(run, finding))
        if webhook is not None:
            # Only the host is shown in messages: the address itself may be a secret, as with Slack.
            host = webhook.split("/")[2].rpartition("@")[2]
            self._receivers[host] = lambda finding: _post(webhook, as_json(run, finding))
        self._tries: dict[Key, int] = {}
        self._undelivered: dict[Key, tuple[Finding, Exception]] = {}

    def check(self) -> list[Finding]:
        """Apply the rules once, send the new findings to all receivers, and return them."""
        severe = [f for f in findings(self.run) if SEVERITIES.index(f.severity) <= self._least]
        return [finding for finding in severe if self._deliver(finding)]

    def follow(self, every: float = 30.0, until_end: bool = True) -> None:
        """Check every ``every`` seconds until the run has ended, and once more after that."""
        while True:
            is_over = self.run.status != "running"
            self.check()
            if is_over and until_end:
                self.deliver_rest()
                return
            time.sleep(every)

    def deliver_rest(self) -> None:
        """Retry the findings that could not be delivered, with growing pauses."""
        for attempt in range(TRIES):
            waiting = [key for key in self._undelivered if self._tries[key] < TRIES]
            if not waiting:
                return
            time.sleep(PAUSE * 2**attempt)
            for key in waiting:
                self._send(key, self._undelivered[key][0])

    @property
    def undelivered(self) -> list[str]:
        """One sentence for each receiver that did not get all findings."""
        lost: dict[str, list[Exception]] = {}
        for (receiver, _), (_, error) in self._undelivered.items():
            lost.setdefault(receiver, []).append(error)
        return [
            f"{len(errors)} finding{'s were' if len(errors) > 1 else ' was'} not delivered "
            f"to {receiver}: {errors[-1]}"
            for receiver, errors in lost.items()
        ]

    def _deliver(self, finding: Finding) -> bool:
        """Send a finding to the receivers that do not have it yet; return whether it is new to any."""
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
                _logger.warning("alert not delivered to %s: %s", key[0], error)
        else:
            self._tries[key] = TRIES
            self._undelivered.pop(key, None)


def as_json(run: RecordedRun, finding: Finding) -> dict[str, Any]:
    """Return a finding as the JSON object that commands and webhooks get."""
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


def _execute(words: list[str], message: dict[str, Any]) -> None:
    import subprocess

    names = ("run", "rule", "severity", "text")
    variables = {f"STEPWELL_{name.upper()}": str(message[name]) for name in names}
    done = subprocess.run(
        words,
        input=json.dumps(message),
        text=True,
        env={**os.environ, **variables},
        timeout=6 * TIMEOUT,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{words[0]} exited with code {done.returncode}")


def _post(address: str, message: dict[str, Any]) -> None:
    # Slow to import, and only webhooks need it.
    import urllib.error
    import urllib.request

    request = urllib.request.Request(
        address,
        data=json.dumps(message).encode(),
        headers={"Content-Type": "application/json", "User-Agent": "stepwell"},
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            answer.read(1 << 16)
    except urllib.error.HTTPError as error:
        error.close()
        is_final = 400 <= error.code < 500 and error.code not in (408, 425, 429)
        text = f"HTTP status {error.code} {error.reason}"
        raise (_Refused if is_final else RuntimeError)(text) from None
    except urllib.error.URLError as error:
        raise RuntimeError(f"not reachable ({error.reason})") from None
