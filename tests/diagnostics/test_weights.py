"""How far the weights moved, against differences in float64, and the file they are kept in."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

from stepwell._core.errors import StepwellError
from stepwell.diagnostics.groups import grouped
from stepwell.diagnostics.norms import fetch
from stepwell.diagnostics.weights import WeightBaseline
from tests.diagnostics.models import KINDS, Block, loss_of, made, mlp, norm64
from tests.harness import run_script

pytestmark = pytest.mark.torch
EXACT = ["disk", "memory"]
FILE = "last_checkpoint.pt"


def copy_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: one.detach().clone() for name, one in model.named_parameters()}


def moved(model: nn.Module, before: dict[str, torch.Tensor], start: str = "") -> float:
    """The change in float64."""
    return norm64(
        one.detach().to_dense().double() - before[name].double()
        for name, one in model.named_parameters()
        if name.startswith(start)
    )


def step(model: nn.Module, kind: object) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loss_of(model, kind).backward()
    optimizer.step()
    optimizer.zero_grad()


def nudge(model: nn.Module) -> None:
    with torch.no_grad():
        for one in model.parameters():
            one.add_(0.01)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", EXACT)
def test_every_kind_of_model(kind: object, mode: str, tmp_path: Path) -> None:
    """The first time the change is not known, which is not zero."""
    model = made(kind)
    baseline = WeightBaseline(tmp_path / FILE, mode, "run/0")
    groups = grouped(model, None, {"first": r"^(0|embed)\."})
    assert baseline.delta(groups) is None
    for _ in range(3):
        before = copy_of(model)
        step(model, kind)
        found = fetch(baseline.delta(groups) or {})
        assert found["overall"] == pytest.approx(moved(model, before), rel=1e-5)
        first = "embed." if kind in KINDS[3:] else "0."
        assert found["first"] == pytest.approx(moved(model, before, first), rel=1e-5)
    assert fetch(baseline.delta(groups) or {}) == {"overall": 0.0, "first": 0.0}


@pytest.mark.parametrize("mode", EXACT)
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.int8]
)
def test_other_precisions(mode: str, dtype: torch.dtype, tmp_path: Path) -> None:
    values = torch.randn(70_001) * 50
    model = nn.Module()
    model.weight = nn.Parameter(values.to(dtype), requires_grad=False)
    baseline = WeightBaseline(tmp_path / FILE, mode)
    baseline.delta(grouped(model))
    before = model.weight.detach().clone()
    model.weight.add_(2)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    expected = norm64([model.weight.to(wide) - before.to(wide)])
    assert fetch(baseline.delta(grouped(model)) or {})["overall"] == pytest.approx(
        expected, rel=1e-6
    )


@pytest.mark.parametrize("mode", EXACT)
def test_layouts_of_memory(mode: str, tmp_path: Path) -> None:
    """Transposed, with gaps, a single number, none at all: the file has them as they are."""
    model = nn.Module()
    model.turned = nn.Parameter(torch.randn(30, 50).t())
    model.gaps = nn.Parameter(torch.randn(40, 9)[:, ::2])
    model.number = nn.Parameter(torch.tensor(2.0))
    model.nothing = nn.Parameter(torch.zeros(0, 4))
    model.last = nn.Parameter(torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last))
    baseline = WeightBaseline(tmp_path / FILE, mode)
    baseline.delta(grouped(model))
    before = copy_of(model)
    nudge(model)
    with torch.no_grad():
        model.turned[0] += 3
    assert fetch(baseline.delta(grouped(model)) or {})["overall"] == pytest.approx(
        moved(model, before), rel=1e-6
    )
    if mode == "disk":
        kept = torch.load(tmp_path / FILE, weights_only=True)
        assert all(torch.equal(kept[name], one) for name, one in model.named_parameters())


def test_the_file_is_a_checkpoint_like_any_other(tmp_path: Path) -> None:
    """Named tensors, which a model loads, also when torch maps the file."""
    model = made(Block)
    baseline = WeightBaseline(tmp_path / "deep" / FILE, "disk", "run/0")
    for _ in range(3):
        baseline.delta(grouped(model))
        for mapped in (False, True):
            kept = torch.load(tmp_path / "deep" / FILE, weights_only=True, mmap=mapped)
            assert list(kept) == [name for name, _ in model.named_parameters()]
            assert all(torch.equal(kept[name], one) for name, one in model.named_parameters())
            assert not any(one.requires_grad for one in kept.values())
        nudge(model)
    other = made(Block)
    missing, unexpected = other.load_state_dict(kept, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    assert os.listdir(tmp_path / "deep") == [FILE]


def test_nothing_is_written_before_the_first_call(tmp_path: Path) -> None:
    WeightBaseline(tmp_path / "new" / FILE, "disk", "run/0")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("mode", [*EXACT, "sample"])
def test_weights_and_random_numbers_are_left_as_they_are(mode: str, tmp_path: Path) -> None:
    model = made(Block)
    before, state = copy_of(model), torch.random.get_rng_state()
    baseline = WeightBaseline(tmp_path / FILE, mode)
    for _ in range(2):
        baseline.delta(grouped(model))
    assert all(torch.equal(before[name], one) for name, one in model.named_parameters())
    assert torch.equal(state, torch.random.get_rng_state())


# A file that is not this run's


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "not used" in record.getMessage()]


def spoilt(path: Path, how: str) -> None:
    whole = path.read_bytes()
    match how:
        case "truncated":
            path.write_bytes(whole[: len(whole) // 2])
        case "cut in place":
            os.truncate(path, len(whole) - 100)
        case "empty":
            path.write_bytes(b"")
        case "noise":
            path.write_bytes(os.urandom(5000))
        case "a plain state_dict":
            torch.save(made(mlp).state_dict(), path)
        case "something else":
            torch.save([1, 2], path)
        case "gone":
            path.unlink()


DAMAGE = ["truncated", "cut in place", "empty", "noise", "a plain state_dict", "something else"]


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("when", ["at the start", "in between"])
def test_a_file_that_is_not_ours_is_never_used(
    how: str, when: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The change is unknown once more, with one warning, and known again after that."""
    model = made(mlp)
    baseline = WeightBaseline(tmp_path / FILE, "disk", "run/0")
    baseline.delta(grouped(model))
    nudge(model)
    if when == "at the start":
        baseline = WeightBaseline(tmp_path / FILE, "disk", "run/0")
    with caplog.at_level(logging.INFO, "stepwell"):
        spoilt(tmp_path / FILE, how)
        assert baseline.delta(grouped(model)) is None
        before = copy_of(model)
        nudge(model)
        found = fetch(baseline.delta(grouped(model)) or {})
        assert found["overall"] == pytest.approx(moved(model, before), rel=1e-6)
        spoilt(tmp_path / FILE, how)
        assert baseline.delta(grouped(model)) is None
    assert len(warnings_of(caplog)) == 1


