"""A user's program that records and reads runs. It type-checks, and it runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl
from typing_extensions import assert_type

import stepwell


@dataclass
class Config:
    lr: float = 0.1


@stepwell.span("double")
def double(x: int, *, times: int = 1) -> int:
    return x * 2 * times


@stepwell.span("halve", digits=2)
def halve(x: float) -> float:
    return x / 2


def train(runs: Path, weights: Path) -> None:
    run = stepwell.init(
        "first", dir=runs, config={"lr": 0.1}, tags=("a", "b"), run_id="r1", resume=False
    )
    assert_type(run, stepwell.Run)
    with run.span("epoch"), run.span("forward", layer=3, name_of_model="small"):
        run.log({"loss": 1, "accuracy": 0.5})
        run.log({"loss": 0.25}, step=2)

    @run.span("inner", depth=1)
    def inner(text: str) -> bytes:
        return text.encode()

    assert_type(inner("x"), bytes)
    run.config["lr"] = 0.2
    run.config.update({"depth": 3}, width=8)
    run.tags += ("late",)
    assert_type(run.tags, tuple[str, ...])
    run.summary["best"] = 0.25
    assert_type(run.url, str)
    run.log({"note": stepwell.Text("hello", caption="a word")})
    run.log({"table": stepwell.Table([["a", 1]], columns=["word", "count"])})
    run.event("note", text="hello", count=1)
    run.artifact(weights)
    run.artifact(str(weights), name="again")
    run.artifact(b"bytes", name="blob", kind="weights")
    run.set_step(3, epoch=1)
    run.flush(timeout=10)
    run.finish()


def train_on_the_active_run(runs: Path, weights: Path) -> None:
    with stepwell.init(dir=str(runs), config=Config(), tags=["c"]) as run:
        assert_type(run, stepwell.Run)
        assert_type(stepwell.active_run(), "stepwell.Run | None")
        with stepwell.span("step", index=1):
            assert_type(double(2, times=3), int)
            assert_type(halve(1.0), float)
        stepwell.set_step(0)
        stepwell.log({"loss": 0.5}, step=1)
        stepwell.event("note", text="hello")
        stepwell.artifact(weights)
        stepwell.artifact(b"bytes", name="blob")
        stepwell.flush()
        stepwell.finish()


def read(runs: Path) -> None:
    assert len(list(stepwell.list_runs(runs))) == 2
    [folder] = [path for path in runs.iterdir() if "r1" in path.name]
    run = stepwell.open_run(folder)
    spans = run.spans()
    assert_type(spans, pl.LazyFrame)
    assert_type(spans.collect(), pl.DataFrame)
    assert sorted(run.spans().collect()["name"]) == ["epoch", "forward", "inner"]
    assert_type(run.items(), pl.LazyFrame)
    assert sorted(run.items().collect()["kind"]) == ["table", "text"]
    assert run.config == {"lr": 0.2, "depth": 3, "width": 8}
    assert (run.tags, run.summary["best"]) == (["a", "b", "late"], 0.25)
    assert run.metrics(overwritten=True).collect().height == 3


def wrong() -> None:
    try:
        stepwell.open_run("nowhere")
    except stepwell.StepwellError:
        pass
    double("2")  # type: ignore[arg-type]
    stepwell.init(folder="runs")  # type: ignore[call-arg]
    stepwell.log([1.0])  # type: ignore[arg-type]
    stepwell.span()  # type: ignore[call-arg]


if __name__ == "__main__":
    runs, weights = Path("runs"), Path("weights.bin")
    weights.write_bytes(b"w")
    train(runs, weights)
    train_on_the_active_run(runs, weights)
    read(runs)
