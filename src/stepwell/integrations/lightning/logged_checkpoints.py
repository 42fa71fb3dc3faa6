"""The checkpoints that ``ModelCheckpoint`` callbacks leave, logged as models."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell.loggers import Logger

FOLDER = "checkpoints"
SETTINGS = ("monitor", "mode", "save_last", "save_top_k", "save_weights_only")
"""Of the callback, kept with each of its checkpoints."""


@dataclass(frozen=True)
class Checkpoint:
    """One that is on disk, and what its callback knows about it."""

    path: Path
    score: float | None
    is_best: bool
    settings: dict[str, Any]

    @property
    def changed_ns(self) -> int:
        """When it was written; a later one of the same name is another checkpoint."""
        return self.path.stat().st_mtime_ns


class LoggedCheckpoints:
    """Any number of callbacks, and what of theirs has been logged."""

    def __init__(self) -> None:
        self._callbacks: dict[str, Any] = {}
        self._logged: dict[Path, int] = {}
        self._names: dict[str, Path] = {}

    def note(self, callback: Any) -> None:
        """This callback has saved something."""
        self._callbacks[f"{callback.state_key} {callback.dirpath}"] = callback

    def log(self, logger: Logger) -> None:
        """Log what is on disk and was not logged yet."""
        for callback in self._callbacks.values():
            try:
                found = _found(callback)
            except ReferenceError:
                # The trainer it belonged to is gone, and has told of its end before.
                continue
            for checkpoint in sorted(found, key=lambda one: one.changed_ns):
                if self._logged.get(checkpoint.path) != checkpoint.changed_ns:
                    self._logged[checkpoint.path] = checkpoint.changed_ns
                    self._log(logger, checkpoint)

    def _log(self, logger: Logger, checkpoint: Checkpoint) -> None:
        about = {"score": checkpoint.score, "checkpoint": checkpoint.path.name}
        kind = "best_model" if checkpoint.is_best else "model"
        if checkpoint.path.is_dir():
            # Of a model that is spread over several workers.
            kind = "artifact"
        logger.log(
            str(checkpoint.path),
            self._name(checkpoint.path),
            kind=kind,
            **{**checkpoint.settings, **about},
        )

    def _name(self, path: Path) -> str:
        """Of two callbacks with files of the same name, the second has its folder in front."""
        name = f"{FOLDER}/{path.stem}"
        number = 1
        while self._names.setdefault(name, path) != path:
            folder = path.parent.name if number == 1 else f"{path.parent.name}-{number}"
            name, number = f"{FOLDER}/{folder}/{path.stem}", number + 1
        return name


def _found(callback: Any) -> list[Checkpoint]:
    settings = {name: getattr(callback, name, None) for name in SETTINGS}
    best = getattr(callback, "best_model_path", "")
    scores: dict[str, Any] = {getattr(callback, "last_model_path", ""): None}
    scores[best] = getattr(callback, "best_model_score", None)
    scores |= getattr(callback, "best_k_models", {})
    return [
        Checkpoint(Path(path), _number(score), path == best, settings)
        for path, score in scores.items()
        if path and os.path.exists(path)
    ]


def _number(score: Any) -> float | None:
    try:
        return None if score is None else float(score)
    except (TypeError, ValueError):
        return None