def test_a_file_that_is_gone_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = made(mlp)
    baseline = WeightBaseline(tmp_path / FILE, "disk", "run/0")
    baseline.delta(grouped(model))
    spoilt(tmp_path / FILE, "gone")
    with caplog.at_level(logging.INFO, "stepwell"):
        assert baseline.delta(grouped(model)) is None
    assert len(warnings_of(caplog)) == 1


@pytest.mark.parametrize("identity", ["run/1", "other/0", ""])
def test_another_run_or_attempt_begins_anew(
    identity: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is said at the start, where every resumed run finds such a file; later it is."""
    model = made(mlp)
    WeightBaseline(tmp_path / FILE, "disk", "run/0").delta(grouped(model))
    nudge(model)
    with caplog.at_level(logging.INFO, "stepwell"):
        baseline = WeightBaseline(tmp_path / FILE, "disk", identity)
        assert baseline.delta(grouped(model)) is None
        assert not warnings_of(caplog)
        WeightBaseline(tmp_path / FILE, "disk", "a third").delta(grouped(model))
        assert baseline.delta(grouped(model)) is None
    assert "another run or attempt" in warnings_of(caplog)[0]


def test_the_same_run_and_attempt_goes_on(tmp_path: Path) -> None:
    model = made(mlp)
    WeightBaseline(tmp_path / FILE, "disk", "run/0").delta(grouped(model))
    for _ in range(2):
        before = copy_of(model)
        nudge(model)
        found = WeightBaseline(tmp_path / FILE, "disk", "run/0").delta(grouped(model))
        assert fetch(found or {})["overall"] == pytest.approx(moved(model, before), rel=1e-6)


@pytest.mark.parametrize("mode", [*EXACT, "sample"])
def test_a_model_that_became_another_begins_anew(mode: str, tmp_path: Path) -> None:
    model = made(mlp)
    baseline = WeightBaseline(tmp_path / FILE, mode)
    baseline.delta(grouped(model))
    model[2] = nn.Linear(32, 7)
    assert baseline.delta(grouped(model)) is None
    before = copy_of(model)
    nudge(model)
    assert fetch(baseline.delta(grouped(model)) or {})["overall"] == pytest.approx(
        moved(model, before), rel=1e-6
    )


# Failing


def test_a_write_that_fails_is_raised_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old file would make the next change that of two intervals."""
    model = made(mlp)
    baseline = WeightBaseline(tmp_path / FILE, "disk", "run/0")
    baseline.delta(grouped(model))
    nudge(model)
    with monkeypatch.context() as patched:

        def full(*_: object) -> int:
            raise OSError(28, "No space left on device")

        patched.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space"):
            baseline.delta(grouped(model))
    assert os.listdir(tmp_path) == []
    assert baseline.delta(grouped(model)) is None
    nudge(model)
    assert baseline.delta(grouped(model)) is not None


def test_a_process_that_is_killed_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    program = """
        import os, signal, sys, torch
        from pathlib import Path
        from stepwell.diagnostics.groups import grouped
        from stepwell.diagnostics.weights import WeightBaseline
        model = torch.nn.Linear(500, 500)
        torch.nn.init.ones_(model.weight)
        baseline = WeightBaseline(Path(sys.argv[1]), "disk", "run/0")
        baseline.delta(grouped(model))
        torch.nn.init.zeros_(model.weight)
        write, calls = os.pwrite, []
        def dying(*args):
            calls.append(args)
            if len(calls) == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            return write(*args)
        os.pwrite = dying
        baseline.delta(grouped(model))
    """
    path = tmp_path / FILE
    done = run_script(textwrap.dedent(program), path)
    assert done.returncode == -9
    assert torch.load(path, weights_only=True)["weight"].eq(1).all()
    (left,) = [name for name in os.listdir(tmp_path) if name != FILE]
    os.utime(tmp_path / left, (1, 1))
    WeightBaseline(path, "disk", "run/1").delta(grouped(made(mlp)))
    assert os.listdir(tmp_path) == [FILE]


def test_a_wrong_mode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StepwellError, match="needs a path"):
        WeightBaseline(None, "disk")
    with pytest.raises(StepwellError, match=r"mode must be .*, got 'dsk'"):
        WeightBaseline(tmp_path / FILE, "dsk")


