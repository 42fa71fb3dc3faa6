"""``stepwell alert``: findings as they come up."""

from __future__ import annotations

import json

from stepwell.analysis.findings import Alerts, Finding
from stepwell.analysis.findings.alerts import as_json
from stepwell.reading import RecordedRun


def follow_run(
    run: RecordedRun,
    command: str | None,
    webhook: str | None,
    every: float,
    least: str,
    once: bool,
) -> None:
    """Print each new finding as a line of JSON, and hand it on, until the run has ended."""

    def show(finding: Finding) -> None:
        print(json.dumps(as_json(run, finding), ensure_ascii=False), flush=True)

    alerts = Alerts(run, callback=show, command=command, webhook=webhook, least=least)
    if once:
        alerts.check()
    else:
        alerts.follow(max(1.0, every))
