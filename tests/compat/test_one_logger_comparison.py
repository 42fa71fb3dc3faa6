"""The same training job with nv-one-logger and with ``stepwell.compat.one_logger``, record by record."""

from __future__ import annotations

import importlib.util
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.compat.one_logger_job import JOB, ORIGINAL_CLOCK, OUR_CLOCK
from tests.harness import REPOSITORY, run_script

needs_original = pytest.mark.skipif(
    importlib.util.find_spec("nv_one_logger") is None,
    reason="NOT COMPARED WITH THE ORIGINAL: pip install nv-one-logger-core "
    "nv-one-logger-training-telemetry pyyaml",
)
Lines = list[tuple[str, str, str | None, dict[str, Any]]]
"""Kind, name, parent or span, and attributes, in the order in which an exporter got them."""
FINAL = ("event", "training_metrics_update", "training_loop")

ON_PURPOSE = {
    # There is no such version of ours; stepwell_version has it.
    ("one_logger_initialization", "one_logger_training_telemetry_version"),
    # Own facts keep their types; the original makes texts "key:value" of them.
    ("one_logger_initialization", "custom_metadata"),
    # The worst single iteration, as documented; the original has the lowest running mean.
    ("training_metrics_update", "train_throughput_per_gpu_min"),
    # Of this validation; the original adds up all validations so far.
    ("validation_metrics_update", "total_iteration_time_sec"),
    # The message of the exception; the original has "Error in augment: ".
    ("ValueError", "error_message"),
    # Paths and line numbers of the library itself.
    ("ValueError", "exception_traceback"),
}
"""Attributes that differ on purpose, by event: docs/migrate/nv-one-logger.md has all of them."""


def _run(folder: Path, root: str, clock: str) -> Lines:
    folder.mkdir()
    done = run_script(clock + JOB.replace("ROOT", root), cwd=folder)
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "records.json").read_text())
    return [(kind, name, where, attributes) for kind, name, where, attributes in found]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lines, Lines]:
    """The records that an exporter of the original interface gets from the original, and from stepwell."""
    folder = tmp_path_factory.mktemp("compared")
    return (
        _run(folder / "original", "nv_one_logger", ORIGINAL_CLOCK),
        _run(folder / "ours", "stepwell.compat.one_logger", OUR_CLOCK),
    )


def _by_record(lines: Lines) -> dict[tuple[str, str, str | None], list[dict[str, Any]]]:
    found = defaultdict(list)
    for *key, attributes in lines:
        found[tuple(key)].append(attributes)
    return dict(found)


@needs_original
def test_names_counts_parents_and_order(both: tuple[Lines, Lines]) -> None:
    """All records are the same and in the same order, but for one more: the report of the last steps."""
    original, ours = ([line[:3] for line in lines] for lines in both)
    assert len(original) == 37
    # The original never reports iterations 10 and 11: 12 is no multiple of 5.
    last = max(index for index, key in enumerate(ours) if key == FINAL)
    assert ours[:last] + ours[last + 1 :] == original
    assert both[1][last][3]["is_final"] is True
    assert both[1][last][3]["current_iteration"] == 11


@needs_original
def test_attributes_and_metric_values(both: tuple[Lines, Lines]) -> None:
    """Each attribute of the original is there with the same value, but for those named above."""
    original, ours = map(_by_record, both)
    differences = set()
    compared = 0
    for key, several in original.items():
        for theirs, mine in zip(several, ours[key], strict=False):
            for name, value in theirs.items():
                compared += 1
                if name not in mine or mine[name] != pytest.approx(value):
                    differences.add((key[1], name))
    assert differences == ON_PURPOSE
    assert compared == 137
    page = (REPOSITORY / "docs" / "migrate" / "nv-one-logger.md").read_text(encoding="utf-8")
    assert all(event in page or name in page for event, name in ON_PURPOSE)


@needs_original
def test_values_by_hand(both: tuple[Lines, Lines]) -> None:
    """Iterations take 0.125, 0.25, … s: both say so, and what follows from it."""
    for lines in both:
        first = _by_record(lines)[FINAL][0]
        assert first["total_iteration_time_sec"] == pytest.approx(0.125 * (1 + 2 + 3 + 4 + 5))
        assert first["num_train_samples"] == 5 * 32
        assert first["train_tokens"] == 5 * 32 * 128
        # 160 samples of 1e9 operations in 1.875 s on 2 ranks.
        assert first["train_throughput_per_gpu"] == pytest.approx(160e9 / 1.875 / 2 / 1e12)
        (save,) = _by_record(lines)["event", "save_checkpoint_success", "checkpoint_save_sync"]
        assert save["productive_train_iterations"] == 6
        assert save["productive_train_iterations_sec"] == pytest.approx(0.125 * 21)
