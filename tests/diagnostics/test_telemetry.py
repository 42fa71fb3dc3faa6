"""TrainingTelemetry: when it collects, where it writes, and what it leaves alone."""

from __future__ import annotations

import dis
import json
import logging
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import polars as pl
import pytest

torch = pytest.importorskip("torch")

import stepwell  # noqa: E402
from stepwell._core import errors  # noqa: E402
from stepwell._core.errors import StepwellError  # noqa: E402
from stepwell.diagnostics import TelemetryConfig, TrainingTelemetry  # noqa: E402
from tests.diagnostics.siamese import Siamese, pairs, records, train, two_rates  # noqa: E402
from tests.harness import environment, run_script  # noqa: E402

pytestmark = pytest.mark.torch
nn = torch.nn

EVERYTHING: dict[str, Any] = {
    name: True for name in TelemetryConfig.__annotations__ if name.startswith("track_")
}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPWELL_STRICT", "1")
    errors.counts.clear()


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# When


@pytest.mark.parametrize(("first", "expected"), [(1, [3, 6, 9]), (0, [0, 3, 6, 9])])
def test_it_collects_at_multiples(first: int, expected: list[int]) -> None:
    """Of the batch's index, in each epoch, whether it counts from one or from zero."""
    model = Siamese()
    telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=3))
    for epoch in range(2):
        train(model, two_rates(model), pairs(10, 4), telemetry, epoch, first)
    assert telemetry.metrics_file is not None
    found = [(it["epoch"], it["batch_idx"]) for it in records(telemetry.metrics_file)]
    assert found == [(epoch, idx) for epoch in range(2) for idx in expected]


@pytest.mark.parametrize("every", [1, 2])
def test_it_is_paused_by_its_configuration(tmp_path: Path, every: int) -> None:
    """And resumed; the gradients afterwards are those of the latest step."""
    model = Siamese()
    optimizer = two_rates(model)
    config = TelemetryConfig(collect_every_n=every, output_dir=tmp_path)
    norms = []
    with TrainingTelemetry(config) as telemetry:
        for epoch in range(3):
            config.enabled = epoch != 1
            for batch_idx, batch in enumerate(pairs(4, 4, epoch), 1):
                train(model, optimizer, [batch], telemetry, epoch, batch_idx)
                if config.enabled and batch_idx % every == 0:
                    gradients = [parameter.grad.flatten() for parameter in model.parameters()]
                    norms.append((epoch, batch_idx, torch.cat(gradients).norm().item()))
    found = records(tmp_path / "telemetry.jsonl")
    assert [(it["epoch"], it["batch_idx"]) for it in found] == [it[:2] for it in norms]
    assert [it["gradient_norm"]["overall"] for it in found] == pytest.approx(
        [it[2] for it in norms]
    )


def test_a_batch_that_passes_costs_a_comparison() -> None:
    """No call is made, nothing is stored and nothing stays allocated."""
    code = list(dis.get_instructions(TrainingTelemetry.on_batch_end))
    end = next(i for i, it in enumerate(code) if it.opname.startswith("RETURN"))
    before = [it.opname for it in code[: end + 1]]
    assert not [name for name in before if "CALL" in name or name.startswith("STORE")]
    assert len([name for name in before if name == "COMPARE_OP"]) == 1

    model = Siamese()
    optimizer = two_rates(model)
    telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=100))
    batches = pairs(10, 4)
    train(model, optimizer, batches, telemetry)
    calls = []
    tracemalloc.start()
    sys.setprofile(lambda frame, event, arg: calls.append((event, frame.f_code.co_name)))
    try:
        size = tracemalloc.get_traced_memory()[0]
        for batch_idx in range(11, 91):
            telemetry.on_batch_end(model, optimizer, batch_idx, 0, "cpu", batches[0])
        grown = tracemalloc.get_traced_memory()[0] - size
    finally:
        sys.setprofile(None)
        tracemalloc.stop()
    assert {name for event, name in calls if "c_" not in event} <= {
        "on_batch_end",
        "test_a_batch_that_passes_costs_a_comparison",
    }
    # What the list of calls itself takes.
    assert grown < 40_000