# A sample


def test_a_sample_is_close(tmp_path: Path) -> None:
    """Within a few standard deviations of what its documentation says, and exact for small tensors."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1010, 2000), nn.Linear(100, 100))
    baseline = WeightBaseline(None, "sample")
    groups = grouped(model, None, {"large": "^0.weight", "small": "^1"})
    assert baseline.delta(groups) is None
    before = copy_of(model)
    with torch.no_grad():
        for one in model.parameters():
            one.add_(torch.randn_like(one) * 1e-3)
    found = fetch(baseline.delta(groups) or {})
    sampled = 2_020_000 / 103
    assert found["large"] == pytest.approx(
        moved(model, before, "0.weight"), rel=4 / (2 * sampled) ** 0.5
    )
    assert found["small"] == pytest.approx(moved(model, before, "1"), rel=1e-5)


def test_a_sample_meets_every_column() -> None:
    """A change of one column in a hundred and one is neither missed nor all that is seen."""
    model = nn.Linear(101 * 5, 3000, bias=False)
    nn.init.zeros_(model.weight)
    baseline = WeightBaseline(None, "sample")
    baseline.delta(grouped(model))
    with torch.no_grad():
        model.weight[:, ::101] = 1.0
    found = fetch(baseline.delta(grouped(model)) or {})["overall"]
    assert found == pytest.approx(norm64([model.weight]), rel=0.1)


# Memory


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_disk_takes_no_memory_even_when_one_layer_is_most_of_the_model(tmp_path: Path) -> None:
    """At most a tenth of the model in anonymous memory, at the peak, over several calls."""
    program = """
        import sys, threading, time, torch
        from pathlib import Path
        from stepwell.diagnostics.groups import grouped
        from stepwell.diagnostics.weights import WeightBaseline
        model = torch.nn.Sequential(torch.nn.Linear(5000, 5000), torch.nn.Linear(2500, 2500))
        size = sum(one.numel() * 4 for one in model.parameters())
        groups = grouped(model)
        small = torch.nn.Linear(5, 5)
        WeightBaseline(Path(sys.argv[1] + ".small"), "disk").delta(grouped(small))
        def anonymous():
            with open("/proc/self/status") as file:
                return next(int(l.split()[1]) * 1024 for l in file if l.startswith("RssAnon"))
        peak, over, start = 0, False, anonymous()
        def watch():
            global peak
            while not over:
                peak = max(peak, anonymous())
                time.sleep(0.001)
        watcher = threading.Thread(target=watch)
        watcher.start()
        baseline = WeightBaseline(Path(sys.argv[1]), "disk", "run/0")
        for _ in range(3):
            baseline.delta(groups)
        WeightBaseline(Path(sys.argv[1]), "disk", "run/0").delta(groups)
        over = True
        watcher.join()
        print((peak - start) / size)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / FILE)],
        timeout=300,
        check=True,
        capture_output=True,
        text=True,
    )
    assert float(done.stdout) < 0.1
