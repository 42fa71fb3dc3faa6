"""Calls in the wrong order, with the message and the span tree of each."""

from __future__ import annotations

from typing import NamedTuple

from stepwell import training
from stepwell.testing import FakeClock
from stepwell.training import (
    application,
    checkpoint_save,
    on_app_end,
    on_app_start,
    on_load_checkpoint_start,
    on_model_init_start,
    on_save_checkpoint_end,
    on_save_checkpoint_failure,
    on_save_checkpoint_start,
    on_save_checkpoint_success,
    on_testing_start,
    on_train_end,
    on_train_start,
    on_training_single_iteration_end,
    on_training_single_iteration_start,
    on_validation_end,
    on_validation_single_iteration_end,
    on_validation_single_iteration_start,
    on_validation_start,
    training_iteration,
    training_loop,
    validation_iteration,
    validation_loop,
)
from tests.training.misusing import Case, in_thread

APP, LOOP, ITERATION = "application", "training_loop", "training_single_iteration"

VALIDATION, BATCH = "validation_loop", "validation_single_iteration"
SAVE = "checkpoint_save_sync"
FORWARD = "model_forward"


class Wrong(NamedTuple):
    """A case, what is said about it, and the tree that it leaves."""

    case: Case
    says: str
    edges: dict[tuple[str, str | None], int]


def load_that_is_never_ended(clock: FakeClock) -> None:
    with application():
        on_load_checkpoint_start()
        clock.advance(1)
        with training_loop(), training_iteration():
            clock.advance(1)


def setup_that_is_never_ended(clock: FakeClock) -> None:
    with application():
        on_model_init_start()
        clock.advance(1)
        with validation_loop():
            clock.advance(1)


def iteration_outside_a_loop(clock: FakeClock) -> None:
    with application(), training_iteration():
        clock.advance(1)


def iteration_outside_of_everything(clock: FakeClock) -> None:
    on_training_single_iteration_start()
    clock.advance(1)
    on_training_single_iteration_end()


def iteration_outside_of_validation(clock: FakeClock) -> None:
    with application(), validation_iteration():
        clock.advance(1)


def iteration_outside_of_testing(clock: FakeClock) -> None:
    with application(), training.testing_iteration():
        clock.advance(1)


def application_twice(clock: FakeClock) -> None:
    first = on_app_start()
    clock.advance(1)
    assert on_app_start() is first
    on_app_end()


def application_inside_of_itself(clock: FakeClock) -> None:
    with application() as outer, training_loop():
        with application() as inner:
            assert inner is outer
        assert outer.active
        with training_iteration():
            clock.advance(1)


def loop_inside_a_loop(clock: FakeClock) -> None:
    with application():
        on_train_start(0)
        on_training_single_iteration_start()
        clock.advance(1)
        on_train_start(5)
        on_train_end()


def iteration_inside_an_iteration(clock: FakeClock) -> None:
    with application(), training_loop():
        on_training_single_iteration_start()
        clock.advance(1)
        on_training_single_iteration_start()
        clock.advance(2)
        on_training_single_iteration_end()


def validation_inside_validation(clock: FakeClock) -> None:
    with application():
        on_validation_start()
        clock.advance(1)
        on_validation_start()
        on_validation_end()


def double_testing(clock: FakeClock) -> None:
    on_app_start()
    on_testing_start()
    on_testing_start()
    on_app_end()


def forward_that_is_never_ended(clock: FakeClock) -> None:
    with application(), training_loop():
        for _ in range(2):
            on_training_single_iteration_start()
            clock.advance(1)
            training.on_model_forward_start()
            clock.advance(1)
            on_training_single_iteration_end()
        on_training_single_iteration_start()
        training.on_model_forward_start()
        on_training_single_iteration_end(finish_time_msec=clock.msec)


def forward_of_a_batch_that_is_never_ended(clock: FakeClock) -> None:
    with application():
        on_validation_start()
        for _ in range(2):
            on_validation_single_iteration_start()
            training.on_model_forward_start()
            clock.advance(1)
            on_validation_single_iteration_end()
        on_validation_end()


