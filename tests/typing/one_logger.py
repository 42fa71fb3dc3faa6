"""A program written for nv-one-logger. Type checkers see the calls, their arguments and their results."""

from __future__ import annotations

from typing_extensions import assert_type

from stepwell.compat import one_logger
from stepwell.compat.one_logger import (
    application,
    on_app_end,
    on_app_start,
    on_save_checkpoint_start,
    on_training_single_iteration_start,
    training_iteration,
    training_loop,
)
from stepwell.compat.one_logger.spans import LiveSpan

assert_type(on_app_start(start_time_msec=1.0), LiveSpan)
assert_type(on_training_single_iteration_start(), LiveSpan)
assert_type(on_save_checkpoint_start(5), LiveSpan)

with application() as app:
    assert_type(app, LiveSpan)
    with training_loop(train_iterations_start=0), training_iteration(samples=3) as iteration:
        assert_type(iteration, LiveSpan)


def wrong() -> None:
    on_app_start(start=1.0)  # type: ignore[call-arg]
    on_app_end("now")  # type: ignore[arg-type]
    training_loop(train_iterations_start="0")  # type: ignore[arg-type]
    one_logger.on_app_begin()  # type: ignore[attr-defined]
    one_logger.OTelExporter(nothing=1)  # type: ignore[call-arg]
