"""Mistakes in environment variables: one warning each, and training continues with the default."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

import stepwell
from stepwell._core import errors
from stepwell._core.environment import OWN, SETTINGS, read_flag
from tests.harness import REPOSITORY


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test gets warnings as if for the first time."""
    for key in [key for key in errors.counts if key.startswith("setting ")]:
        monkeypatch.delitem(errors.counts, key)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("MODE", "offf", "STEPWELL_MODE is 'offf': write off, or leave it unset to record."),
        ("MAX_BYTES", "lots", "STEPWELL_MAX_BYTES is 'lots': write a size such as 500M or 20G."),
        ("DROP", "old", "STEPWELL_DROP is 'old': write oldest (the default) or newest."),
        (
            "RUN_ID",
            "a b",
            "STEPWELL_RUN_ID is 'a b': write letters, digits and . _ + = @ -, such as a-b.",
        ),
        ("RUNTIME", "fast", "STEPWELL_RUNTIME is 'fast': write off, or a number of at least 0.1."),
        ("QUIET", "maybe", "STEPWELL_QUIET is 'maybe': write 1, or leave it unset."),
        ("STRICT", "2", "STEPWELL_STRICT is '2': write 1, or leave it unset."),
        (
            "MAXBYTES",
            "1G",
            "STEPWELL_MAXBYTES is not a setting of stepwell: did you mean STEPWELL_MAX_BYTES?",
        ),
        ("FROBNICATE", "1", "STEPWELL_FROBNICATE is not a setting of stepwell."),
    ],
)
def test_a_mistake_is_one_warning(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    variable: str,
    value: str,
    said: str,
) -> None:
    """It says what to write instead, once, and the run is recorded as without the variable."""
    monkeypatch.setenv(f"STEPWELL_{variable}", value)
    with caplog.at_level(logging.WARNING, "stepwell"):
        for _ in range(2):
            with stepwell.init(dir=tmp_path) as run:
                run.log({"loss": 1.0})
    (warning,) = caplog.messages
    assert warning.startswith(said)
    recorded = stepwell.open_run(run.path)
    assert recorded.metrics().collect()["value"].to_list()[0] == 1.0
    assert recorded.status == "finished"


def test_a_flag_is_on_or_off() -> None:
    """In the ways in which people write that."""
    assert read_flag({"X": "True"}, "X")
    assert read_flag({"X": "1"}, "X")
    assert not read_flag({"X": "0"}, "X")
    assert not read_flag({}, "X")
    assert read_flag({}, "X", default=True)
    assert not read_flag({"X": "off"}, "X", default=True)


def test_every_variable_in_the_code_is_known() -> None:
    """Otherwise setting it would give a warning about an unknown name."""
    source = REPOSITORY / "src"
    names = {
        name
        for path in source.rglob("*.py")
        for name in re.findall(r"STEPWELL_[A-Z]+(?:_[A-Z]+)*", path.read_text())
    }
    assert names == {*SETTINGS, *OWN}
