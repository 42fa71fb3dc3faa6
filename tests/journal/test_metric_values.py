"""Whatever a user logs as a metric becomes a number, or an event that says what it was."""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import math
import mmap
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stepwell
from stepwell import Run
from stepwell.journal.format import METRIC_ROWS
from stepwell.journal.metrics import latest
from stepwell.journal.state import state
from tests.harness import run_script
from tests.journal.readback import events_of, metrics_of, values_of


class Level(enum.Enum):
    LOW = 1
    HIGH = 2.5


class Loud(enum.IntEnum):
    YES = 3


class HasFloat:
    def __float__(self) -> float:
        return 0.125


SCALARS: list[tuple[str, Any, float]] = [
    ("float", 0.1, 0.1),
    ("int", 7, 7.0),
    ("negative zero", -0.0, -0.0),
    ("true", True, 1.0),
    ("false", False, 0.0),
    ("beyond 64 bits", 2**100, float(2**100)),
    ("beyond a float", 10**400, math.inf),
    ("below a float", -(10**400), -math.inf),
    ("enum", Level.HIGH, 2.5),
    ("int enum", Loud.YES, 3.0),
    ("decimal", decimal.Decimal("0.5"), 0.5),
    ("fraction", fractions.Fraction(1, 4), 0.25),
    ("huge fraction", fractions.Fraction(10**400), math.inf),
    ("own __float__", HasFloat(), 0.125),
    ("bool_", np.bool_(True), 1.0),
    ("int8", np.int8(-128), -128.0),
    ("int16", np.int16(-300), -300.0),
    ("int32", np.int32(70_000), 70_000.0),
    ("int64", np.int64(2**62), float(2**62)),
    ("uint8", np.uint8(255), 255.0),
    ("uint16", np.uint16(65535), 65535.0),
    ("uint32", np.uint32(2**32 - 1), float(2**32 - 1)),
    ("uint64", np.uint64(2**63), float(2**63)),
    ("float16", np.float16(0.5), 0.5),
    ("float32", np.float32(0.1), struct.unpack("f", struct.pack("f", 0.1))[0]),
    ("float64", np.float64(0.1), 0.1),
    ("longdouble", np.longdouble(1.5), 1.5),
    ("0-d array", np.array(2.25), 2.25),
    ("1-element array", np.array([[4.5]]), 4.5),
    ("0-d tensor", torch.tensor(0.75), 0.75),
    ("1-element tensor", torch.tensor([[1.25]]), 1.25),
    ("tensor with a gradient", torch.tensor(0.5, requires_grad=True), 0.5),
    ("parameter", torch.nn.Parameter(torch.tensor([8.0])), 8.0),
    ("int tensor", torch.tensor(2**40), float(2**40)),
    ("bool tensor", torch.tensor(True), 1.0),
    ("bfloat16", torch.tensor(1.5, dtype=torch.bfloat16), 1.5),
    ("half", torch.tensor(0.25, dtype=torch.float16), 0.25),
    ("double", torch.tensor(0.1, dtype=torch.float64), 0.1),
]


def test_every_kind_of_scalar_becomes_its_number(recorded: Run) -> None:
    """Python, NumPy and torch scalars come back as the float64 that they are."""
    for name, value, _ in SCALARS:
        recorded.log({name: value})
        recorded.log({name: value})
    assert values_of(recorded) == {name: [number] * 2 for name, _, number in SCALARS}
    assert math.copysign(1, values_of(recorded)["negative zero"][0]) == -1
    assert events_of(recorded) == []


@pytest.mark.parametrize("kind", [float, np.float16, np.float32, np.float64, torch.tensor])
def test_what_is_not_finite_is_kept_exactly(recorded: Run, kind: Any) -> None:
    """NaN and both infinities are metric values like any other."""
    recorded.log({"nan": kind(math.nan), "inf": kind(math.inf), "minus": kind(-math.inf)})
    values = values_of(recorded)
    assert math.isnan(values.pop("nan")[0])
    assert values == {"inf": [math.inf], "minus": [-math.inf]}


NO_NUMBERS: list[tuple[str, Any, Any]] = [
    ("text", "good", "good"),
    ("a number in words", "0.5", "0.5"),
    ("none", None, None),
    ("complex", 1 + 2j, "<complex: (1+2j)>"),
    ("bytes", b"ab", "YWI="),
    ("list", [1, 2], [1, 2]),
    ("array", np.zeros((2, 3), np.float32), "<ndarray: float32 (2, 3)>"),
    ("empty array", np.zeros(0), "<ndarray: float64 (0,)>"),
    ("tensor", torch.zeros(4), "<Tensor: torch.float32 (4,)>"),
    ("meta", torch.zeros((), device="meta"), "<Tensor: unreadable, RuntimeError>"),
    ("complex scalar", np.complex64(1j), "<complex: 1j>"),
    ("date", datetime.date(2024, 2, 29), "2024-02-29"),
    ("object", type("Thing", (), {"__repr__": lambda s: "it"})(), "<Thing: it>"),
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("name", "value", "kept"), NO_NUMBERS, ids=[n for n, _, _ in NO_NUMBERS])
def test_what_is_no_number_becomes_an_event(
    recorded: Run, name: str, value: Any, kept: Any
) -> None:
    """Texts, None and arrays are kept as an event of that name; the numbers beside them stay."""
    recorded.log({"before": 1.0, name: value, "after": 2.0})
    assert values_of(recorded) == {"before": [1.0], "after": [2.0]}
    [(found, about)] = events_of(recorded)
    assert (found, about["value"]) == (name, kept)


