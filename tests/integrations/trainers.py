"""Short trainings with the Hugging Face Trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

import stepwell
from stepwell.reading import RecordedRun
from tests.nesting.tree import check_tree, edges

SAMPLES = 26
TOKENS = 6


def make_data(samples: int = SAMPLES) -> list[dict[str, torch.Tensor]]:
    """Rows of tokens."""
    rows = torch.randint(0, 16, (samples, TOKENS), generator=torch.Generator().manual_seed(3))
    return [{"input_ids": row, "labels": row} for row in rows]


def make_model() -> GPT2LMHeadModel:
    set_seed(5)
    sizes = {"n_layer": 1, "n_embd": 8, "n_head": 2, "n_positions": TOKENS, "vocab_size": 16}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


def make_arguments(folder: Path, **changes: Any) -> TrainingArguments:
    arguments: dict[str, Any] = {
        "output_dir": str(folder / "out"),
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "num_train_epochs": 2,
        "learning_rate": 0.01,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
    }
    return TrainingArguments(**{**arguments, **changes})


def make_trainer(folder: Path, callbacks: Any, cls: type = Trainer, **changes: Any) -> Trainer:
    others = {
        name: changes.pop(name)
        for name in ("model", "model_init", "eval_dataset", "compute_metrics", "train_dataset")
        if name in changes
    }
    if "model_init" not in others:
        others.setdefault("model", make_model())
    others.setdefault("train_dataset", make_data())
    return cls(args=make_arguments(folder, **changes), callbacks=callbacks, **others)


def finished(path: Path) -> tuple[RecordedRun, pl.DataFrame]:
    """The run in a folder once it is finished, and its spans, which make up a tree."""
    stepwell.finish()
    run = stepwell.open_run(path)
    spans = run.spans().collect()
    check_tree(spans)
    return run, spans


def counts(spans: pl.DataFrame) -> dict[Any, int]:
    """How often each span is inside each other."""
    return edges(spans)


def curve(run: RecordedRun, name: str) -> list[tuple[int, float]]:
    """Steps and values of a metric."""
    rows = run.metrics().collect().filter(pl.col("name") == name).sort("time_ns")
    return list(rows.select("step", "value").rows())


def told(run: RecordedRun, event: str) -> list[dict[str, Any]]:
    """The attributes of these events."""
    events = run.events().collect().sort("time_ns").filter(pl.col("name") == event)
    return [json.loads(text) for text in events["attributes"]]


def attributes_of(spans: pl.DataFrame, name: str) -> list[dict[str, Any]]:
    """The attributes of these spans."""
    rows = spans.filter(pl.col("name") == name).sort("start_ns")
    return [json.loads(text or "{}") for text in rows["attributes"]]


def errors_of(spans: pl.DataFrame) -> list[str]:
    """The names of the spans that failed."""
    return sorted(spans.filter(pl.col("status") != "ok")["name"])
