"""The loss of an optimizer step: the sum of the scalars whose gradients the step uses.

The loss is written when the step ends, so that no crash, hang or kill loses it. A value on the host is read
at once; a value on an accelerator is fetched in the background, like any logged scalar. Losses whose
gradients are dropped before a step, as after a step that a gradient scaler skipped, are not included.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from functools import wraps
from time import perf_counter_ns as _now
from typing import Any

import torch

from stepwell._core import clock
from stepwell.integrations.torch.observer import active
from stepwell.integrations.torch.patches import Patch, Patches
from stepwell.journal import metrics
from stepwell.journal.format import HEADER_BYTES, OWNER_SHIFT, ROW_BYTES, STEP_BIAS, WHOLE_ROW
from stepwell.journal.lane import Lane
from stepwell.journal.scalars import PendingScalar
from stepwell.journal.state import current_lane

LOSS = "loss"
WORD_BYTES = 8
NO_NAME = bytes(WORD_BYTES)
PROBES = 3
"""Number of parameters per optimizer that are checked for whether a backward pass reached it."""
_pack = WHOLE_ROW.pack_into
_is_traced = torch.compiler.is_dynamo_compiling


class _Scalars:
    """Finds the scalar of a backward pass: with a gradient scaler, the one before scaling."""

    __slots__ = ("_scaled",)

    def __init__(self) -> None:
        self._scaled: tuple[Any, torch.Tensor] | None = None

    def note_scaled(self, scaled: Any, plain: Any) -> None:
        """Remember which tensor a gradient scaler has scaled."""
        if isinstance(scaled, torch.Tensor) and isinstance(plain, torch.Tensor):
            self._scaled = weakref.ref(scaled), plain.detach()

    def _scalar(self, outputs: Any) -> torch.Tensor | None:
        """Return the scalar of a backward pass, or the sum of several; None for other outputs."""
        if any(type(each) is not torch.Tensor or each.numel() != 1 for each in outputs):
            return None
        tensor: torch.Tensor = outputs[0]
        if len(outputs) > 1:
            return torch.stack([each.detach().reshape(()) for each in outputs]).sum()
        scaled = self._scaled
        if scaled is not None:
            self._scaled = None
            if scaled[0]() is tensor:
                return scaled[1]
        return tensor


class StepLoss(_Scalars):
    """Writes the loss of each step of one optimizer.

    As soon as the user logs a metric with this name, nothing more is written for the rest of the run, and
    the loss of the last step is withdrawn.
    """

    __slots__ = (
        "_lane",
        "_last",
        "_mark",
        "_name",
        "_own",
        "_row",
        "_since",
        "_value",
        "_version",
        "is_on",
        "name_word",
    )

    def __init__(self, is_on: bool, name: str = LOSS) -> None:
        super().__init__()
        self.is_on = is_on
        self._name = name
        self._value: Any = None
        self._version = 0
        # The row at which to start the search for rows of the user, and our last row (0 for none).
        self._lane: Lane | None = None
        self._row = self._own = self.name_word = 0
        self._mark = b""
        # The last value on an accelerator, and the time when it was logged.
        self._last: Any = None
        self._since = 0

    def begin(self, is_on: bool) -> None:
        """Begin a run."""
        self.is_on = is_on
        self._value = self._last = None
        self._own = 0
        self._lane = current_lane()
        self._row = 0 if self._lane is None else self._lane.row_next
        self._since = _now()
        self.name_word = metrics.word_of(self._name)
        self._mark = self.name_word.to_bytes(WORD_BYTES, "little")

    def backward_begins(self, outputs: Any) -> None:
        """Add the scalar that ``backward()`` is called on to the loss of the next step."""
        tensor = outputs[0] if self._scaled is None and len(outputs) == 1 else None
        if type(tensor) is not torch.Tensor or tensor.numel() != 1:
            tensor = self._scalar(outputs)
            if tensor is None:
                return
        if self._value is None and tensor.is_cpu:
            self._value = tensor.item()
        else:
            self.add(tensor)

    def add(self, tensor: torch.Tensor) -> None:
        """Add a scalar to the loss of the next step."""
        value = self._value
        if tensor.is_cpu:
            self._value = tensor.item() if value is None else value + tensor.item()
        else:
            self._value = tensor.detach() if value is None else value + tensor.detach()
            self._version = self._value._version

    def write(self, step: int, lane: Lane | None, optimizer: Any = None) -> None:
        """Write the loss of a step that has ended. ``lane``: that of this thread, if the caller has it."""
        value, self._value = self._value, None
        if value is None:
            return
        if lane is None:
            lane = current_lane()
        if lane is None or (lane.rows is None and not metrics.make_room(lane)):
            return
        if (
            lane is not self._lane
            or lane.row_next < self._row
            or lane.rows.find(self._mark, self._row, lane.row_next) >= 0
            or lane.journal.scalars.pending
            or self._name in metrics.audience_words
        ) and self._is_logged_by_user(lane):
            return
        if type(value) is float:
            if lane.row_next >= lane.row_limit and not metrics.make_room(lane):
                return
            # No function call between these two lines: a signal handler may log in between.
            row = lane.row_next
            lane.row_next = self._row = row + ROW_BYTES
            word = self.name_word | lane.number + 1 << OWNER_SHIFT
            _pack(lane.rows, row, _now(), step + STEP_BIAS, value, word)
            self._own = row
        elif value._version == self._version:
            # Otherwise the tensor was changed in place and is no longer the loss.
            metrics.log({self._name: value}, step)
            self._row = lane.row_next
            last = tuple(lane.journal.scalars.pending)[-1:]
            self._last = next((item for item in last if isinstance(item, PendingScalar)), None)
            self._since = _now()

    def finish(self) -> None:
        """End a run. Withdraw the last loss if the user logged one too."""
        lane = self._lane
        if self.is_on and lane is not None and lane.rows is not None and lane is current_lane():
            self._is_logged_by_user(lane)

    def forget(self) -> None:
        """Drop the loss of the next step: its gradients are not used."""
        self._value = self._scaled = None

    def _is_logged_by_user(self, lane: Lane) -> bool:
        """Return whether the user has logged this metric since the last call; withdraw ours if so."""
        begin, self._row = self._row, lane.row_next
        if lane is not self._lane:
            # Another thread trains now: start the search here.
            self._lane, self._own = lane, 0
            return False
        if self._row < begin:
            # A new segment.
            begin, self._own = HEADER_BYTES, 0
        name, pending = self._name, lane.journal.scalars.pending
        words = [self.name_word, *metrics.audience_words.get(name, ())]
        row = max(_find_row(lane, each, begin) for each in words)
        # A copy, because another thread may take from the pending values now.
        since = [item for item in tuple(pending) if item.clock > self._since]
        is_pending = any(item.word in words for item in since)
        if not row and not is_pending:
            return False
        self.is_on = False
        if row and self._own and _step_of(lane, row) == _step_of(lane, self._own):
            # Remove the name of our row: readers skip rows without one.
            end = self._own + ROW_BYTES
            lane.rows[end - WORD_BYTES : end] = NO_NAME
        if is_pending and self._last is not None:
            self._last.withdraw()
        return True


class OptimizerLosses(_Scalars):
    """Writes the losses of several optimizers, each as its own metric ``loss/<name>``.

    A loss belongs to each optimizer whose parameters the backward pass reaches, which is detected by the
    gradients of a few of these parameters. If none changes, as with sharded parameters, the loss belongs to
    the optimizer that makes the next step.
    """

    def __init__(self, is_on: bool, optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
        super().__init__()
        self._parts = [
            _OptimizerLoss(StepLoss(is_on, f"{LOSS}/{name}"), each)
            for name, each in optimizers.items()
        ]
        self._unclaimed: list[torch.Tensor] = []
        # Whether the first optimizer makes the first step; None before that step.
        self.is_first_first: bool | None = None

    @property
    def is_on(self) -> bool:
        """Whether the loss of any optimizer is recorded."""
        return any(part.loss.is_on for part in self._parts)

    def begin(self, is_on: bool) -> None:
        """Begin a run."""
        for part in self._parts:
            part.loss.begin(is_on)

    def finish(self) -> None:
        """End a run."""
        for part in self._parts:
            part.loss.finish()

    def forget(self) -> None:
        """Drop all losses."""
        self._unclaimed.clear()
        for part in self._parts:
            part.loss.forget()

    def drop(self, owner: Any) -> None:
        """Drop the losses of this optimizer, or of all optimizers of this model."""
        for part in self._parts:
            if part.belongs_to(owner):
                part.loss.forget()

    def backward_begins(self, outputs: Any) -> Any:
        """Read the versions of gradients before a backward pass. The result is for ``backward_ends``."""
        tensor = self._scalar(outputs)
        return None if tensor is None else (tensor, [part.look() for part in self._parts])

    def backward_ends(self, looked: Any) -> None:
        """Add the loss of a backward pass to the optimizers that the pass reached."""
        tensor, before = looked
        is_reached = False
        for part, versions in zip(self._parts, before, strict=True):
            if part.versions() != versions:
                is_reached = True
                part.loss.add(tensor)
        if not is_reached:
            self._unclaimed.append(tensor.detach())

    def write(self, step: int, lane: Lane | None, optimizer: Any = None) -> None:
        """Write the loss of a step that this optimizer has made."""
        for i, part in enumerate(self._parts):
            if part.optimizer() is optimizer:
                if self.is_first_first is None:
                    self.is_first_first = i == 0
                unclaimed, self._unclaimed = self._unclaimed, []
                for tensor in unclaimed:
                    part.loss.add(tensor)
                if part.loss.is_on:
                    part.loss.write(step, lane)


class _OptimizerLoss:
    """One of several optimizers: its loss, and the parameters that are checked for new gradients."""

    __slots__ = ("_probes", "loss", "optimizer")

    def __init__(self, loss: StepLoss, optimizer: torch.optim.Optimizer) -> None:
        self.loss = loss
        self.optimizer = weakref.ref(optimizer)
        groups = optimizer.param_groups
        trained = [p for group in groups for p in group["params"] if p.requires_grad]
        chosen = {i * (len(trained) - 1) // (PROBES - 1) for i in range(PROBES) if trained}
        self._probes = [weakref.ref(trained[i]) for i in sorted(chosen)]

    def belongs_to(self, owner: Any) -> bool:
        """Return whether this is the optimizer, or a model with its parameters."""
        if not isinstance(owner, torch.nn.Module):
            return self.optimizer() is owner
        probes = [ref() for ref in self._probes]
        return any(parameter is probe for parameter in owner.parameters() for probe in probes)

    def look(self) -> list[tuple[int, int]]:
        """Return the versions before a backward pass. If there are no gradients, drop earlier losses."""
        versions = self.versions()
        if not any(version[0] for version in versions):
            self.loss.forget()
        return versions

    def versions(self) -> list[tuple[int, int]]:
        """Return identity and version of each checked gradient."""
        versions = []
        for ref in self._probes:
            probe = ref()
            gradient = None if probe is None else probe.grad
            versions.append((0, 0) if gradient is None else (id(gradient), gradient._version))
        return versions


def _find_row(lane: Lane, word: int, begin: int) -> int:
    """Return the first row at or after ``begin`` of the metric with this name word, 0 if there is none."""
    mark = word.to_bytes(WORD_BYTES, "little")
    at = lane.rows.find(mark, begin, lane.row_next)
    while at >= 0:
        row = at + WORD_BYTES - ROW_BYTES
        # Only the last word of a row is a name. Elsewhere the same bytes are another number.
        if (row - HEADER_BYTES) % ROW_BYTES == 0:
            return int(row)
        at = lane.rows.find(mark, at + 1, lane.row_next)
    return 0


def _step_of(lane: Lane, row: int) -> bytes:
    """Return the step word of a row, which follows the clock."""
    return bytes(lane.rows[row + WORD_BYTES : row + 2 * WORD_BYTES])


def _scale(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def scale(self: Any, outputs: Any) -> Any:
        scaled = original(self, outputs)
        observer = None if _is_traced() else active.observer
        if observer is not None and GRADIENTS.active:
            observer.loss_is_scaled(scaled, outputs)
        return scaled

    return scale


def _zero(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace ``zero_grad`` of an optimizer or a model."""

    @wraps(original)
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        # While a compiler traces this function, its graph must not contain code of stepwell.
        observer = None if _is_traced() else active.observer
        if observer is not None and GRADIENTS.active:
            observer.gradients_are_dropped(self)
        return original(self, *args, **kwargs)

    return zero_grad


GRADIENTS = Patches(
    lambda: [
        Patch(torch.amp.grad_scaler.GradScaler, "scale", _scale),
        Patch(torch.optim.Optimizer, "zero_grad", _zero),
        Patch(torch.nn.Module, "zero_grad", _zero),
    ]
)
"""Calls that scale a loss or drop gradients."""
clock.follow(globals())