def test_the_event_of_a_value_says_at_which_step_it_was_logged(recorded: Run) -> None:
    """The step is the one given, else the current one, else none, as for a number."""
    recorded.log({"note": "no step yet"})
    recorded.set_step(4)
    recorded.log({"note": "current"})
    recorded.log({"note": "given"}, step=9)
    assert [attributes["step"] for _, attributes in events_of(recorded)] == [None, 4, 9]


def test_nested_dicts_become_names_with_slashes(recorded: Run) -> None:
    """A dict inside the values prefixes the names inside it, at any depth and at the given step."""
    recorded.log({"a": {"b": 1.0, "c": {"d": 2, 3: np.float32(4)}}, "e": 5.0}, step=6)
    assert metrics_of(recorded) == {
        "a/b": [(6, 1.0)],
        "a/c/d": [(6, 2.0)],
        "a/c/3": [(6, 4.0)],
        "e": [(6, 5.0)],
    }


@pytest.mark.parametrize("free", range(1, 7))
def test_nested_dicts_cross_the_end_of_a_segment(recorded: Run, free: int) -> None:
    """Values beside a nested dict are kept, however many rows of a segment are left."""
    for _ in range(METRIC_ROWS - free):
        recorded.log({"filler": 0.0})
    recorded.log({"nested": {"x": 1.0, "y": 2.0}, "beside": 4.0, "too": 5})
    values = {k: v for k, v in values_of(recorded).items() if not k.startswith("filler")}
    assert values == {"nested/x": [1.0], "nested/y": [2.0], "beside": [4.0], "too": [5.0]}


# In a process of its own, as names stay with a process: every later run would have all of them.
MANY = """
import sys, stepwell
with stepwell.init("many", dir=sys.argv[1]) as run:
    run.log({f"m{i}": float(i) for i in range(10_000)}, step=1)
    run.log({f"m{i}": i for i in range(10_000)}, step=2)
"""


def test_ten_thousand_metrics_fit_in_one_call(tmp_path: Path) -> None:
    """More metrics than a segment has rows are all kept, each under its name."""
    run_script(MANY, tmp_path, check=True)
    (run,) = stepwell.list_runs(tmp_path)
    rows = run.metrics().sort("step").collect().select("name", "step", "value").rows()
    assert sorted(rows) == sorted(
        (f"m{i}", step, float(i)) for i in range(10_000) for step in (1, 2)
    )


NAMES = [
    "train/loss",
    'a "quoted" one',
    "new\nline",
    "zero\0byte",
    "\u2028 and \u2029 and \x85",
    "tab\t\x1c\x1d\x1e\x0b\x0c",
    "größe",
    "🙂",
    "",
    " ",
    "back\\slash",
]


def test_names_are_kept_whatever_they_contain(recorded: Run) -> None:
    """Quotes, line breaks of every kind, zero bytes and emoji stay as they are in names."""
    for i, name in enumerate(NAMES):
        recorded.log({name: i})
        with recorded.span(name):
            recorded.event(name, text=name)
    assert values_of(recorded) == {name: [float(i)] for i, name in enumerate(NAMES)}
    assert events_of(recorded) == [(name, {"text": name}) for name in NAMES]


def test_lone_surrogates_in_names_are_shown_as_escapes(recorded: Run) -> None:
    """Half a character cannot be UTF-8, so a name shows its code instead; the value is kept."""
    recorded.log({"x\ud800": 1.0})
    assert values_of(recorded) == {"x\\ud800": [1.0]}


def test_names_that_are_no_strings_are_written_out(recorded: Run) -> None:
    """Numbers and enums as names become text."""
    recorded.log({1: 1.0, 2.5: 2.0, None: 3.0, ("a", 1): 4.0})  # type: ignore[dict-item]
    assert values_of(recorded) == {"1": [1.0], "2.5": [2.0], "None": [3.0], "('a', 1)": [4.0]}


def test_a_very_long_name_is_cut_and_says_so(recorded: Run) -> None:
    """A name of a million characters does not fill the string table."""
    recorded.log({"m" * 1_000_000: 1.0})
    with recorded.span("s" * 1_000_000):
        recorded.event("e" * 1_000_000)
    [name] = values_of(recorded)
    assert name == "m" * 1000 + "…<cut: 1000000 characters>"
    assert events_of(recorded)[0][0] == "e" * 1000 + "…<cut: 1000000 characters>"
    assert sum(p.stat().st_size for p in recorded.path.rglob("names.jsonl")) < 1_000_000


def test_the_latest_value_is_found_while_another_segment_is_unmapped(recorded: Run) -> None:
    """The pump unmaps the segments of a thread that has ended, also while they are being searched."""
    logged, done = threading.Event(), threading.Event()

    def work() -> None:
        stepwell.log({"loss": 2.0}, step=1)
        logged.set()
        done.wait(60)

    stepwell.log({"loss": 1.0}, step=0)
    thread = threading.Thread(target=work)
    thread.start()
    logged.wait(60)
    lanes = list(state.journal.lanes) if state.journal is not None else []
    assert latest("loss", lanes) == 2.0
    gone = mmap.mmap(-1, mmap.PAGESIZE)
    gone.close()
    kept, lanes[-1].rows = lanes[-1].rows, gone
    assert latest("loss", lanes) == 1.0
    lanes[-1].rows = kept
    done.set()
    thread.join()