def loading_that_is_never_ended(clock: FakeClock) -> None:
    with application():
        for _ in range(3):
            training.on_data_loading_start()
            clock.advance(1)
        training.on_data_loading_end()


def batch_inside_a_batch(clock: FakeClock) -> None:
    with application():
        on_validation_start()
        on_validation_single_iteration_start()
        clock.advance(1)
        on_validation_single_iteration_start()
        on_validation_single_iteration_end()
        on_validation_end()


def validation_ends_inside_a_batch(clock: FakeClock) -> None:
    with application():
        on_validation_start()
        on_validation_single_iteration_start()
        clock.advance(1)
        on_validation_end()


def save_inside_a_save(clock: FakeClock) -> None:
    with application():
        on_save_checkpoint_start(5)
        clock.advance(1)
        on_save_checkpoint_start(5)
        clock.advance(1)
        on_save_checkpoint_success(5)
        on_save_checkpoint_end()


def success_of_an_unknown_step(clock: FakeClock) -> None:
    with application():
        on_save_checkpoint_success(9)


def failure_of_an_unknown_step(clock: FakeClock) -> None:
    with application():
        on_save_checkpoint_failure(9, "disk full")


def success_twice(clock: FakeClock) -> None:
    with application(), checkpoint_save(5):
        on_save_checkpoint_success(5)
    with application():
        on_save_checkpoint_success(5)


def late_success(clock: FakeClock) -> None:
    with application(), checkpoint_save(5, strategy="async"):
        clock.advance(1)
    clock.advance(1)
    on_save_checkpoint_success(5)


def very_late_success(clock: FakeClock) -> None:
    with application(), checkpoint_save(5, strategy="async"):
        clock.advance(1)
    with application():
        on_save_checkpoint_success(5)


def end_before_the_start(clock: FakeClock) -> None:
    with application():
        on_train_start(0)
        clock.advance(1)
        on_training_single_iteration_start()
        on_training_single_iteration_end(finish_time_msec=clock.msec - 500)
        on_train_end()


def time_from_before_the_clock_was_set_back(clock: FakeClock) -> None:
    with application():
        on_train_start(0)
        before = clock.msec
        clock.advance(1)
        clock.step(-3600)
        try:
            on_training_single_iteration_start(start_time_msec=before)
            clock.advance(1)
            on_training_single_iteration_end(finish_time_msec=clock.msec)
        finally:
            clock.step(3600)
        on_train_end()


def loop_in_the_future(clock: FakeClock) -> None:
    with application():
        on_train_start(0, start_time_msec=clock.msec + 3_600_000)
        clock.advance(1)


def loop_in_seconds(clock: FakeClock) -> None:
    with application():
        on_train_start(0, start_time_msec=clock.time)
        clock.advance(1)


def loop_ended_elsewhere(clock: FakeClock) -> None:
    with application():
        on_train_start(0)
        in_thread(on_train_end)