def test_hooks_are_in_place_only_when_needed() -> None:
    """Between collections the optimizer has no hook of ours."""
    model = Siamese()
    optimizer = two_rates(model)
    telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=10))
    hooks = []
    for batch_idx, batch in enumerate(pairs(40, 4), 1):
        train(model, optimizer, [batch], telemetry, first=batch_idx)
        hooks.append(len(optimizer._optimizer_step_pre_hooks))
    # The first two tell how many batches make a step; then one batch ahead of each collection.
    assert [i + 1 for i, count in enumerate(hooks) if count] == [1, 2, 9, 19, 29, 39]
    telemetry.close()
    assert not optimizer._optimizer_step_pre_hooks


@pytest.mark.full
@pytest.mark.parametrize("is_guarded", [False, True])
def test_a_collection_that_does_not_come_costs_little(
    is_guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epoch that ends one batch short of it, and a caller who shows collections only."""
    from stepwell.diagnostics import gradients

    taken = []
    real = gradients._norms
    monkeypatch.setattr(gradients, "_norms", lambda groups: taken.append(1) or real(groups))
    model = Siamese()
    optimizer = two_rates(model)
    with TrainingTelemetry(TelemetryConfig(collect_every_n=50)) as telemetry:
        for epoch in range(10):
            for batch_idx, batch in enumerate(pairs(100 if is_guarded else 99, 2), 1):
                train(model, optimizer, [batch])
                if not is_guarded or batch_idx % 50 == 0:
                    telemetry.on_batch_end(model, optimizer, batch_idx, epoch, "cpu", batch)
    # Ten or twenty collections, 990 or 1000 steps; some at the beginning to learn from.
    assert len(taken) < 200 if is_guarded else len(taken) < 60


# Right numbers


def test_gradients_do_not_depend_on_zero_grad() -> None:
    """They are those of the step, also when they are gone by the time it is asked."""
    model = Siamese()
    optimizer = two_rates(model)
    telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=5))
    expected = {}
    for batch_idx, batch in enumerate(pairs(20, 4), 1):
        loss = nn.functional.cross_entropy(model(batch["img1"], batch["img2"]), batch["winner"])
        loss.backward()
        flat = torch.cat([p.grad.double().flatten() for p in model.parameters()])
        expected[batch_idx] = float(flat.norm())
        optimizer.step()
        optimizer.zero_grad()
        telemetry.on_batch_end(model, optimizer, batch_idx, 0)
    assert telemetry.metrics_file is not None
    for it in records(telemetry.metrics_file):
        assert it["gradient_norm"]["overall"] == pytest.approx(expected[it["batch_idx"]], rel=1e-6)
        assert it["gradient_source"] == "step"


@pytest.mark.parametrize("accumulate", [2, 3, 7])
def test_accumulation(accumulate: int) -> None:
    """The norm is that of the latest real step, wherever the collection falls."""
    model = Siamese()
    optimizer = two_rates(model)
    telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=10))
    latest = 0.0
    expected = {}
    for batch_idx, batch in enumerate(pairs(60, 4), 1):
        nn.functional.cross_entropy(model(batch["img1"], batch["img2"]), batch["winner"]).backward()
        if batch_idx % accumulate == 0:
            flat = torch.cat([p.grad.double().flatten() for p in model.parameters()])
            latest = float(flat.norm())
            optimizer.step()
            optimizer.zero_grad()
        expected[batch_idx] = latest
        telemetry.on_batch_end(model, optimizer, batch_idx, 0)
    assert telemetry.metrics_file is not None
    found = records(telemetry.metrics_file)
    assert len(found) == 6
    for it in found:
        assert it["gradient_norm"]["overall"] == pytest.approx(expected[it["batch_idx"]], rel=1e-6)


def test_the_norm_before_clipping() -> None:
    """The result of clip_grad_norm_ is kept beside the norm that the optimizer used."""
    model = Siamese()
    optimizer = two_rates(model)
    telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=2))
    before = []
    for batch_idx, batch in enumerate(pairs(6, 4), 1):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch["img1"], batch["img2"]), batch["winner"]).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        telemetry.note_clipping(norm)
        before.append(float(norm))
        optimizer.step()
        telemetry.on_batch_end(model, optimizer, batch_idx, 0)
    assert telemetry.metrics_file is not None
    found = records(telemetry.metrics_file)
    assert [it["gradient_norm"]["overall"] for it in found] == pytest.approx([0.01] * 3, rel=1e-3)
    assert [it["gradient_norm_before_clipping"] for it in found] == pytest.approx(before[1::2])


def test_learning_rates_by_name_and_by_group() -> None:
    """Groups of the optimizer by number and name; ours where the optimizer treats them alike."""
    model = Siamese()
    optimizer = torch.optim.Adam(
        [
            {"params": model.head.parameters(), "lr": 0.5, "name": "top"},
            {"params": model.backbone.parameters(), "lr": torch.tensor(0.25)},
        ],
        foreach=False,
        capturable=False,
    )
    optimizer.param_groups[1]["lr"] = 0.25
    telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=1))
    train(model, optimizer, pairs(1, 4), telemetry)
    assert telemetry.metrics_file is not None
    assert records(telemetry.metrics_file)[0]["learning_rates"] == {
        "group_0": 0.5,
        "group_1": 0.25,
        "top": 0.5,
        "backbone": 0.25,
        "head": 0.5,
    }
    one = torch.optim.SGD(model.parameters(), lr=0.1)
    telemetry.on_batch_end(model, one, 2, 0)
    assert records(telemetry.metrics_file)[1]["learning_rates"] == {
        "group_0": 0.1,
        "backbone": 0.1,
        "head": 0.1,
    }


def test_a_group_without_parameters_is_absent() -> None:
    """Missing values are not recorded as 0."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=1))
    for i in (1, 2):
        nn.functional.cross_entropy(model(torch.ones(2, 3)), torch.tensor([0, 1])).backward()
        optimizer.step()
        telemetry.on_batch_end(model, optimizer, i, 0, None, (torch.ones(2, 3), [0, 1]))
    assert telemetry.metrics_file is not None
    for it in records(telemetry.metrics_file):
        assert set(it["gradient_norm"]) == set(it["weight_delta"]) == {"overall"}
        assert set(it["learning_rates"]) == {"group_0"}
        assert "holdout_logits" not in it


def test_numbers_that_are_not_finite(tmp_path: Path) -> None:
    """They are null, and named with what they were; the metric keeps them."""
    model = Siamese()
    optimizer = two_rates(model)
    telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=1, output_dir=tmp_path))
    train(model, optimizer, pairs(1, 4), telemetry)
    for parameter in model.head.parameters():
        parameter.grad = torch.full_like(parameter, torch.inf)
    model.backbone[0].weight.grad[0, 0] = torch.nan
    # Batch 9 was not foreseen, so what is there is looked at.
    telemetry.on_batch_end(model, optimizer, 9, 0)
    it = records(tmp_path / "telemetry.jsonl")[1]
    assert it["gradient_norm"] == {"overall": None, "backbone": None, "head": None}
    assert it["nonfinite"] == {
        "gradient_norm.overall": "nan",
        "gradient_norm.backbone": "nan",
        "gradient_norm.head": "inf",
    }
    assert it["gradient_source"] == "present"


