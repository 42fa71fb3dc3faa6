"""What was different between runs before they began: configuration, code, versions, machines."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from stepwell.reading import RecordedRun

DEEPEST = 8
IGNORED = ("host.boot_id", "python.executable", "started", "attempt")
TELEMETRY = re.compile(
    r"(telemetry_config\.)?(application_name|session_tag|perf_tag|world_size|strict|loss_metric"
    r"|is_(baseline_run|log_throughput_enabled|(train|validation|test)_iterations_enabled)"
    r"|is_save_checkpoint_enabled|enable_for_current_rank|summary_data_schema_version|log_every_n_train_iterations"
    r"|save_checkpoint_strategy|global_batch_size|micro_batch_size|seq_length|flops_per_sample"
    r"|train_(iterations|samples)_target)"
)
"""Settings and sizes that are given for the recording; they do not say how a model is trained."""
DERIVED = re.compile(
    r"(trainer|model|optimizer|accelerate)\..*|model_(trainable_)?parameters|batch_size"
)
"""Keys that integrations add to what the author of a training gave."""

NOTEBOOK = "kernel_launcher.py"
"""The end of the program of a notebook, whose arguments are another file each time."""


@dataclass(frozen=True)
class Difference:
    """A fact that is not the same in all runs; None where a run does not have it."""

    key: str
    values: list[Any]


def config_differences(runs: Sequence[RecordedRun]) -> list[Difference]:
    """Keys of the configuration, joined by dots, whose values differ.

    A derived key that only repeats what a given one says is left out: ``optimizer.lr`` beside ``lr``.
    """
    differences = _differences([config_facts(run) for run in runs])
    given = {_values(d) for d in differences if not DERIVED.fullmatch(d.key)}
    return [d for d in differences if not DERIVED.fullmatch(d.key) or _values(d) not in given]


def _values(difference: Difference) -> tuple[str, ...]:
    return tuple(text_of(value) for value in difference.values)


def code_differences(runs: Sequence[RecordedRun]) -> list[Difference]:
    """Commit, versions of Python and packages, machine, arguments and number of ranks."""
    return _differences([code_facts(run) for run in runs])


def config_facts(run: RecordedRun) -> dict[str, Any]:
    """The configuration of a run, its keys joined by dots."""
    return _flat(run.config)


def has_config(run: RecordedRun) -> bool:
    """Whether the configuration says how the model was trained."""
    return any(not TELEMETRY.fullmatch(key) for key in config_facts(run))


def has_given_config(run: RecordedRun) -> bool:
    """Whether the author of the training gave a configuration, or hyperparameters."""
    return any(
        not TELEMETRY.fullmatch(key) and not DERIVED.fullmatch(key) for key in config_facts(run)
    )


def arguments_of(run: RecordedRun) -> list[str]:
    """Return the command line of the latest attempt, without the program; none of a notebook's kernel."""
    argv = _latest(run).get("argv")
    if not isinstance(argv, list) or program_of(run).endswith(NOTEBOOK):
        return []
    return [str(item) for item in argv[1:]]


def program_of(run: RecordedRun) -> str:
    """Return the file name of the script of the latest attempt, "" where that is not known."""
    argv = _latest(run).get("argv")
    return Path(str(argv[0])).name if isinstance(argv, list) and argv else ""


def command_lines(runs: Sequence[RecordedRun]) -> list[str]:
    """Return the script and arguments of each run."""
    return [" ".join([program_of(run), *arguments_of(run)]) for run in runs]


def code_facts(run: RecordedRun) -> dict[str, Any]:
    """What produced a run, in the same form."""
    return _flat(_produced(run))


def config_table(runs: Sequence[RecordedRun]) -> pl.DataFrame:
    """A row for each key that differs and a column for each run, its value as JSON."""
    return _table(runs, config_differences(runs))


def code_table(runs: Sequence[RecordedRun]) -> pl.DataFrame:
    """The same of what produced the runs."""
    return _table(runs, code_differences(runs))


def _produced(run: RecordedRun) -> dict[str, Any]:
    """The facts about the latest attempt in run.json."""
    latest = _latest(run)
    about = {key: latest.get(key) for key in ("code", "host", "world_size")}
    python, argv = latest.get("python"), latest.get("argv")
    if isinstance(python, dict):
        about["python"] = {key: item for key, item in python.items() if key != "packages"}
        about["packages"] = python.get("packages")
    if isinstance(argv, list):
        about["argv"] = " ".join(map(str, argv))
    return about


def _latest(run: RecordedRun) -> dict[str, Any]:
    """The latest attempt in run.json, which may be of any shape."""
    attempts = run.about.get("attempts")
    items = [a for a in attempts if isinstance(a, dict)] if isinstance(attempts, list) else []
    return items[-1] if items else {}


def _differences(sides: list[dict[str, Any]]) -> list[Difference]:
    keys = sorted({key for side in sides for key in side if key not in IGNORED})
    found = [Difference(key, [side.get(key) for side in sides]) for key in keys]
    return [d for d in found if any(text_of(v) != text_of(d.values[0]) for v in d.values)]


def _flat(value: Any, above: str = "", depth: int = 0) -> dict[str, Any]:
    if not isinstance(value, dict) or not value or depth >= DEEPEST:
        return {above: value} if above else {}
    found: dict[str, Any] = {}
    for key, item in value.items():
        found |= _flat(item, f"{above}.{key}" if above else str(key), depth + 1)
    return found


def text_of(value: Any) -> str:
    """A value as a text that is the same when it means the same."""
    # 1 and 1.0 mean the same to a training; 1 and True do not.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True, default=str)


def _table(runs: Sequence[RecordedRun], differences: list[Difference]) -> pl.DataFrame:
    columns: dict[str, list[str | None]] = {"key": [d.key for d in differences]}
    for number, run in enumerate(runs):
        name = run.id if run.id not in columns else f"{run.id} #{number + 1}"
        values = [d.values[number] for d in differences]
        columns[name] = [None if v is None else json.dumps(v, default=str) for v in values]
    return pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String))
