"""Exceptions of other processes, whose traceback is in the message of the one that is raised here."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from stepwell.telemetry.outcome import describe_error
from stepwell.telemetry.stacks import RemoteError, remote_error


class LostError(Exception):
    """An exception whose name is written with its module."""


def load(message: str) -> None:
    """Fail because of another exception."""
    try:
        raise KeyError("a cause")
    except KeyError as error:
        raise LostError(message) from error


def formatted(message: str) -> str:
    """Return the traceback that Python prints for an exception of ``load``."""
    try:
        load(message)
    except LostError:
        return traceback.format_exc()
    raise AssertionError


def found(message: str) -> RemoteError:
    """The exception in a message, which has one."""
    error = remote_error(message)
    assert error is not None
    return error


@pytest.mark.parametrize("message", ["no header", "", "of two lines:\n  the second", "File: none"])
@pytest.mark.parametrize(
    ("before", "raised_in", "announcement"),
    [
        (
            "Caught LostError in DataLoader worker process 3.\nOriginal ",
            "DataLoader worker 3",
            "Caught LostError in DataLoader worker process 3.",
        ),
        (
            "Caught LostError in pin memory thread for device 0.\nOriginal ",
            "pin memory thread for device 0",
            "Caught LostError in pin memory thread for device 0.",
        ),
        (
            "\n\n-- Process 1 terminated with the following error:\n",
            "process 1",
            "-- Process 1 terminated with the following error:",
        ),
        (
            "\n\n-- Process 1 terminated with the following error:\nTraceback (most recent call last):\n"
            '  File "/a/train.py", line 7, in main\n    next(loader)\n'
            "ValueError: Caught LostError in DataLoader worker process 0.\nOriginal ",
            "DataLoader worker 0",
            "-- Process 1 terminated with the following error:",
        ),
    ],
)
def test_the_innermost_exception(
    before: str, raised_in: str, announcement: str, message: str
) -> None:
    """Type, message and lines are those of the exception that Python formatted last."""
    text = formatted(message)
    # torch writes the text of the whole chain; its first line follows "Original".
    error = found(before + text[text.index("Traceback") :])
    assert (error.raised_in, error.announcement) == (raised_in, announcement)
    assert (error.type, error.message) == ("LostError", message)
    assert [line["function"] for line in error.lines] == ["formatted", "load"]
    assert Path(error.lines[-1]["file"]).name == "test_remote_errors.py"
    assert error.lines[-1]["source"] == "raise LostError(message) from error"


@pytest.mark.parametrize(
    "message",
    [
        "",
        "no such file",
        "Caught in DataLoader worker process 0.",
        "Caught E in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n",
        "-- Process 1 terminated with the following error:\nTraceback (most recent call last):\nE: why",
    ],
)
def test_other_messages_stay_as_they_are(message: str) -> None:
    """Also those that look like one, but have no line of code."""
    assert remote_error(message) is None
    assert describe_error(ValueError(message))["message"] == message


def test_a_deep_stack_is_cut_in_the_middle() -> None:
    """As are those of exceptions of this process."""
    frames = "".join(f'  File "/a/b.py", line {i}, in f\n    f()\n' for i in range(1, 101))
    text = "Caught E in replica 0 on device 0.\nOriginal Traceback (most recent call last):\n"
    lines = found(f"{text}{frames}E: why").lines
    assert [line["line"] for line in lines] == [*range(1, 11), *range(71, 101)]
