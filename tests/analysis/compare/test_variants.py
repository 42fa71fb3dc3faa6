"""Repeats: what is a variant, and what is more than noise."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from stepwell._core.errors import StepwellError
from stepwell.analysis.compare import compare
from stepwell.analysis.compare.variants import holm, student_tails, welch
from stepwell.reading import RecordedRun
from tests.analysis.compare.recording import record
from tests.cli.terminal import in_terminal

# The test


@pytest.mark.parametrize(
    ("t", "freedom", "p"),
    [(12.706, 1, 0.05), (4.303, 2, 0.05), (2.228, 10, 0.05), (2.750, 30, 0.01), (0.0, 5, 1.0)],
)
def test_quantiles_of_student_as_in_any_table(t: float, freedom: float, p: float) -> None:
    assert student_tails(t, freedom) == pytest.approx(p, rel=1e-3)
    assert student_tails(-t, freedom) == student_tails(t, freedom)


def test_welch_by_hand() -> None:
    """Means 2 and 6, variances 1 and 4, three each: t = -4 / sqrt(5/3), 25/9 / (1/18 + 16/18) degrees."""
    expected = student_tails(-4 / (5 / 3) ** 0.5, (25 / 9) / (17 / 18))
    assert welch([1, 2, 3], [4, 6, 8]) == pytest.approx(expected)
    assert welch([1], [1, 2]) is None
    assert welch([1, 1], [2, 2]) is None


def test_welch_agrees_with_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    draw = random.Random(1)
    for _ in range(300):
        a = [draw.gauss(0, 1) for _ in range(draw.randint(2, 9))]
        b = [
            draw.gauss(draw.uniform(-4, 4), draw.uniform(0.1, 5)) for _ in range(draw.randint(2, 9))
        ]
        found = welch(a, b)
        assert found is not None
        assert found == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue, rel=1e-9)


def test_noise_is_told_as_more_than_noise_as_seldom_as_it_says() -> None:
    draw = random.Random(2)
    wrong = 0
    for _ in range(2000):
        found = welch(*([draw.gauss(0, 1) for _ in range(4)] for _ in range(2)))
        assert found is not None
        wrong += found < 0.05
    assert 0.03 < wrong / 2000 < 0.06


def test_several_tests_at_once() -> None:
    """Holm: three times the least, twice the next, and never less than the one before."""
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])


# Variants


def runs_of(tmp_path: Path, ends: dict[float, list[float]]) -> list[RecordedRun]:
    """By learning rate: what the validation loss of each repeat comes to."""
    return [
        record(
            tmp_path / "runs",
            f"lr{lr}-{seed}",
            {"val/loss": lambda s, end=end: end + 2 * 0.5**s},
            config={"opt": {"lr": lr}, "seed": seed},
        )
        for lr, found in ends.items()
        for seed, end in enumerate(found)
    ]


def test_repeats_that_are_apart(tmp_path: Path) -> None:
    """0.30, 0.31, 0.32 against 0.40, 0.42, 0.41: means 0.31 and 0.41, a spread of 0.01 each."""
    runs = runs_of(tmp_path, {0.1: [0.30, 0.31, 0.32], 0.01: [0.40, 0.42, 0.41]})
    found = compare(runs)
    assert [(v.label, v.runs) for v in found.variants] == [
        ("lr=0.1", (0, 1, 2)),
        ("lr=0.01", (3, 4, 5)),
    ]
    (loss,) = found.repeats
    assert [s.count for s in loss.variants] == [3, 3]
    assert [s.mean for s in loss.variants] == pytest.approx([0.31, 0.41], abs=1e-4)
    assert [s.deviation for s in loss.variants] == pytest.approx([0.01, 0.01], rel=1e-3)
    # t = 0.1 / sqrt(2 * 0.0001 / 3) = 12.25 with 4 degrees of freedom.
    assert loss.p == [None, pytest.approx(student_tails(12.247, 4), rel=1e-2)]
    assert loss.is_more_than_noise is True
    assert found.summary[0] == (
        "lr=0.1 is better at val/loss: 0.31 ± 0.01 (3 runs) against 0.41 ± 0.01 (3 runs) of lr=0.01 "
        "at step 19, more than noise (p = 0.00026)."
    )


def test_repeats_that_are_not(tmp_path: Path) -> None:
    found = compare(runs_of(tmp_path, {0.1: [0.30, 0.40, 0.35], 0.01: [0.33, 0.42, 0.38]}))
    assert found.repeats[0].is_more_than_noise is False
    assert "lr=0.1 is better at val/loss" in found.summary[0]
    assert "within noise (p = 0.53)" in found.summary[0]


def test_a_single_run_says_nothing_about_noise(tmp_path: Path) -> None:
    found = compare(runs_of(tmp_path, {0.1: [0.30, 0.31], 0.01: [0.41]}))
    assert found.repeats[0].p == [None, None]
    assert found.repeats[0].is_more_than_noise is None
    assert "the noise of a single run is unknown" in found.summary[0]
    alone = compare(runs_of(tmp_path / "alone", {0.1: [0.30], 0.01: [0.41]}))
    assert alone.repeats == []
    assert alone.summary[0].endswith("with opt.lr 0.1 instead of 0.01.")
    assert alone.summary[-1].startswith("There is one run of each")


def test_repeats_with_the_same_seed(tmp_path: Path) -> None:
    found = compare(runs_of(tmp_path, {0.1: [0.30, 0.30], 0.01: [0.41, 0.41]}))
    assert found.repeats[0].is_more_than_noise is None
    assert "the repeats are identical" in found.summary[0]


def test_repeats_of_one_thing(tmp_path: Path) -> None:
    found = compare(runs_of(tmp_path, {0.1: [0.30, 0.31, 0.32]}))
    assert found.summary[0] == (
        "Repeats of one configuration: val/loss is 0.31 ± 0.01 (3 runs) at step 19, "
        "from 0.3 to 0.32."
    )


def test_groups_by_a_key_and_by_name(tmp_path: Path) -> None:
    runs = [
        record(tmp_path, name, {"loss": float}, 3, config=config)
        for name, config in (
            ("adam-lr-1", {"opt": "adam", "width": 1}),
            ("adam-lr_seed2", {"opt": "adam", "width": 2}),
            ("sgd50", {"opt": "sgd", "width": 1}),
        )
    ]
    assert [v.runs for v in compare(runs).variants] == [(0,), (1,), (2,)]
    by_key = compare(runs, group="opt").variants
    assert [(v.label, v.runs) for v in by_key] == [("opt=adam", (0, 1)), ("opt=sgd", (2,))]
    by_name = compare(runs, group="name").variants
    assert [(v.label, v.runs) for v in by_name] == [("adam-lr", (0, 1)), ("sgd50", (2,))]
    with pytest.raises(StepwellError, match="group by name, or by one of: opt, width"):
        compare(runs, group="optimiser")


def test_runs_without_a_configuration_are_no_repeats(tmp_path: Path) -> None:
    runs = [record(tmp_path, name, {"loss": float}, 3) for name in ("a", "b")]
    assert [v.runs for v in compare(runs).variants] == [(0,), (1,)]


def test_settings_of_the_recording_are_no_configuration(tmp_path: Path) -> None:
    """Runs of which nothing else is known may have been trained in any way."""
    config = {"application_name": "x", "strict": False, "global_batch_size": 8}
    runs = [record(tmp_path, name, {"loss": float}, 3, config=config) for name in ("a", "b")]
    found = compare(runs)
    assert [v.runs for v in found.variants] == [(0,), (1,)]
    assert found.summary[-1].startswith("No configuration was recorded: give one")
    known = record(tmp_path, "c", {"loss": float}, 3, config={**config, "lr": 1})
    summary = compare([known, runs[1]]).summary
    assert any(text.startswith("No configuration was recorded for b:") for text in summary)


def test_settings_that_were_only_derived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the command line counts, but for a seed, and nothing is said about what was not recorded."""
    runs = []
    for name, arguments in (
        ("a", ["--lr", "0.1", "--seed", "1"]),
        ("b", ["--lr", "0.1", "--seed=2"]),
        ("c", ["--lr", "0.2", "--seed=2"]),
    ):
        monkeypatch.setattr("sys.argv", ["train.py", *arguments])
        config = {"optimizer": {"lr": 0.1}, "batch_size": 8}
        runs.append(record(tmp_path, name, {"loss": lambda s: 1 / (s + 1)}, 3, config=config))
    assert [v.runs for v in compare(runs).variants] == [(0, 1), (2,)]
    noisy = [
        record(tmp_path, f"n{i}", {"loss": lambda s, i=i: i + 0.5**s}, 3, config=config)
        for i in (1, 2)
    ]
    assert compare(noisy).summary[0].startswith("No recorded setting differs: loss is 1.75 ± ")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("commands", "alike"),
    [
        (("train.py", "train.py --fixed"), False),
        (("train.py", "train2.py"), False),
        (("train.py --seed 1 --gpu 0", "train.py --seed 2 --gpu=1"), True),
        (("train.py 1", "train.py 2"), True),
        (("ipykernel_launcher.py -f a.json", "ipykernel_launcher.py -f b.json"), True),
    ],
)
def test_scripts_and_arguments_that_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: tuple[str, str], alike: bool
) -> None:
    """Such runs are not repeats, even with the same configuration: which was better, and what differs."""
    runs = []
    for number, command in enumerate(commands, 1):
        monkeypatch.setattr("sys.argv", command.split())
        curves = {
            "loss": lambda s, n=number: 2 - n + 1 / (1 + s),
            "learning_rate/group_0": lambda s, n=number: 0.1 * n,
        }
        config = {"epochs": 3, "seed": number}
        runs.append(record(tmp_path, f"run-{number}", curves, 30, config=config))
    summary = compare(runs).summary
    is_repeat = summary[0].startswith("Repeats of one configuration")
    assert is_repeat == alike
    rates = "The learning rates differ at step 29: run-1 0.1, run-2 0.2."
    assert rates in summary
    if not alike:
        assert summary[0].startswith("run-2 is better at loss: ")


@pytest.mark.parametrize("count", [2, 5, 10])
def test_two_to_ten_runs_fit_80_columns(tmp_path: Path, count: int) -> None:
    ends = {round(0.1 * i, 1): [0.3 + 0.01 * i] for i in range(1, count + 1)}
    runs = runs_of(tmp_path, ends)
    long = "a-name-that-goes-on-and-on-for-much-longer-than-any-column"
    runs += [record(tmp_path / "runs", f"{long}-{i}", {"val/loss": float}, 5) for i in "xy"]
    paths = [str(run.path) for run in runs[-count:]]
    shown = in_terminal("compare", *paths, cwd=tmp_path, columns=80)
    assert shown.code == 0, shown.text
    assert max(map(len, shown.lines)) <= 80
    assert "an-any-column-x" in shown.text
