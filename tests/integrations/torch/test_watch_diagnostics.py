"""Diagnostics under ``watch``: every step at the start, the norm before clipping, schedulers, replicas."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn.utils import clip_grad_norm_  # noqa: E402

import stepwell  # noqa: E402
from stepwell.analysis.findings import findings  # noqa: E402
from stepwell.diagnostics.early_steps import EarlySteps  # noqa: E402
from stepwell.integrations.torch.diagnostics import Diagnostics, light_config  # noqa: E402
from stepwell.reading import RecordedRun  # noqa: E402
from tests.harness import recording_environment, run_ranks  # noqa: E402
from tests.integrations.torch.watched import curve, read  # noqa: E402
from tests.processes.programs import only_run, write_program  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("watching")]


def train(
    steps: int,
    *,
    lr: float = 0.1,
    trained: Any = None,
    before_step: Callable[[Any], None] = lambda model: None,
    after_step: Callable[[], None] = lambda: None,
    scheduler: Callable[[Any], Any] = lambda optimizer: None,
    zero: bool = True,
) -> RecordedRun:
    """Train a classifier of four classes that can be learnt."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    updated = model if trained is None else trained
    optimizer = torch.optim.SGD(updated.parameters(), lr=lr)
    attached = scheduler(optimizer)
    x = torch.randn(16 * steps, 8)
    y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
    data = torch.utils.data.TensorDataset(x, y)
    loader = torch.utils.data.DataLoader(data, batch_size=16)
    with stepwell.watch(model, optimizer, loader) as watch:
        for inputs, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            if zero:
                optimizer.zero_grad()
            loss.backward()
            before_step(model)
            optimizer.step()
            after_step()
        run = watch.run
    del attached
    return read(run)[0]


def rules(run: RecordedRun) -> list[str]:
    """The rules about learning that find something; times are those of a busy machine."""
    return [f.rule for f in findings(run) if not f.cost_ns and f.rule != "busy-machine"]


def test_the_first_steps_are_recorded_one_by_one() -> None:
    """Learning rate and gradient norm of 200 steps, then as configured; the norm is torch's own."""
    norms: list[float] = []

    def measure(model: Any) -> None:
        flat = torch.cat([p.grad.flatten() for p in model.parameters()])
        norms.append(float(flat.double().norm()))

    run = train(250, before_step=measure)
    assert [step for step, _ in curve(run, "learning_rate/group_0")] == list(range(201))
    recorded = curve(run, "gradient_norm/overall")
    assert [step for step, _ in recorded] == list(range(201))
    for step, norm in recorded:
        assert norm == pytest.approx(norms[step], rel=1e-5)
    assert curve(run, "gradient_norm_before_clipping") == []
    assert rules(run) == []


def test_the_norm_before_clipping() -> None:
    """Also where ``clip_grad_norm_`` was imported before; that of another model is not taken for it."""
    returned: list[float] = []
    other = torch.nn.Linear(2, 2)

    def clip(model: Any) -> None:
        returned.append(float(clip_grad_norm_(model.parameters(), 0.05)))

    run = train(30, before_step=clip)
    # The patch is in place from the first step's end on.
    assert curve(run, "gradient_norm_before_clipping") == list(enumerate(returned))[1:]
    after = [norm for _, norm in curve(run, "gradient_norm/overall")]
    assert after == pytest.approx([min(norm, 0.05) for norm in returned], rel=1e-4)

    def clip_other(model: Any) -> None:
        other(torch.ones(1, 2)).sum().backward()
        clip_grad_norm_(other.parameters(), 0.05)

    assert curve(train(12, before_step=clip_other), "gradient_norm_before_clipping") == []


def test_gradients_that_are_dropped_right_after_the_step(tmp_path: Path) -> None:
    """A trainer asks when they are gone: they are taken when the step begins, and none is kept in memory."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    diagnostics = Diagnostics(light_config())
    clipped: list[float] = []
    with stepwell.init("trainer", dir=tmp_path) as run:
        for step in range(20):
            run.set_step(step)
            model(torch.ones(2, 4)).square().sum().backward()
            clipped.append(float(clip_grad_norm_(model.parameters(), 0.5)))
            gradient = weakref.ref(model.weight.grad)
            optimizer.step()
            optimizer.zero_grad()
            diagnostics.look(model, optimizer, step, None)
            assert gradient() is None
        assert len(optimizer._optimizer_step_pre_hooks) == 1
        diagnostics.close()
        assert not optimizer._optimizer_step_pre_hooks
    found = stepwell.open_run(run.path)
    # At the second step it turns out that they are gone by then.
    norms = curve(found, "gradient_norm/overall")
    assert [step for step, _ in norms][-18:] == list(range(2, 20))
    before = curve(found, "gradient_norm_before_clipping")
    assert before[-18:] == list(enumerate(clipped))[2:]


def test_a_large_model_keeps_to_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an allowance, and with steps that take less than 50 norms, not every step has one."""
    monkeypatch.setattr("stepwell.diagnostics.early_steps.ALLOWANCE_NS", 0)
    monkeypatch.setattr("stepwell.diagnostics.early_steps.SHARE", 1e-9)
    run = train(40)
    assert len(curve(run, "gradient_norm/overall")) < 5
    assert len(curve(run, "learning_rate/group_0")) == 40


