"""Comparisons: worked out by hand, on real runs, and as a person would ask for them."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

import stepwell
from stepwell._core.errors import StepwellError
from stepwell.analysis import compare
from stepwell.analysis.compare.metrics import lasting_since
from stepwell.analysis.findings.curves import goal_of
from tests.analysis.compare.recording import record
from tests.harness import run_stepwell


@pytest.mark.parametrize(
    ("name", "goal"),
    [
        ("train/loss", "lower"),
        ("val_loss", "lower"),
        ("eval/perplexity", "lower"),
        ("holdout/accuracy", "higher"),
        ("val/top1-acc", "higher"),
        ("f1", "higher"),
        ("gradient_norm/overall", None),
        ("lr", None),
        ("flossy", None),
        ("accumulate", None),
    ],
)
def test_names_tell_what_is_better(name: str, goal: str | None) -> None:
    assert goal_of(name) == goal


# Since when


@pytest.mark.parametrize(
    ("a", "b", "since"),
    [
        ([0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 1.5, 1.0], 2),
        ([0.0, 1.0, 2.0], [0.0, 1.0, 2.0], None),
        ([5.0, 5.0], [1.0, 1.0], 0),
        ([0.0, 9.0, 1.0, 9.0], [0.0, 1.0, 9.0, 1.0], 3),
        ([0.0, 10.0, 0.1], [0.0, 2.0, 0.2], None),
        ([0.0] * 30 + [1.0], [0.0] * 31, None),
        ([0.0] * 27 + [1.0] * 4, [0.0] * 31, 27),
    ],
    ids=["apart later", "equal", "always", "crossing", "near again", "last one", "last tenth"],
)
def test_a_lasting_difference_by_hand(a: list[float], b: list[float], since: int | None) -> None:
    """It is in one direction up to the end, more than a twentieth of the range, and a tenth of the way."""
    assert lasting_since(a, b) == since
    assert lasting_since(b, a) == since


def test_a_high_start_hides_no_difference_at_the_end() -> None:
    """From 20 down to 0.30 and 0.40: a tenth is much there, though little of all that they went through."""
    a = [20 * 0.5**i + 0.30 for i in range(20)]
    b = [20 * 0.5**i + 0.40 for i in range(20)]
    assert lasting_since(a, b) == 0
    assert lasting_since([1.0] * 20, [1.0005] * 20) is None


def test_a_few_rough_values_are_no_difference() -> None:
    """Of curves that are not smoothed too: 20 validations that vary more than they are apart."""
    draw = random.Random(1)
    found = 0
    for _ in range(200):
        a, b = ([1 + draw.gauss(0, 0.1) for _ in range(20)] for _ in range(2))
        found += lasting_since(a, b) is not None
    assert found <= 4
    assert lasting_since(a, [value + 1 for value in b]) == 0


def test_noise_is_no_difference() -> None:
    """Two noisy curves of the same mean do not part; of means that part at 500 they part about there."""
    draw = random.Random(0)
    flat = [1 + draw.gauss(0, 0.3) for _ in range(1000)]
    other = [1 + draw.gauss(0, 0.3) for _ in range(1000)]
    parts = [value - (0.5 if i >= 500 else 0) for i, value in enumerate(other)]
    assert lasting_since(flat, other, 0.95) is None
    since = lasting_since(flat, parts, 0.95)
    assert since is not None
    assert 480 <= since <= 530


# Metrics


def test_metrics_side_by_side_by_hand(tmp_path: Path) -> None:
    """a: 10 - step down to 1, then 5; b: 8 - step, logged at every second step only."""
    a = record(tmp_path, "a", {"loss": lambda s: 10.0 - s if s < 10 else 5.0}, steps=11)
    b = record(tmp_path, "b", {"loss": lambda s: 8.0 - s, "only_b": float}, steps=9, every=2)
    found = compare.compare([a, b])
    loss, only = found.metrics
    assert (loss.name, loss.goal, only.name) == ("loss", "lower", "only_b")
    assert (loss.common_count, loss.first_at, loss.common_at) == (5, 0, 8)
    first, second = loss.runs
    assert first is not None
    assert second is not None
    assert (first.last, first.last_step, first.best, first.best_step) == (5.0, 10, 1.0, 9)
    assert (first.common, second.common) == (2.0, 0.0)
    assert (loss.better, loss.against, loss.since) == (1, 0, 0)
    assert only.runs[0] is None
    assert only.better is None
    assert found.summary[0] == ("b is better at loss: 0 against 2 at step 8, ahead from the start.")


def test_the_table_is_a_frame(tmp_path: Path) -> None:
    a = record(tmp_path, "a", {"acc": lambda s: s / 20})
    b = record(tmp_path, "b", {"acc": lambda s: s / 20 if s < 10 else 0.5})
    table = compare.metric_table([a, b])
    assert table.select("metric", "run", "last", "best", "best_step", "better").rows() == [
        ("acc", a.id, 0.95, 0.95, 19, True),
        ("acc", b.id, 0.5, 0.5, 10, False),
    ]
    # 0.95 is the range: more than 0.0475 apart from step 11 (0.55) on.
    assert set(table["since"]) == {11}
    assert "ahead from step 11 on" in compare.compare([a, b]).summary[0]


def test_equal_even_and_broken_runs_are_told_apart(tmp_path: Path) -> None:
    same = {"loss": lambda s: 1.0 / (s + 1)}
    a = record(tmp_path, "a", {**same, "acc": lambda s: s / 20})
    b = record(tmp_path, "b", {**same, "acc": lambda s: s / 20 + 0.001})
    summary = compare.compare([a, b]).summary
    assert summary == [
        "loss: identical at every common step.",
        "No lasting difference in acc.",
        "No configuration was recorded: give one with stepwell.init(config={…}).",
    ]
    c = record(tmp_path, "c", {"loss": lambda s: math.nan if s > 4 else 1.0})
    broken = compare.compare([a, c]).summary
    assert "c has NaN or infinite values, first in loss at step 5." in broken


def test_runs_without_a_common_step(tmp_path: Path) -> None:
    a = record(tmp_path, "a", {"loss": float}, steps=2)
    with stepwell.init("b", dir=tmp_path) as run:
        run.log({"loss": 1.0}, step=100)
    found = compare.compare([a, stepwell.open_run(run.path)])
    assert "loss: no step in common." in found.summary


def test_one_step_in_common_says_nothing(tmp_path: Path) -> None:
    """Unless there is only one: a test at the end."""
    a = record(tmp_path, "a", {"loss": float}, steps=20, every=19)
    with stepwell.init("b", dir=tmp_path) as run:
        for step in (5, 7, 19):
            run.log({"loss": 0.5}, step=step)
    found = compare.compare([a, stepwell.open_run(run.path)])
    assert found.metrics[0].better is None
    assert found.summary[0] == "loss: only one step in common."
    ends = [
        record(tmp_path, n, {"test/acc": lambda s, v=v: v}, 1) for n, v in (("c", 0.8), ("d", 0.9))
    ]
    assert compare.compare(ends).summary[0].startswith("d is better at test/acc: 0.9 against 0.8")


def test_three_runs_name_the_best_and_the_next(tmp_path: Path) -> None:
    runs = [
        record(tmp_path, name, {"val/acc": lambda s, top=top: top * s / 19})
        for name, top in (("a", 0.5), ("b", 0.9), ("c", 0.7))
    ]
    (acc,) = compare.compare(runs).metrics
    assert (acc.better, acc.against) == (1, 2)
    assert (
        compare.compare(runs)
        .summary[0]
        .startswith("b is best at val/acc: 0.9 against 0.7 of c at step 19, ahead from step ")
    )


def test_only_what_is_asked_for(tmp_path: Path) -> None:
    a = record(tmp_path, "a", {"loss": float, "lr": float})
    b = record(tmp_path, "b", {"loss": float, "lr": float})
    assert [m.name for m in compare.compare([a, b], ["l?"]).metrics] == ["lr"]
    with pytest.raises(StepwellError, match="there are: loss, lr"):
        compare.compare([a, b], ["accuracy"])


# Configuration and code


def test_configuration_differences(tmp_path: Path) -> None:
    """1 and 1.0 are the same, 1 and True are not; what is missing is None."""
    a = record(tmp_path, "a", {}, 1, config={"lr": 1, "opt": {"name": "sgd", "b": [1]}, "n": 1})
    b = record(
        tmp_path,
        "b",
        {},
        1,
        config={"lr": 1.0, "opt": {"name": "adam", "b": [1]}, "n": True, "x": 2},
    )
    assert compare.compare([a, b]).config == [
        compare.Difference("n", [1, True]),
        compare.Difference("opt.name", ["sgd", "adam"]),
        compare.Difference("x", [None, 2]),
    ]
    assert compare.config_table([a, b]).rows() == [
        ("n", "1", "true"),
        ("opt.name", '"sgd"', '"adam"'),
        ("x", None, "2"),
    ]


def test_code_and_versions(tmp_path: Path) -> None:
    a, b = record(tmp_path, "a", {}, 1), record(tmp_path, "b", {}, 1)
    for run, commit, torch in ((a, "abc", "2.8"), (b, "def", "2.9")):
        about = json.loads((run.path / "run.json").read_text())
        about["attempts"][-1] |= {
            "code": {"commit": commit, "dirty": False},
            "python": {"version": "3.11", "executable": commit, "packages": {"torch": torch}},
            "argv": ["train.py"],
        }
        (run.path / "run.json").write_text(json.dumps(about))
    found = compare.compare([stepwell.open_run(a.path), stepwell.open_run(b.path)]).code
    assert [(d.key, d.values) for d in found] == [
        ("code.commit", ["abc", "def"]),
        ("packages.torch", ["2.8", "2.9"]),
    ]


def test_a_strange_run_document_is_no_obstacle(tmp_path: Path) -> None:
    a, b = record(tmp_path, "a", {}, 1), record(tmp_path, "b", {}, 1)
    (b.path / "run.json").write_text('{"attempts": [7, {"python": 3, "argv": 1}], "config": []}')
    compare.compare([a, stepwell.open_run(b.path)])


# Weights


@pytest.mark.torch
def test_weights_layer_by_layer_by_hand(tmp_path: Path) -> None:
    """(3, 4) against (3, 0): 4 apart, 80 % of 5, cosine 0.6; opposite ones have -1."""
    import torch

    a, b = record(tmp_path, "a", {}, 1), record(tmp_path, "b", {}, 1)
    weights = {
        a: {
            "x": torch.tensor([3.0, 4.0]),
            "y": torch.ones(2, 2),
            "z": torch.zeros(1),
            "a": torch.ones(3),
        },
        b: {
            "x": torch.tensor([3.0, 0.0]),
            "y": -torch.ones(2, 2),
            "z": torch.zeros(1),
            "a": torch.ones(4),
        },
    }
    for run, state in weights.items():
        folder = run.path / "telemetry" / "snapshots"
        folder.mkdir(parents=True)
        torch.save({"x": torch.zeros(2)}, folder / "epoch-00000.batch-00000100.pt")
        torch.save(state, folder / "epoch-00000.batch-00000200.pt")
    torch.save({}, a.path / "telemetry" / "snapshots" / "epoch-00000.batch-00000300.pt")
    (found,) = compare.compare([a, b]).weights
    assert found.snapshots == ("epoch-00000.batch-00000200",) * 2
    assert found.only == ["a"]
    x, y, z = found.layers
    assert (x.count, x.l2, x.relative, x.cosine) == (2, 4.0, 0.8, pytest.approx(0.6))
    assert (y.l2, y.relative, y.cosine) == (4.0, 2.0, pytest.approx(-1.0))
    assert (z.l2, z.relative, z.cosine) == (0.0, None, None)
    assert found.overall.l2 == pytest.approx(math.sqrt(32))
    # (9 - 4) of lengths sqrt(29) and sqrt(13).
    assert found.overall.cosine == pytest.approx(5 / math.sqrt(29 * 13))
    assert compare.weight_table(a, b)["layer"].to_list() == ["overall", "x", "y", "z"]


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "complex64", "int64"])
def test_weights_of_any_kind(tmp_path: Path, dtype: str) -> None:
    import torch

    a, b = record(tmp_path, "a", {}, 1), record(tmp_path, "b", {}, 1)
    for run, value in ((a, 1), (b, 2)):
        (run.path / "telemetry" / "snapshots").mkdir(parents=True)
        state = {"w": torch.full((4,), value, dtype=getattr(torch, dtype))}
        torch.save(state, run.path / "telemetry" / "snapshots" / "s.pt")
    assert compare.weight_table(a, b).filter(layer="w")["l2"].to_list() == [2.0]


@pytest.mark.torch
def test_a_snapshot_that_is_none_is_refused(tmp_path: Path) -> None:
    """Nothing is unpickled, and links are not followed."""
    import pickle

    a, b = record(tmp_path, "a", {}, 1), record(tmp_path, "b", {}, 1)
    for run in (a, b):
        (run.path / "telemetry" / "snapshots").mkdir(parents=True)
        evil = pickle.dumps({"w": Path("x")})
        (run.path / "telemetry" / "snapshots" / "s.pt").write_bytes(evil)
    with pytest.raises(StepwellError, match="not a snapshot of weights"):
        compare.compare([a, b])
    (b.path / "telemetry" / "snapshots" / "s.pt").unlink()
    (b.path / "telemetry" / "snapshots" / "s.pt").symlink_to("/dev/zero")
    assert compare.compare([a, b]).weights == []


# The command


def test_the_command_answers_first(tmp_path: Path) -> None:
    for name, rate in (("slow", 0.02), ("fast", 0.1)):
        curve = {"val/loss": lambda s, rate=rate: math.exp(-rate * s)}
        record(tmp_path / "runs", name, curve, 40, config={"lr": rate})
    done = run_stepwell("compare", "slow", "fast", "-o", "both.html", cwd=tmp_path)
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    told = " ".join(done.stdout.split())
    assert "fast is better at val/loss: 0.02024 against 0.4584 at step 39, ahead from step" in told
    assert "Different settings: lr." in told
    assert (tmp_path / "both.html").exists()
    parsed = json.loads(run_stepwell("compare", "slow", "fast", "--json", cwd=tmp_path).stdout)
    assert parsed["metrics"][0]["better"] == 1
    assert parsed["config"] == [{"key": "lr", "values": [0.02, 0.1]}]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compare", "a"], "at least two runs"),
        (["compare", "a", "a"], "twice"),
        (["compare", "a", "nowhere"], "No run named"),
        (["compare", "a", "b", "--metric", "x"], "there are: loss"),
        (["compare", "a", "b", "-o", "x.pdf"], ".png or .html"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    for name in ("a", "b"):
        record(tmp_path / "runs", name, {"loss": float}, 2)
    done = run_stepwell(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_run_that_is_nothing_but_nan_is_not_as_good(tmp_path: Path) -> None:
    """There is no value to compare: the sentence says that it is broken, not that the runs are equal."""
    fine = record(tmp_path, "fine", {"loss": lambda s: 1 / (s + 1)})
    broken = record(tmp_path, "broken", {"loss": lambda s: math.nan})
    assert compare.compare([fine, broken]).summary == [
        "broken has NaN or infinite values, first in loss at step 0.",
        "No configuration was recorded: give one with stepwell.init(config={…}).",
    ]


def test_runs_without_a_common_metric(tmp_path: Path) -> None:
    """Whatever their names are."""
    one = record(tmp_path, "one", {"loss": lambda s: 1 / (s + 1)})
    other = record(tmp_path, "other", {"speed": lambda s: 1.0})
    assert compare.compare([one, other]).summary[0] == "The runs have no metric in common."
