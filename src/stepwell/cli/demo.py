"""``stepwell demo``: a small real training run, recorded and reported.

A convolutional network learns to classify circles, squares, crosses and triangles in pictures that two
DataLoader workers draw on the fly. The loop is instrumented the way a user would do it.
"""

from __future__ import annotations

import math
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import stepwell
from stepwell._core.errors import StepwellError
from stepwell.cli.report import show_report
from stepwell.cli.terminal import console

if TYPE_CHECKING:
    import torch

SIZE = 32
SHAPES = ("circle", "square", "cross", "triangle")
BATCH = 64
STEPS_PER_EPOCH = 60
LEARNING_RATE = 2e-3
NOISE = 0.35
CONFIG = {
    "model": "3 convolutions, 23 k parameters",
    "optimizer": "AdamW",
    "learning_rate": LEARNING_RATE,
    "batch_size": BATCH,
    "noise": NOISE,
}


def run_demo(root: Path, seconds: float) -> None:
    """Train for about this many seconds, then print the report and commands to try next."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise StepwellError("The demo needs PyTorch: pip install 'stepwell[torch]'") from None
    out = console()
    out.print("Training a small network on generated pictures. Stop with Ctrl-C.")
    with stepwell.init("demo", dir=root, config=CONFIG, tags=["demo"], quiet=True) as run:
        _train(run, seconds)
    out.print()
    show_report(stepwell.open_run(run.path))
    page = _write_page(run.path)
    if page is not None:
        out.print(f"\n[bold]page[/]  {page}", soft_wrap=True)
    out.print("\n[bold]next[/]")
    for line in _next_commands(run.path):
        out.print(f"  {line}", markup=False, soft_wrap=True)


def _write_page(path: Path) -> Path | None:
    """Write the report as an HTML file beside the run, and return its path; None if the page is not built."""
    from stepwell.dashboard.html import write_html

    try:
        return _shown(write_html(stepwell.open_run(path), path.with_suffix(".html")))
    except StepwellError:
        return None


def _shown(path: Path) -> Path:
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path


def _next_commands(path: Path) -> list[str]:
    path = _shown(path)
    program = _program()
    return [
        f"{program} ui {path.parent}",
        f"{program} show {path}",
        f"{program} export {path} --to chrome",
        f'{program.replace("stepwell", "python")} -c "import stepwell; '
        f"print(stepwell.open_run('{path}').metrics().collect())\"",
    ]


def _program() -> str:
    """Return how to call this program: with its folder if it is not on the PATH."""
    import shutil
    import sys

    program = Path(sys.argv[0])
    if shutil.which("stepwell") or program.name != "stepwell":
        return "stepwell"
    try:
        return str(program.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(program)


def _train(run: stepwell.Run, seconds: float) -> None:
    import torch

    torch.manual_seed(0)
    with run.span("set up"):
        model = _network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
        train_data: Any = _Pictures(BATCH * STEPS_PER_EPOCH, 0)
        test_data: Any = _Pictures(512, 1 << 20)
        train: Any = torch.utils.data.DataLoader(train_data, BATCH, shuffle=True, num_workers=2)
        test: Any = torch.utils.data.DataLoader(test_data, BATCH)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        console=console(),
    )
    with bar, tempfile.TemporaryDirectory() as folder:
        task = bar.add_task("epoch 1", total=seconds)
        began = time.monotonic()
        epoch = step = 0
        while time.monotonic() - began < seconds or epoch == 0:
            train_data.epoch = epoch
            with run.span("epoch"):
                for images, labels in _waiting(run, train):
                    run.set_step(step, epoch)
                    loss = _train_step(run, model, optimizer, images, labels)
                    run.log({"train/loss": loss, "train/lr": optimizer.param_groups[0]["lr"]})
                    step += 1
                    bar.update(
                        task,
                        completed=time.monotonic() - began,
                        description=f"epoch {epoch + 1}  step {step}  loss {loss:.3f}",
                    )
                accuracy, test_loss = _validate(run, model, test)
                run.log({"val/accuracy": accuracy, "val/loss": test_loss})
                _save(run, model, Path(folder) / "model.pt", epoch)
            epoch += 1
        bar.update(task, completed=seconds)
        run.artifact(Path(folder) / "model.pt", epoch=epoch - 1)


def _waiting(run: stepwell.Run, loader: Any) -> Any:
    """Yield batches and record the time spent waiting for each."""
    batches = iter(loader)
    wait = run.span("wait for data")
    while True:
        with wait:
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def _train_step(
    run: stepwell.Run, model: Any, optimizer: Any, images: torch.Tensor, labels: torch.Tensor
) -> float:
    import torch

    with run.span("train step"):
        with run.span("forward"):
            loss: Any = torch.nn.functional.cross_entropy(model(images), labels)
        with run.span("backward"):
            optimizer.zero_grad()
            loss.backward()
        with run.span("optimizer"):
            optimizer.step()
    return float(loss.item())


def _validate(run: stepwell.Run, model: Any, loader: Any) -> tuple[float, float]:
    import torch

    right = count = 0
    total = 0.0
    model.eval()
    with run.span("validate"), torch.no_grad():
        for images, labels in loader:
            scores = model(images)
            total += float(torch.nn.functional.cross_entropy(scores, labels, reduction="sum"))
            right += int((scores.argmax(1) == labels).sum())
            count += len(labels)
    model.train()
    return right / count, total / count


def _save(run: stepwell.Run, model: Any, path: Path, epoch: int) -> None:
    import torch

    with run.span("save checkpoint", epoch=epoch):
        torch.save(model.state_dict(), path)
    run.event("checkpoint saved", epoch=epoch, bytes=path.stat().st_size)


def _network() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, len(SHAPES)),
    )


class _Pictures:
    """A dataset of noisy shapes, drawn on access and different in every epoch."""

    def __init__(self, count: int, seed: int) -> None:
        self.count = count
        self.seed = seed
        self.epoch = 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        import torch

        with stepwell.span("draw"):
            generator = torch.Generator().manual_seed(self.seed + index + self.epoch * self.count)
            label = index % len(SHAPES)
            numbers = torch.rand(4, generator=generator).tolist()
            picture = _draw(SHAPES[label], *numbers)
            noise = torch.randn(SIZE, SIZE, generator=generator)
            return (picture + NOISE * noise)[None], label


def _draw(shape: str, across: float, down: float, turn: float, scale: float) -> torch.Tensor:
    """Return a picture of zeros and ones with a shape of this position, angle and size."""
    import torch

    radius = 5 + 5 * scale
    centre = [radius + (SIZE - 2 * radius) * position for position in (across, down)]
    line = torch.arange(SIZE) + 0.5
    x, y = torch.meshgrid(line - centre[0], line - centre[1], indexing="ij")
    angle = turn * math.pi / 2
    x, y = x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)
    if shape == "circle":
        inside = x**2 + y**2 < (0.8 * radius) ** 2
    elif shape == "square":
        inside = torch.maximum(x.abs(), y.abs()) < 0.7 * radius
    elif shape == "cross":
        inside = (torch.minimum(x.abs(), y.abs()) < 0.22 * radius) & (x**2 + y**2 < radius**2)
    else:
        inside = (y > -0.5 * radius) & (y + 1.732 * x.abs() < radius)
    return inside.float()