def test_a_scheduler_that_is_never_stepped() -> None:
    """It is attached, and the learning rate stays; one that is stepped may well leave it where it is."""
    schedulers = torch.optim.lr_scheduler
    attached = train(40, scheduler=lambda o: schedulers.CosineAnnealingLR(o, 40))
    assert rules(attached) == ["learning-rate"]
    (sentence,) = (f.sentence for f in findings(attached) if f.rule == "learning-rate")
    assert sentence == (
        "The learning rate stays at 0.1 from step 0 to 39, although a scheduler is attached to the "
        "optimizer: scheduler.step() is not called."
    )
    made: list[Any] = []
    stepped = train(
        40,
        scheduler=lambda o: made.append(schedulers.StepLR(o, 1000)),
        after_step=lambda: made[0].step(),
    )
    assert rules(stepped) == []
    assert curve(stepped, "scheduler_steps") == []


def test_an_optimizer_of_another_model(caplog: pytest.LogCaptureFixture) -> None:
    """One clear warning, not a problem inside stepwell, and training continues."""
    with caplog.at_level(logging.WARNING, logger="stepwell"):
        run = train(40, trained=torch.nn.Linear(8, 4))
    assert [record.getMessage() for record in caplog.records] == [
        "the optimizer updates none of the model's parameters, so the model does not learn. Its "
        "gradient norm is not recorded"
    ]
    assert curve(run, "gradient_norm/overall") == []
    assert len(curve(run)) == 40


def test_a_short_resumed_run_has_its_diagnostics(caplog: pytest.LogCaptureFixture) -> None:
    """No step is a multiple of 200, but the first steps are recorded: no message says otherwise."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with stepwell.watch(model, optimizer, [torch.ones(2, 4)] * 3, step=10) as watch:
        for x in watch.loader:
            model(x).sum().backward()
            optimizer.step()
    assert len(curve(read(watch.run)[0], "gradient_norm/overall")) == 3
    assert not [it for it in caplog.records if "collected nothing" in it.getMessage()]


def test_norms_of_gradients_of_several_types() -> None:
    """The norm of half-precision gradients is above 65504, the largest number of that type."""
    model = torch.nn.ParameterList(
        [torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(100).half())]
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with stepwell.watch(model, optimizer, diagnostics=1000, step=1) as watch:
        for parameter in model:
            parameter.grad = torch.full_like(parameter, 1e4)
        optimizer.step()
    ((_, norm),) = curve(read(watch.run)[0], "gradient_norm/overall")
    assert norm == pytest.approx(1e4 * 101**0.5, rel=1e-3)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [4, 1 << 15])
def test_a_norm_whose_square_is_too_large(kind: torch.dtype, size: int) -> None:
    """Gradients of 2e24 are finite, and so is their norm, although float32 cannot hold their squares."""
    parameter = torch.nn.Parameter(torch.zeros(size, dtype=kind))
    model = torch.nn.ParameterList([parameter])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    gradient = torch.full_like(parameter, 2e24)
    with stepwell.watch(model, optimizer, diagnostics=1000, step=1) as watch:
        for factor in (1.0, float("inf")):
            parameter.grad = gradient * factor
            optimizer.step()
    norms = [norm for _, norm in curve(read(watch.run)[0], "gradient_norm/overall")]
    assert norms == [pytest.approx(2e24 * size**0.5, rel=1e-2), float("inf")]


def test_norms_on_an_accelerator_are_in_float64() -> None:
    """An overflow could be seen there only by waiting for the device."""
    model = torch.nn.Linear(2, 2, device="meta")
    model.weight.grad = torch.ones_like(model.weight)
    early = EarlySteps(model, torch.optim.SGD(model.parameters(), lr=0.1), light_config())
    early._refresh()
    norm = early._norm()
    assert isinstance(norm, torch.Tensor)
    assert norm.dtype == torch.float64


def test_a_failure_in_the_hook_of_the_first_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook stays while torch goes through the hooks: removing it there would raise into training."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    early = EarlySteps(model, optimizer, light_config())
    early.record(0, None)
    calls = []
    optimizer.register_step_pre_hook(lambda *arguments: calls.append(arguments[0]))
    assert len(optimizer._optimizer_step_pre_hooks) == 2

    def fail() -> None:
        raise ValueError("no norm")

    monkeypatch.setattr(early, "_norm", fail)
    monkeypatch.setattr("stepwell.diagnostics.early_steps.report", lambda where, error: None)
    for _ in range(2):
        optimizer.step()
    early.close()
    assert calls == [optimizer, optimizer]
    assert len(optimizer._optimizer_step_pre_hooks) == 1


def test_real_faults() -> None:
    """A forgotten ``zero_grad``, and a learning rate of 0."""
    assert rules(train(150, lr=0.5, zero=False)) == ["diverged"]
    assert rules(train(60, lr=0.0)) == ["zero-learning-rate"]


REPLICAS = """
os.environ["STEPWELL_DIR"] = str(RUNS)
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(SEED)
model = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.Generator().manual_seed(dist.get_rank())
with stepwell.watch(model, optimizer):
    for _ in range(60):
        x = torch.randn(16, 4, generator=data)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= 2
        optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.full
@pytest.mark.parametrize("seed", ["7", "dist.get_rank()"])
def test_weights_that_differ_between_ranks(tmp_path: Path, seed: str) -> None:
    """Gradients are shared, but with a seed of its own each rank starts from other weights."""
    env = recording_environment(tmp_path / "runs")
    path = write_program(tmp_path, REPLICAS.replace("SEED", seed))
    run_ranks(path, env=env, cwd=tmp_path, check=True)
    found = [f for f in findings(only_run(tmp_path)) if f.rule == "rank-divergence"]
    if seed == "7":
        assert found == []
        return
    (finding,) = found
    assert finding.sentence.startswith(
        "Ranks 0 and 1 differ from step 0 on: the checksum of the weights is "
    )
    assert (finding.ranks, finding.steps[0]) == ((0, 1), 0)
