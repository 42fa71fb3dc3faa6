"""A test finds its process as if no other test had run there."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from pathlib import Path

from stepwell._core import errors
from tests.process_state import restored_process


def look() -> list[object]:
    return [
        os.getcwd(),
        dict(os.environ),
        signal.getsignal(signal.SIGUSR1),
        sys.excepthook,
        sys.getprofile(),
        sys.getswitchinterval(),
        gc.isenabled(),
        gc.get_threshold(),
        list(logging.getLogger("stepwell").handlers),
        logging.getLogger("stepwell").level,
    ]


def test_everything_is_restored(tmp_path: Path) -> None:
    """Also if the test fails."""
    before = look()
    try:
        with restored_process():
            os.chdir(tmp_path)
            os.environ["LEFT_BEHIND"] = "1"
            del os.environ["PATH"]
            signal.signal(signal.SIGUSR1, lambda *_: None)
            sys.excepthook = print
            sys.setprofile(lambda *_: None)
            sys.setswitchinterval(0.5)
            gc.disable()
            gc.set_threshold(5)
            logging.getLogger("stepwell").addHandler(logging.NullHandler())
            logging.getLogger("stepwell").setLevel(logging.ERROR)
            changed = look()
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert look() == before
    assert all(was != now for was, now in zip(before, changed, strict=True))


def test_warnings_of_earlier_tests_are_logged_again() -> None:
    """Also after a test that was rank 1, where they are no warnings."""
    errors.counts["something"] = 1
    errors.set_quiet(True)
    with restored_process():
        assert not errors.counts
        assert not errors._quiet
