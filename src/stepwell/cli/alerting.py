"""``stepwell alert``: findings as they come up."""

from __future__ import annotations

import contextlib
import sys
from datetime import datetime

from stepwell.analysis.findings import Alerts, Finding
from stepwell.analysis.findings.alerts import as_json as finding_json
from stepwell.cli.drawing import console
from stepwell.cli.output import complain, print_line
from stepwell.cli.reporting import print_finding
from stepwell.reading import RecordedRun


def follow_run(
    run: RecordedRun,
    command: str | None,
    webhook: str | None,
    every: float,
    least: str,
    once: bool,
    as_json: bool = False,
) -> int:
    """Print each new finding and send it on until the run has ended; return the exit code.

    It is 1 when a finding could not be delivered.
    """
    out = console()

    def show(finding: Finding) -> None:
        if as_json:
            print_line(finding_json(run, finding))
        else:
            print_finding(out, finding, f"{datetime.now():%H:%M:%S} ")
            sys.stdout.flush()

    alerts = Alerts(run, callback=show, command=command, webhook=webhook, least=least)
    if once:
        alerts.check()
        alerts.deliver_rest()
    else:
        with contextlib.suppress(KeyboardInterrupt):
            alerts.follow(max(1.0, every))
    for sentence in alerts.undelivered:
        complain(sentence)
    return int(bool(alerts.undelivered))