@pytest.mark.parametrize("extra", [{}, EVERYTHING])
def test_training_ends_bit_identical(extra: dict[str, Any]) -> None:
    """With diagnostics or without: the same weights, statistics and random numbers."""

    def trained(telemetry: TrainingTelemetry | None) -> tuple[dict[str, Any], Any, Any]:
        torch.manual_seed(3)
        model = Siamese(dropout=0.3)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        if telemetry is not None:
            telemetry.set_holdout_data(
                torch.utils.data.DataLoader(_Set(), batch_size=8, shuffle=True)
            )
        for epoch in range(2):
            train(model, optimizer, pairs(11, 8, epoch), telemetry, epoch)
        return model.state_dict(), optimizer.state_dict()["state"], torch.rand(4)

    plain, state, drawn = trained(None)
    telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=3, holdout_size=20, **extra))
    with_it, state_with, drawn_with = trained(telemetry)
    assert telemetry.metrics_file is not None
    assert len(records(telemetry.metrics_file)) == 6
    assert torch.equal(drawn, drawn_with)
    for name, tensor in plain.items():
        assert torch.equal(tensor, with_it[name]), name
    for number, own in state.items():
        assert all(torch.equal(value, state_with[number][name]) for name, value in own.items())


class _Set(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> dict[str, Any]:
        # A data set that draws random numbers while it is read.
        return {"img1": torch.rand(6), "img2": torch.rand(6), "winner": i % 2}


# Where


def test_disabled_touches_nothing(tmp_path: Path) -> None:
    """No file, no folder, no run, and not even PyTorch is imported."""
    script = """
import sys
from stepwell import active_run
from stepwell.diagnostics import TelemetryConfig, TrainingTelemetry
telemetry = TrainingTelemetry(TelemetryConfig(enabled=False, output_dir="out"))
telemetry.set_holdout_data(iter(lambda: 1 / 0, None))
for batch_idx in range(500):
    telemetry.on_batch_end(None, None, batch_idx, 0, "cpu", None)
telemetry.note_clipping(1.0)
telemetry.close()
assert active_run() is None
assert "torch" not in sys.modules and "numpy" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_switched_off_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """STEPWELL_MODE=off is as good as enabled=False."""
    monkeypatch.setenv("STEPWELL_MODE", "off")
    model = Siamese()
    telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=1, output_dir=tmp_path / "out"))
    train(model, two_rates(model), pairs(3, 4), telemetry)
    assert list(tmp_path.iterdir()) == []


def test_without_a_run_one_is_started_and_finished(tmp_path: Path) -> None:
    """In ./runs, with the files in its folder."""
    model = Siamese()
    telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=2))
    run = stepwell.active_run()
    assert run is not None
    assert run.path.parent == tmp_path / "runs"
    train(model, two_rates(model), pairs(4, 4), telemetry)
    assert telemetry.output_dir == run.path / "telemetry"
    assert _files(telemetry.output_dir) == ["last_checkpoint.pt", "telemetry.jsonl"]
    telemetry.close()
    assert stepwell.active_run() is None
    assert stepwell.open_run(run.path).status == "finished"


def test_a_run_that_is_there_is_used_and_left_alone(tmp_path: Path) -> None:
    """Its step is the step of the metrics and of the record."""
    run = stepwell.init("mine", dir=tmp_path / "own")
    model = Siamese()
    optimizer = two_rates(model)
    with TrainingTelemetry(TelemetryConfig(collect_every_n=2)) as telemetry:
        for step, batch in enumerate(pairs(4, 4)):
            run.set_step(1000 + step)
            train(model, optimizer, [batch], telemetry, first=step + 1)
        assert telemetry.metrics_file == run.path / "telemetry" / "telemetry.jsonl"
    assert stepwell.active_run() is run
    run.finish()
    assert [it["step"] for it in records(telemetry.metrics_file)] == [1001, 1003]
    table = stepwell.open_run(run.path).metrics().collect()
    norms = table.filter(pl.col("name") == "gradient_norm/overall")
    assert norms["step"].to_list() == [1001, 1003]


def test_another_run_begins() -> None:
    """Files in the run folder continue in the folder of the new run."""
    model = Siamese()
    telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=1))
    first = telemetry.metrics_file
    train(model, two_rates(model), pairs(2, 4), telemetry)
    stepwell.finish()
    second = stepwell.init("second")
    train(model, two_rates(model), pairs(2, 4), telemetry)
    assert first is not None
    assert telemetry.metrics_file == second.path / "telemetry" / "telemetry.jsonl"
    assert len(records(first)) == 2
    later = records(telemetry.metrics_file)
    assert later[0]["weight_delta"]["overall"] is None
    assert later[1]["weight_delta"]["overall"] > 0


def test_steps_where_none_is_set() -> None:
    """Batches are numbered on over epochs: exactly where the length of one is known."""
    for length, expected in [(None, [4, 8, 12, 16]), (10, [4, 8, 14, 18])]:
        model = Siamese()
        telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=4, batches_per_epoch=length))
        for epoch in range(2):
            train(model, two_rates(model), pairs(10, 4), telemetry, epoch)
        assert telemetry.metrics_file is not None
        assert [it["step"] for it in records(telemetry.metrics_file)] == expected
        telemetry.close()


@pytest.mark.parametrize(
    ("first", "every", "expected"),
    [(1, 10, [10, 20, 30]), (0, 10, [0, 1, 2]), (0, 5, [0, 5, 6, 11, 12, 17])],
)
def test_steps_of_epochs_that_begin_anew(first: int, every: int, expected: list[int]) -> None:
    """Also where there is one collection an epoch, at the same index each time."""
    model = Siamese()
    telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=every))
    for epoch in range(3):
        train(model, two_rates(model), pairs(10, 4), telemetry, epoch, first)
    assert telemetry.metrics_file is not None
    assert [it["step"] for it in records(telemetry.metrics_file)] == expected


def test_other_ranks_have_files_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their rank is in the names."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("STEPWELL_RUN_ID", "together")
    model = Siamese()
    telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=1, output_dir=tmp_path / "out"))
    train(model, two_rates(model), pairs(2, 4), telemetry)
    assert _files(tmp_path / "out") == [
        "last_checkpoint.rank-00003.pt",
        "telemetry.rank-00003.jsonl",
    ]


def test_two_models_are_kept_apart() -> None:
    """A generator and its judge, through one object or through two: no weights of one against the other."""
    models = [Siamese(), Siamese()]
    optimizers = [two_rates(model) for model in models]
    one = TrainingTelemetry(TelemetryConfig(collect_every_n=1))
    two = TrainingTelemetry(TelemetryConfig(collect_every_n=1))
    for i, batch in enumerate(pairs(3, 4), 1):
        for model, optimizer in zip(models, optimizers, strict=True):
            train(model, optimizer, [batch], one, first=i)
        train(models[0], optimizers[0], [batch], two, first=i)
    assert one.metrics_file is not None
    found = records(one.metrics_file)
    assert [it.get("model", 0) for it in found] == [0, 1, 0] * 3
    assert all(it["weight_delta"]["overall"] is None for it in found[:3])
    assert all(0 < it["weight_delta"]["overall"] < 1 for it in found[3:])
    assert one.checkpoint_file != two.checkpoint_file


def test_a_restart_compares_with_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Weights that another attempt left in the same folder are not taken for ours; nothing is wrong."""
    for _ in range(2):
        model = Siamese()
        telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=1, output_dir=tmp_path / "o"))
        train(model, two_rates(model), pairs(2, 4), telemetry)
        telemetry.close()
        del telemetry
    deltas = [it["weight_delta"]["overall"] for it in records(tmp_path / "o" / "telemetry.jsonl")]
    assert [delta is None for delta in deltas] == [True, False, True, False]
    assert "is not used" not in caplog.text


