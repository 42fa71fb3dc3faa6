"""Fragments that were not uploaded to the end: by ``wandb sync``, which is W&B's own way to do it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from stepwell.journal.document import read_json, write_json

ABOUT = "stepwell.json"
"""Beside the file of a fragment: whose rows it has, and which."""
UPLOADED = "uploaded"
LONGEST = 600.0
"""Seconds that the upload of one fragment may take."""


def mark_uploaded(fragment: Path) -> None:
    """Remember that W&B had all of it when its run was finished."""
    write_json(fragment / ABOUT, {**(read_json(fragment / ABOUT) or {}), UPLOADED: True})


def upload_what_was_left(folder: Path, run_id: str) -> None:
    """Upload earlier fragments of a run, in their order, before another one goes on with it.

    Its process was killed, or it was offline. Only ours, and those that nobody else has uploaded.
    """
    for file in fragment_files(folder, run_id):
        about = read_json(file.parent / ABOUT)
        if about is None or about.get(UPLOADED) or file.with_name(f"{file.name}.synced").exists():
            continue
        _sync(file.parent)
        mark_uploaded(file.parent)


def fragment_files(folder: Path, run_id: str) -> list[Path]:
    """The files of all fragments of a run, the oldest first."""
    # Not those behind the link to the latest one.
    found = folder.glob(f"*run-*-{run_id}/run-{run_id}.wandb")
    return sorted(found, key=lambda file: file.parent.name.partition("run-")[2])


def _sync(fragment: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "wandb", "sync", "--include-online", str(fragment)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST,
        env={**os.environ, "WANDB_SILENT": "true"},
    )
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise ConnectionError(f"wandb sync {fragment}: {words[-1] if words else done.returncode}")
