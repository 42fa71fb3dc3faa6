"""The state of live runs as OpenMetrics text, for Prometheus and Grafana."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from stepwell.analysis.findings import SEVERITIES
from stepwell.analysis.live import Snapshot
from stepwell.vocabulary import loss_names

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
HELP = {
    "stepwell_up": "1 while the run is live.",
    "stepwell_step": "Current optimizer step.",
    "stepwell_target_steps": "Planned number of steps.",
    "stepwell_elapsed_seconds": "Wall time of the run.",
    "stepwell_left_seconds": "Estimated time left.",
    "stepwell_steps_per_second": "Current pace.",
    "stepwell_samples_per_second": "Training samples per second.",
    "stepwell_tokens_per_second": "Training tokens per second.",
    "stepwell_loss": "Latest training loss.",
    "stepwell_goodput_ratio": "Share of the wall time that made progress.",
    "stepwell_phase_ratio": "Share of a phase in the last minute.",
    "stepwell_findings": "Number of findings by severity.",
}
Labels = Mapping[str, str]


def openmetrics(live: Iterable[tuple[Snapshot, float | None]]) -> str:
    """Return the text for these runs, each with its goodput if it is known."""
    lines: dict[str, list[str]] = {name: [] for name in HELP}

    def add(name: str, labels: Labels, value: float | None) -> None:
        if value is not None:
            lines[name].append(f"{name}{_labels(labels)} {_number(value)}")

    for now, goodput in live:
        labels = {"run": now.id, "name": now.name}
        add("stepwell_up", labels, 0 if now.is_over else 1)
        add("stepwell_step", labels, now.step)
        add("stepwell_target_steps", labels, now.target)
        add("stepwell_elapsed_seconds", labels, now.seconds)
        add("stepwell_left_seconds", labels, now.seconds_left)
        add("stepwell_steps_per_second", labels, now.steps_per_second)
        add("stepwell_samples_per_second", labels, now.samples_per_second)
        add("stepwell_tokens_per_second", labels, now.tokens_per_second)
        add("stepwell_goodput_ratio", labels, goodput)
        values = {metric.name: metric.last for metric in now.metrics}
        for name in loss_names(values):
            add("stepwell_loss", {**labels, "metric": name}, values[name])
        for phase, share in now.time.items():
            add("stepwell_phase_ratio", {**labels, "phase": phase}, share)
        counts = Counter(finding.severity for finding in now.findings)
        for severity in SEVERITIES:
            add("stepwell_findings", {**labels, "severity": severity}, counts[severity])
    text = [
        line
        for name, samples in lines.items()
        if samples
        for line in (f"# TYPE {name} gauge", f"# HELP {name} {HELP[name]}", *samples)
    ]
    return "\n".join([*text, "# EOF", ""])


def _labels(labels: Labels) -> str:
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    text = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return re.sub(r"[\x00-\x1f\x7f]", "\N{REPLACEMENT CHARACTER}", text)


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
