"""Checkpoint saves of trainers, recorded as the standard spans and events of a training job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepwell.telemetry.live import NO_SPAN, find_open
from stepwell.training import calls
from stepwell.training.checkpoints import SPANS
from stepwell.training.current import current
from stepwell.training.standard_spans import WORDS


def record_save(
    save: Callable[..., Any],
    args: Any,
    kwargs: Any,
    *,
    step: int,
    path: Any,
    is_whole: bool = True,
) -> Any:
    """Call ``save`` and record it as a checkpoint, unless it is part of one. Return its result.

    Args:
        save: what saves, with its arguments ``args`` and ``kwargs``.
        step: optimizer steps made so far.
        path: file or folder that is written.
        is_whole: whether this process writes all of it, and nothing else is in there.
    """
    if current.job is None or any(find_open(WORDS[name]) for name in SPANS.values()):
        return save(*args, **kwargs)
    span = calls.start_save(step, None, path if is_whole else None, "sync")
    if span is NO_SPAN:
        return save(*args, **kwargs)
    if path is not None:
        span.add_attribute("checkpoint_path", str(path))
    try:
        result = save(*args, **kwargs)
    except BaseException as error:
        calls.conclude_save(error)
        raise
    calls.conclude_save(None)
    return result
