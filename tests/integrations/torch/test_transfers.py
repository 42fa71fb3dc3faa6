"""Copies between host and device, with a fake device."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from stepwell import Run  # noqa: E402
from stepwell.integrations.torch import annotate  # noqa: E402
from tests.integrations.torch.loops import counts, make_model  # noqa: E402
from tests.nesting.tree import attributes, finished, statuses  # noqa: E402

pytestmark = pytest.mark.torch

ORIGINAL = {name: getattr(torch.Tensor, name) for name in ("to", "cuda", "cpu")}
"""As a library remembers the functions that it handles."""


class Anywhere(torch.Tensor):
    """A tensor that can be on any device, while its data stay where they are."""

    where: Any = torch.device("cpu")

    @property
    def device(self) -> Any:
        return self.where

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        moves = {ORIGINAL["to"]: None, ORIGINAL["cuda"]: "cuda", ORIGINAL["cpu"]: "cpu"}
        if func in moves:
            target = moves[func] or (kwargs or {}).get("device") or args[1]
            if target is not None and not isinstance(target, torch.dtype):
                moved = args[0].detach().as_subclass(cls)
                moved.where = target.device if isinstance(target, torch.Tensor) else _device(target)
                return moved
        return super().__torch_function__(func, types, args, kwargs or {})


def _device(target: Any) -> Any:
    device = torch.device(target)
    return torch.device("cuda", 0) if device == torch.device("cuda") else device


def tensor(n: int = 6) -> Any:
    return torch.zeros(n).as_subclass(Anywhere)


def test_only_what_changes_the_device(recorded: Run) -> None:
    """Sizes and directions of real transfers; conversions and moves to where it is are none."""
    with annotate():
        x = tensor()
        gpu = x.to("cuda")
        assert gpu.device == torch.device("cuda", 0)
        x.cuda()
        gpu.cpu()
        x.to(device=torch.device("cuda", 1), non_blocking=True)
        gpu.to("cuda:1", torch.float32)
        x.to(gpu)
        for same in (x.to("cpu"), x.cpu(), x.to(torch.float64), gpu.to("cuda:0"), gpu.to(gpu)):
            assert same is not None
        torch.zeros(3).to("cpu", torch.float16).cpu()
        torch.zeros(3).to("meta")
    there = {"bytes": 24, "direction": "host_to_device"}
    assert attributes(finished(recorded), "transfer") == [
        there,
        there,
        {"bytes": 24, "direction": "device_to_host"},
        {**there, "non_blocking": True},
        {"bytes": 24, "direction": "device_to_device"},
        there,
    ]


def test_a_module_is_one_transfer(recorded: Run) -> None:
    """All tensors that move, in one record; where nothing moves there is none."""
    model = torch.nn.Module()
    for name in ("a", "b"):
        model.register_buffer(name, tensor())
    model.register_buffer("c", torch.zeros(3))
    with annotate():
        assert model.to("cpu") is model
        model.to(torch.float32)
        model.get_buffer("a").where = torch.device("cuda", 0)
        assert model.cpu() is model
    spans = finished(recorded)
    assert attributes(spans, "transfer") == [{"bytes": 24, "direction": "device_to_host"}]


def test_a_transfer_that_fails(recorded: Run) -> None:
    """There is no such device here: the error comes out as it is, on the transfer."""
    plain = _message(lambda: torch.zeros(3).cuda())
    with annotate():
        assert _message(lambda: torch.zeros(3).cuda()) == plain
        assert _message(lambda: torch.zeros(3).to("cuda")) == plain
        assert _message(lambda: make_model().cuda()) == plain
    assert statuses(finished(recorded)) == {("transfer", "error"): 3}


def _message(call: Any) -> tuple[type, str]:
    with pytest.raises((AssertionError, RuntimeError)) as caught:
        call()
    return caught.type, str(caught.value)


WRONG: list[Any] = [
    lambda: torch.ones(1).to("nowhere"),
    lambda: torch.ones(1).to([1]),
    lambda: torch.nn.Linear(1, 1).to(torch.int32),
    lambda: torch.Tensor.to(),
]


def test_wrong_calls_fail_as_ever() -> None:
    """What PyTorch says about wrong arguments does not change."""
    for call in WRONG:
        plain = _any_message(call)
        with annotate():
            assert _any_message(call) == plain


def test_wrong_calls_fail_as_ever_while_recording(recorded: Run) -> None:
    """Nor is it a problem of ours, which would be raised here."""
    for call in WRONG:
        plain = _any_message(call)
        with annotate():
            assert _any_message(call) == plain


def _any_message(call: Any) -> tuple[type, str]:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        call()
    return caught.type, str(caught.value)


def test_the_methods_pass_for_the_originals() -> None:
    """They are found in tables of functions, have the documentation, and are gone afterwards."""
    with annotate():
        patched = torch.Tensor.to
        assert patched is not ORIGINAL["to"]
        assert patched == ORIGINAL["to"]
        assert patched in {ORIGINAL["to"]: 1}
        assert ORIGINAL["to"] in {patched: 1}
        assert patched != ORIGINAL["cpu"]
        assert patched.__doc__ == ORIGINAL["to"].__doc__
        assert copy.deepcopy(patched) is patched
        data = pickle.dumps(patched)
    assert "to" not in vars(torch.Tensor)
    assert pickle.loads(data) is ORIGINAL["to"] or pickle.loads(data) == ORIGINAL["to"]


def test_left_out(recorded: Run) -> None:
    with annotate(transfers=False):
        assert "to" not in vars(torch.Tensor)
        tensor().to("cuda")
    assert counts(finished(recorded)) == {}


def test_somebody_else_replaces_it_too(recorded: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was put over ours stays when ours is removed, and ours then does nothing."""
    handle = annotate()
    below = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: below(self))
    handle.remove()
    assert tensor().to("cuda").cpu() is not None
    assert counts(finished(recorded)) == {}
    monkeypatch.undo()
    annotate().remove()
