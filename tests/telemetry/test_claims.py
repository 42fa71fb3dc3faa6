"""Ranks that claim at the same moment agree, whatever the file system can do."""

from __future__ import annotations

import json
import math
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stepwell.telemetry import claims
from stepwell.telemetry.launch import claim_attempt


def test_each_token_has_one_attempt_and_no_number_is_left_out(tmp_path: Path) -> None:
    """Ranks of several launches that claim at the same moment agree within each launch."""
    tokens = [f"launch-{number % 4}" for number in range(32)]
    together = threading.Barrier(len(tokens))

    def claim(token: str) -> tuple[str, int]:
        together.wait()
        return token, claim_attempt(tmp_path / "run", token)

    with ThreadPoolExecutor(len(tokens)) as pool:
        claimed = set(pool.map(claim, tokens))
    assert sorted(attempt for _, attempt in claimed) == [0, 1, 2, 3]
    assert len({token for token, _ in claimed}) == 4
    left = sorted(path.name for path in (tmp_path / "run" / "attempts").iterdir())
    assert left == ["0.json", "1.json", "2.json", "3.json"]
    content = json.loads((tmp_path / "run" / "attempts" / "0.json").read_text())
    assert content.keys() == {"token", "time"}


def test_attempts_are_claimed_on_a_file_system_without_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where os.link fails, the file is created and then filled."""

    def refuse(*_: object) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    assert [claim_attempt(tmp_path, token) for token in ("a", "b", "a")] == [0, 1, 0]


def test_a_durable_claim_survives_a_power_cut_without_links_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []

    def refuse(*_: object) -> None:
        raise PermissionError("no links here")

    def keep(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os, "fsync", keep)
    assert claims.create_claim(tmp_path / "durable", {"a": 1}, durable=True)
    assert (tmp_path / "durable").stat().st_ino in synced
    synced.clear()
    assert claims.create_claim(tmp_path / "quick", {"a": 1})
    assert not synced


def test_a_claim_is_valid_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        claims.create_claim(tmp_path / "claim", {"a": math.nan})
    assert not list(tmp_path.iterdir())


def test_an_attempt_file_that_stays_empty_belongs_to_somebody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that died while it claimed leaves a number that is not used again."""
    monkeypatch.setattr(claims, "_PATIENCE", 0.05)
    (tmp_path / "attempts").mkdir()
    (tmp_path / "attempts" / "0.json").touch()
    (tmp_path / "attempts" / "1.json").write_text("[]")
    assert claim_attempt(tmp_path, "a") == 2


def test_a_run_folder_that_cannot_be_written_raises(tmp_path: Path) -> None:
    """Claiming an attempt leaves it to the caller what to do without one."""
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        claim_attempt(tmp_path / "file", "a")
