"""Where the files of a collection are, and whether there was one at all."""

from __future__ import annotations

import itertools
import weakref
from pathlib import Path
from typing import Any

from stepwell.journal.errors import say

_owners: weakref.WeakValueDictionary[Path, Any] = weakref.WeakValueDictionary()


def claim(owner: object, path: Path) -> Path:
    """This path, or one with a number where another owner in this process has it already."""
    for number in itertools.count(1):
        mine = path if number == 1 else path.with_name(f"{path.stem}.{number}{path.suffix}")
        if _owners.setdefault(mine.absolute(), owner) is owner:
            return mine
    raise AssertionError("numbers do not end")


class Tally:
    """What has happened so far, for the one who asks at the end why there is nothing."""

    def __init__(self, every: int, is_enabled: bool = True) -> None:
        self.every = every
        self.is_enabled = is_enabled
        self.is_called = False
        self.collections = 0
        self.is_said = False

    def run_ends(self, status: str) -> None:
        """Told by the run, just before it ends."""
        self.say_why()

    def say_why(self) -> None:
        """When nothing was collected: say why, once."""
        if self.collections or self.is_said:
            return
        self.is_said = True
        if not self.is_enabled:
            say("diagnostics collected nothing: they are disabled, with enabled=False")
        elif self.is_called:
            say(
                "diagnostics collected nothing: no batch had an index that is a multiple of "
                "collect_every_n=%d. An epoch may have fewer batches than that: choose a smaller one",
                self.every,
            )
        else:
            say(
                "diagnostics collected nothing: on_batch_end was never called. Call it after "
                "optimizer.step(), in every batch"
            )