CASES: dict[str, Wrong] = {
    wrong.case.__name__: wrong
    for wrong in (
        Wrong(
            iteration_outside_a_loop,
            "started outside a training loop: it is recorded but not counted",
            {(APP, None): 1, (ITERATION, APP): 1},
        ),
        Wrong(
            iteration_outside_of_everything,
            "started outside a training loop",
            {(ITERATION, None): 1},
        ),
        Wrong(
            iteration_outside_of_validation,
            "validation_single_iteration started outside validation_loop",
            {(APP, None): 1, (BATCH, APP): 1},
        ),
        Wrong(
            iteration_outside_of_testing,
            "testing_single_iteration started outside testing_loop",
            {(APP, None): 1, ("testing_single_iteration", APP): 1},
        ),
        Wrong(
            application_twice, "was started twice; the second start is ignored", {(APP, None): 1}
        ),
        Wrong(
            application_inside_of_itself,
            "was started twice; the second start is ignored",
            {(APP, None): 1, (LOOP, APP): 1, (ITERATION, LOOP): 1},
        ),
        Wrong(
            loop_inside_a_loop,
            "A training loop started before the previous one ended, so that one is ended now",
            {(APP, None): 1, (LOOP, APP): 2, (ITERATION, LOOP): 1},
        ),
        Wrong(
            iteration_inside_an_iteration,
            "A training iteration started before the previous one ended, so that one is ended now",
            {(APP, None): 1, (LOOP, APP): 1, (ITERATION, LOOP): 2},
        ),
        Wrong(
            validation_inside_validation,
            "validation_loop started again before its end",
            {(APP, None): 1, (VALIDATION, APP): 2},
        ),
        Wrong(
            double_testing,
            "testing_loop started again before its end",
            {(APP, None): 1, ("testing_loop", APP): 2},
        ),
        Wrong(
            batch_inside_a_batch,
            "validation_single_iteration started again before its end",
            {(APP, None): 1, (VALIDATION, APP): 1, (BATCH, VALIDATION): 2},
        ),
        Wrong(
            validation_ends_inside_a_batch,
            "validation_loop ended while validation_single_iteration was open",
            {(APP, None): 1, (VALIDATION, APP): 1, (BATCH, VALIDATION): 1},
        ),
        Wrong(
            save_inside_a_save,
            "A checkpoint save started before the previous one ended, so that one is ended now",
            {(APP, None): 1, (SAVE, APP): 2},
        ),
        Wrong(
            forward_that_is_never_ended,
            "model_forward is still open at the end of training_single_iteration",
            {(APP, None): 1, (LOOP, APP): 1, (ITERATION, LOOP): 3, (FORWARD, ITERATION): 3},
        ),
        Wrong(
            forward_of_a_batch_that_is_never_ended,
            "model_forward is still open at the end of validation_single_iteration",
            {(APP, None): 1, (VALIDATION, APP): 1, (BATCH, VALIDATION): 2, (FORWARD, BATCH): 2},
        ),
        Wrong(
            load_that_is_never_ended,
            "checkpoint_load is still open at the start of training_loop and is ended there",
            {(APP, None): 1, ("checkpoint_load", APP): 1, (LOOP, APP): 1, (ITERATION, LOOP): 1},
        ),
        Wrong(
            setup_that_is_never_ended,
            "model_initialization is still open at the start of validation_loop and is ended there",
            {(APP, None): 1, ("model_initialization", APP): 1, (VALIDATION, APP): 1},
        ),
        Wrong(
            loading_that_is_never_ended,
            "data_loading started again before its end, so the earlier one is ended now",
            {(APP, None): 1, ("data_loading", APP): 3},
        ),
        Wrong(success_of_an_unknown_step, "of step 9 is reported as saved", {(APP, None): 1}),
        Wrong(failure_of_an_unknown_step, "of step 9 is reported as failed", {(APP, None): 1}),
        Wrong(success_twice, "was reported already", {(APP, None): 2, (SAVE, APP): 1}),
        Wrong(
            late_success,
            "The checkpoint of step 5 was completed after the end of the application",
            {(APP, None): 1, ("checkpoint_save_async", APP): 1},
        ),
        Wrong(
            very_late_success,
            "The checkpoint of step 5 was completed after the end of the application",
            {(APP, None): 2, ("checkpoint_save_async", APP): 1},
        ),
        Wrong(
            end_before_the_start,
            "training_single_iteration ends before its start: its duration is set to 0 s",
            {(APP, None): 1, (LOOP, APP): 1, (ITERATION, LOOP): 1},
        ),
        Wrong(
            time_from_before_the_clock_was_set_back,
            r"which is 3599\.000 s in the future\. The current time is used",
            {(APP, None): 1, (LOOP, APP): 1, (ITERATION, LOOP): 1},
        ),
        Wrong(
            loop_in_the_future,
            r"which is 3600\.000 s in the future\. The current time is used",
            {(APP, None): 1, (LOOP, APP): 1},
        ),
        Wrong(
            loop_in_seconds,
            r"must be in milliseconds since the epoch, such as time\.time\(\) \* 1000, got .* days ago",
            {(APP, None): 1, (LOOP, APP): 1},
        ),
        Wrong(
            loop_ended_elsewhere,
            "training_loop ended in another thread than it started in",
            {(APP, None): 1, (LOOP, APP): 1},
        ),
    )
}
ENDS = {
    name: getattr(training, name)
    for name in training.__all__
    if name.startswith("on_") and name.endswith("_end")
}
