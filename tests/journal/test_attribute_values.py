"""Whatever a user attaches to a span, an event or an artifact becomes strict JSON."""

from __future__ import annotations

import datetime
import decimal
import enum
import math
import uuid
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch

from stepwell import Run
from stepwell._core.values import encode
from tests.journal.readback import carried_by_all, parse_strictly, spans_of


class Color(enum.Enum):
    RED = "red"
    DEEP = ("a", 1)


class Level(enum.IntEnum):
    HIGH = 3


@dataclass
class Inner:
    x: float = 0.5
    tags: list[str] = field(default_factory=lambda: ["t"])


@dataclass
class Outer:
    inner: Inner = field(default_factory=Inner)
    path: Path = Path("/a/b")


Point = namedtuple("Point", "x y")

VALUES: list[tuple[str, Any, Any]] = [
    ("none", None, None),
    ("true", True, True),
    ("int", -7, -7),
    ("float", 0.1, 0.1),
    ("tiny", 5e-324, 5e-324),
    ("64 bits", 2**64 - 1, 2**64 - 1),
    ("beyond 64 bits", 2**64, 2**64),
    ("far beyond", -(10**400), -(10**400)),
    ("unprintable int", 1 << 20_000, "<int: 20001 bits>"),
    ("text", 'a "quoted"\n\t\\ text', 'a "quoted"\n\t\\ text'),
    ("zero byte", "a\0b", "a\0b"),
    ("line separators", "a\u2028b\u2029c\x85d", "a\u2028b\u2029c\x85d"),
    ("lone surrogate", "a\ud800b", "a\ud800b"),
    ("emoji", "🙂", "🙂"),
    ("the word null", "null", "null"),
    ("enum", Color.RED, "red"),
    ("enum of a tuple", Color.DEEP, ["a", 1]),
    ("int enum", Level.HIGH, 3),
    ("path", Path("/data/x.pt"), "/data/x.pt"),
    ("pure path", PurePosixPath("a/b"), "a/b"),
    ("datetime", datetime.datetime(2024, 2, 29, 12, 30), "2024-02-29T12:30:00"),
    ("utc", datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc), "2024-01-01T00:00:00Z"),
    ("date", datetime.date(2024, 2, 29), "2024-02-29"),
    ("time", datetime.time(1, 2, 3), "01:02:03"),
    ("timedelta", datetime.timedelta(hours=1, seconds=2), "PT3602S"),
    ("uuid", uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
    ("decimal", decimal.Decimal("1.50"), "1.50"),
    ("bytes", b"\x00\xff", "AP8="),
    ("complex", 1 - 2j, "<complex: (1-2j)>"),
    ("dict", {"a": {"b": [1, {"c": None}]}}, {"a": {"b": [1, {"c": None}]}}),
    ("ordered dict", OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
    ("int keys", {1: "x", 2: {3: "y"}}, {"1": "x", "2": {"3": "y"}}),
    ("odd keys", {None: 1, True: 2, (1, "a"): 3}, {"None": 1, "True": 2, "[1, 'a']": 3}),
    ("surrogate key", {"k\udfff": 1}, {"k\udfff": 1}),
    ("tuple", (1, "a"), [1, "a"]),
    ("named tuple", Point(1, 2), [1, 2]),
    ("set", {5}, [5]),
    ("frozen set", frozenset({"a"}), ["a"]),
    ("dataclass", Outer(), {"inner": {"x": 0.5, "tags": ["t"]}, "path": "/a/b"}),
    ("a class", Inner, "<type: tests.journal.test_attribute_values.Inner>"),
    ("a function", math.sqrt, "<builtin_function_or_method: math.sqrt>"),
    ("bool_", np.bool_(True), True),
    ("int64", np.int64(-(2**63)), -(2**63)),
    ("uint64", np.uint64(2**64 - 1), 2**64 - 1),
    ("float16", np.float16(0.5), 0.5),
    ("float32", np.float32(0.25), 0.25),
    ("float64", np.float64(0.1), 0.1),
    ("longdouble", np.longdouble(1.5), 1.5),
    ("str_", np.str_("text"), "text"),
    ("datetime64", np.datetime64("2024-02-29"), "2024-02-29"),
    ("0-d array", np.array(3), 3),
    ("1-element array", np.array([2.5]), 2.5),
    ("array", np.zeros((2, 3)), "<ndarray: float64 (2, 3)>"),
    ("0-d tensor", torch.tensor(0.5, requires_grad=True), 0.5),
    ("1-element tensor", torch.tensor([7]), 7),
    ("bfloat16", torch.tensor(1.5, dtype=torch.bfloat16), 1.5),
    ("tensor", torch.zeros(2, 2), "<Tensor: torch.float32 (2, 2)>"),
    ("meta tensor", torch.zeros(2, device="meta"), "<Tensor: torch.float32 (2,)>"),
]


@pytest.mark.sampled(20)
@pytest.mark.parametrize(("name", "value", "kept"), VALUES, ids=[name for name, _, _ in VALUES])
def test_every_kind_of_attribute_is_kept(recorded: Run, name: str, value: Any, kept: Any) -> None:
    """The same value arrives on spans, events and artifacts, alone and beside a NaN."""
    for attributes in carried_by_all(recorded, v=value, beside=math.nan):
        assert attributes == {"v": kept, "beside": None, "nonfinite": {"beside": "nan"}}
    assert parse_strictly(encode({"v": value})) == {"v": kept}


@pytest.mark.parametrize("kind", [float, np.float16, np.float32, np.float64, torch.tensor])
def test_what_is_not_finite_is_null_and_named(recorded: Run, kind: Any) -> None:
    """NaN and infinities become null; ``nonfinite`` says where they were and which."""
    values = {"a": kind(math.nan), "b": [1, kind(math.inf)], "c": {"d": kind(-math.inf)}, "e": None}
    for attributes in carried_by_all(recorded, **values):
        assert attributes == {
            "a": None,
            "b": [1, None],
            "c": {"d": None},
            "e": None,
            "nonfinite": {"a": "nan", "b.1": "inf", "c.d": "-inf"},
        }


def test_setting_an_attribute_again_replaces_what_it_was(recorded: Run) -> None:
    """``set`` adds and replaces; a number that is finite now is no longer listed as non-finite."""
    with recorded.span("s", a=math.nan, b=math.inf, c=1) as span:
        span.set(a=2.0, d=math.nan)
        span.set(d=-math.inf, e="x" * 9000)
        span.set(f=3)
    [(_, found)] = spans_of(recorded)
    assert found == {
        "a": 2.0,
        "b": None,
        "c": 1,
        "d": None,
        "e": "x" * 8192 + "…<cut: 9000 characters>",
        "f": 3,
        "nonfinite": {"b": "inf", "d": "-inf"},
    }


def test_an_attribute_may_be_called_nonfinite(recorded: Run) -> None:
    """A user's own attribute of that name is kept beside the flag."""
    with recorded.span("s", nonfinite="mine", x=math.nan):
        pass
    [(_, found)] = spans_of(recorded)
    assert found == {"nonfinite": "mine", "x": None, "nonfinite_": {"x": "nan"}}


def test_very_long_texts_are_cut_and_say_so(recorded: Run) -> None:
    """8,192 characters are kept, with the length that it had; a long key keeps 256."""
    long = "ä" * 100_000
    for attributes in carried_by_all(recorded, long=long, **{"k" * 500: 1}):
        assert attributes == {
            "long": "ä" * 8192 + "…<cut: 100000 characters>",
            "k" * 256 + "…<cut: 500 characters>": 1,
        }


def test_texts_at_the_limit_are_not_cut(recorded: Run) -> None:
    """Exactly 8,192 characters fit."""
    for attributes in carried_by_all(recorded, text="x" * 8192):
        assert attributes == {"text": "x" * 8192}


def test_a_value_may_change_after_the_call(recorded: Run) -> None:
    """What was recorded is what the value was at the time."""
    changing = [1]
    with recorded.span("s", v=changing):
        recorded.event("e", v=changing)
        changing.append(2)
    [(_, found)] = spans_of(recorded)
    assert found == {"v": [1]}