def test_killed_in_the_middle(tmp_path: Path) -> None:
    """A kill -9 leaves whole records, and the next process appends to them."""
    script = """
import os, signal, sys
from stepwell.diagnostics import TelemetryConfig, TrainingTelemetry
from tests.diagnostics.siamese import *
model = Siamese()
telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=1, output_dir="out"))
train(model, two_rates(model), pairs(5, 4), telemetry)
os.kill(os.getpid(), signal.SIGKILL)
"""
    for expected in (5, 10):
        done = run_script(script, cwd=tmp_path, env=environment(STEPWELL_STRICT="1"))
        assert done.returncode == -signal.SIGKILL, done.stderr
        file = tmp_path / "out" / "telemetry.jsonl"
        assert len(records(file)) == expected
        with open(file, "a") as torn:
            torn.write('{"batch_idx": 6, "gradient_no')
    with open(file) as lines:
        assert sum(1 for line in lines if line.endswith("\n") and json.loads(line)) == 10


# Never in the way


def test_nothing_collected_says_why(caplog: pytest.LogCaptureFixture) -> None:
    """Once: never called, the epochs are too short, or it was disabled."""
    model = Siamese()
    cases: list[tuple[dict[str, Any], int, str | None]] = [
        ({"collect_every_n": 200}, 12, "collect_every_n=200"),
        ({"collect_every_n": 200}, 0, "never called"),
        ({"enabled": False}, 12, "enabled=False"),
        ({"collect_every_n": 5}, 12, None),
    ]
    for options, batches, said in cases:
        caplog.clear()
        run = stepwell.init("one")
        telemetry = TrainingTelemetry(TelemetryConfig(**options))
        with caplog.at_level(logging.WARNING, logger="stepwell"):
            train(model, two_rates(model), pairs(batches, 4), telemetry)
            run.finish()
            telemetry.close()
        messages = [it.getMessage() for it in caplog.records if "collected nothing" in it.message]
        assert len(messages) == (said is not None)
        assert said is None or said in messages[0]


