"""Differences between runs in configuration, code, versions and machines."""

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
"""Settings of the recording, which do not show how a model is trained."""
DERIVED = re.compile(
    r"(trainer|model|optimizer|accelerate)\..*|model_(trainable_)?parameters|batch_size"
)
"""Keys that integrations add to the user's configuration."""

NOTEBOOK = "kernel_launcher.py"
"""The end of the program name of a notebook kernel. Its arguments are another file in each run."""


@dataclass(frozen=True)
class Difference:
    """A key with its value in each run; None if a run does not have it."""

    key: str
    values: list[Any]


def config_differences(runs: Sequence[RecordedRun]) -> list[Difference]:
    """Return the keys of the configuration, joined by dots, whose values differ.

    A derived key that repeats the values of a given key is left out, such as ``optimizer.lr`` beside ``lr``.
    """
    differences = _differences([config_facts(run) for run in runs])
    given = {_values(d) for d in differences if not DERIVED.fullmatch(d.key)}
    return [d for d in differences if not DERIVED.fullmatch(d.key) or _values(d) not in given]


def _values(difference: Difference) -> tuple[str, ...]:
    return tuple(text_of(value) for value in difference.values)


def code_differences(runs: Sequence[RecordedRun]) -> list[Difference]:
    """Return the differences in commit, versions, machine, arguments and number of ranks."""
    return _differences([code_facts(run) for run in runs])


def config_facts(run: RecordedRun) -> dict[str, Any]:
    """Return the configuration of a run, with nested keys joined by dots."""
    return _flat(run.config)


def has_config(run: RecordedRun) -> bool:
    """Return whether the configuration has a setting of the training, not only of the recording."""
    return any(not TELEMETRY.fullmatch(key) for key in config_facts(run))


def has_given_config(run: RecordedRun) -> bool:
    """Return whether the user gave a configuration or hyperparameters."""
    keys = config_facts(run)
    return any(not (TELEMETRY.fullmatch(key) or DERIVED.fullmatch(key)) for key in keys)


def arguments_of(run: RecordedRun) -> list[str]:
    """Return the arguments of the latest attempt, without the program; empty for a notebook kernel."""
    return [] if program_of(run).endswith(NOTEBOOK) else _argv(run)[1:]


def program_of(run: RecordedRun) -> str:
    """Return the file name of the script of the latest attempt, or "" if it is unknown."""
    argv = _argv(run)
    return Path(argv[0]).name if argv else ""


def _argv(run: RecordedRun) -> list[str]:
    argv = _latest(run).get("argv")
    return [str(item) for item in argv] if isinstance(argv, list) else []


def command_lines(runs: Sequence[RecordedRun]) -> list[str]:
    """Return the script and arguments of each run."""
    return [" ".join([program_of(run), *arguments_of(run)]) for run in runs]


def code_facts(run: RecordedRun) -> dict[str, Any]:
    """Return code, machine, versions and arguments of a run, with nested keys joined by dots."""
    latest = _latest(run)
    produced = {key: latest.get(key) for key in ("code", "host", "world_size")}
    python, argv = latest.get("python"), latest.get("argv")
    if isinstance(python, dict):
        produced["python"] = {key: item for key, item in python.items() if key != "packages"}
        produced["packages"] = python.get("packages")
    if isinstance(argv, list):
        produced["argv"] = " ".join(map(str, argv))
    return _flat(produced)


def config_table(runs: Sequence[RecordedRun]) -> pl.DataFrame:
    """Return a row for each setting that differs, with a column of JSON values for each run."""
    return _table(runs, config_differences(runs))


def code_table(runs: Sequence[RecordedRun]) -> pl.DataFrame:
    """Return a row for each difference in code and machine, with a column of JSON values for each run."""
    return _table(runs, code_differences(runs))


def _latest(run: RecordedRun) -> dict[str, Any]:
    """Return the latest attempt in run.json, or an empty dict: the file may contain anything."""
    attempts = run.document.get("attempts")
    items = [a for a in attempts if isinstance(a, dict)] if isinstance(attempts, list) else []
    return items[-1] if items else {}


def _differences(sides: list[dict[str, Any]]) -> list[Difference]:
    keys = sorted({key for side in sides for key in side if key not in IGNORED})
    every = [Difference(key, [side.get(key) for side in sides]) for key in keys]
    return [d for d in every if any(text_of(v) != text_of(d.values[0]) for v in d.values)]


def _flat(value: Any, above: str = "", depth: int = 0) -> dict[str, Any]:
    if not isinstance(value, dict) or not value or depth >= DEEPEST:
        return {above: value} if above else {}
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat |= _flat(item, f"{above}.{key}" if above else str(key), depth + 1)
    return flat


def text_of(value: Any) -> str:
    """Return a text that is equal for values with the same meaning."""
    # 1 and 1.0 have the same meaning for a training; 1 and True do not.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True, default=str)


def shown(value: Any) -> str:
    """Return a value as text for a reader: strings without quotes."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _table(runs: Sequence[RecordedRun], differences: list[Difference]) -> pl.DataFrame:
    columns: dict[str, list[str | None]] = {"key": [d.key for d in differences]}
    for number, run in enumerate(runs):
        name = run.id if run.id not in columns else f"{run.id} #{number + 1}"
        values = [d.values[number] for d in differences]
        columns[name] = [None if v is None else json.dumps(v, default=str) for v in values]
    return pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String))
