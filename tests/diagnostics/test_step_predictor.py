"""Which steps are taken, so that their gradients are there at a collection."""

from __future__ import annotations

import pytest

from stepwell.diagnostics.model_watch import MAX_LEARNING, StepPredictor


class Loop:
    """A training loop of which only the steps matter: which were taken, and what a collection used."""

    def __init__(self, every: int, accumulate: int) -> None:
        self.predictor = StepPredictor(every)
        self.every, self.accumulate = every, accumulate
        self.batches = self.taken = 0
        self.is_armed = self.stepped = False
        self.latest_step: int | None = None
        self.latest_taken: int | None = None
        self.used: list[tuple[bool, int | None, int | None]] = []
        self.looked = 0

    def epoch(self, batches: int, first: int = 1) -> None:
        for batch_idx in range(first, first + batches):
            self.batches += 1
            if self.batches % self.accumulate == 0:
                self.latest_step = self.batches
                if self.is_armed:
                    self.latest_taken = self.batches
                    self.stepped, self.taken = True, self.taken + 1
            self.end(batch_idx)

    def end(self, batch_idx: int) -> None:
        it = self.predictor
        lead, every = (0, 1) if it.sees_all_batches else (it.period or 0, it.every)
        if (batch_idx + lead) % every > lead:
            return
        self.looked += 1
        stepped, self.stepped = self.stepped, False
        if stepped:
            self.is_armed = False
        if batch_idx % self.every == 0:
            trusted = it.is_current(batch_idx, stepped)
            self.used.append((trusted, self.latest_taken, self.latest_step))
        if it.should_arm(batch_idx, stepped):
            self.is_armed = True


@pytest.mark.parametrize("accumulate", [1, 2, 3, 7])
@pytest.mark.parametrize("every", [10, 16, 25])
def test_a_collection_has_the_latest_step(every: int, accumulate: int) -> None:
    """Also when it falls between two steps; and few others are taken."""
    loop = Loop(every, accumulate)
    loop.epoch(1000)
    assert len(loop.used) == 1000 // every
    assert all(trusted and taken == latest for trusted, taken, latest in loop.used)
    assert loop.taken <= len(loop.used) + 3
    assert loop.looked <= (1 + accumulate) * len(loop.used) + 4 * accumulate


def test_epochs_begin_anew() -> None:
    """An epoch that ends in the middle of things spoils nothing in the next."""
    for length in range(20, 45):
        loop = Loop(10, 3)
        for _ in range(5):
            loop.epoch(length)
        assert all(taken == latest for trusted, taken, latest in loop.used if trusted)
        assert sum(trusted for trusted, _, _ in loop.used) >= len(loop.used) - 5


def test_steps_that_are_rarer_than_collections() -> None:
    """Every step is taken then, and each collection has the one before it."""
    loop = Loop(4, 10)
    loop.epoch(200)
    later = loop.used[5:]
    assert all(trusted and taken == latest for trusted, taken, latest in later)


def test_a_collection_at_every_batch() -> None:
    """All but the first, which cannot be predicted."""
    loop = Loop(1, 1)
    loop.epoch(20)
    assert [trusted for trusted, _, _ in loop.used] == [False] + [True] * 19
    assert all(taken == latest for _, taken, latest in loop.used[1:])


def test_only_shown_collections_are_not_trusted() -> None:
    """Who calls at collections only makes steps in between that were never seen."""
    loop = Loop(10, 1)
    for batch_idx in range(10, 200, 10):
        loop.batches += 10
        loop.latest_step = loop.batches
        if loop.is_armed:
            loop.latest_taken = loop.batches - 9
            loop.stepped = True
        loop.end(batch_idx)
    assert len(loop.used) == 19
    assert not any(trusted for trusted, _, _ in loop.used)


def test_an_optimizer_that_is_never_seen_to_step() -> None:
    """Looking for steps ends some time."""
    predictor = StepPredictor(200)
    for batch_idx in range(1, MAX_LEARNING + 3):
        predictor.should_arm(batch_idx, False)
    assert not predictor.sees_all_batches
    assert predictor.period == 1


def test_who_shows_collections_only_is_not_watched_for_ever() -> None:
    """Nothing can be got ready for them, so no step in between has to be taken."""
    predictor = StepPredictor(10)
    asked = [predictor.should_arm(batch_idx, True) for batch_idx in range(10, 200, 10)]
    assert not any(asked[3:])
    assert not predictor.sees_all_batches