def test_it_is_said_at_exit_too(tmp_path: Path) -> None:
    """Also when the run is ended by the end of the program."""
    script = "from stepwell.diagnostics import *; TrainingTelemetry(TelemetryConfig())"
    done = run_script(script, cwd=tmp_path, env=environment(STEPWELL_STRICT="1"), check=True)
    assert done.stderr.count("on_batch_end was never called") == 1


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One warning; training continues, and the metrics are there."""
    monkeypatch.delenv("STEPWELL_STRICT")
    (tmp_path / "file").write_text("in the way")
    model = Siamese()
    telemetry = TrainingTelemetry(
        TelemetryConfig(collect_every_n=1, output_dir=tmp_path / "file" / "out")
    )
    run = telemetry.run
    assert run is not None
    train(model, two_rates(model), pairs(5, 4), telemetry)
    assert len([it for it in caplog.records if "telemetry.jsonl" in it.getMessage()]) == 1
    telemetry.close()
    table = stepwell.open_run(run.path).metrics().collect()
    assert table.filter(pl.col("name") == "gradient_norm/overall").height == 5


@pytest.mark.parametrize("batch_idx", [None, "7", [1]])
def test_an_index_that_is_none(
    batch_idx: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is said once, and does not stop training."""
    monkeypatch.delenv("STEPWELL_STRICT")
    telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=1))
    for _ in range(3):
        telemetry.on_batch_end(None, None, batch_idx, 0)
    assert (
        len([it for it in caplog.records if "batch_idx must be a whole number" in it.getMessage()])
        == 1
    )


def test_a_model_that_is_none(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training continues with any argument."""
    monkeypatch.delenv("STEPWELL_STRICT")
    telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=1))
    for i in range(3):
        telemetry.on_batch_end(None, None, i, 0)
        telemetry.on_batch_end(nn.Linear(1, 1), object(), i, 0)
    assert [it for it in caplog.records if "problem inside stepwell" in it.getMessage()]


def test_a_config_that_is_none() -> None:
    """A dict in the place of a configuration is refused, with what to write."""
    wrong: Any = {"enabled": True}
    with pytest.raises(StepwellError, match="from_dict"):
        TrainingTelemetry(wrong)
