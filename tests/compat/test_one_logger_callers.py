"""Programs of the kind that the users of nv-one-logger wrote, in our own words; only the imports are ours."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import stepwell
from tests.harness import TRAINERS, run_script

pytestmark = pytest.mark.torch

FIT = """
import os, sys, warnings
warnings.filterwarnings("ignore")
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

class Line(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.layer(batch[0]).square().mean()

    def validation_step(self, batch, index):
        self.layer(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

data = torch.utils.data.TensorDataset(torch.randn(24, 4))
loader = torch.utils.data.DataLoader(data, batch_size=4)
quiet = dict(
    max_epochs=2, logger=False, enable_progress_bar=False, enable_model_summary=False,
    num_sanity_val_steps=0, accelerator="cpu", devices=1, default_root_dir=os.getcwd(),
)
"""

RAW_RECORDER = """
# A callback that keeps its own spans on the raw recorder, loaded only when it is switched on.
import importlib

PREFIX = "stepwell.compat.one_logger."


class Tracing(Callback):
    def __init__(self):
        load = lambda name: importlib.import_module(PREFIX + name)
        config = load("api.config")
        self.Attributes = load("core.attributes").Attributes
        self.Event = load("core.event").Event
        self.callbacks = load("training_telemetry.api.callbacks")
        providers = load("training_telemetry.api.training_telemetry_provider")
        self.provider = providers.TrainingTelemetryProvider.instance()
        about = dict(
            application_name="speech", session_tag_or_fn="night", enable_for_current_rank=True,
            world_size_or_fn=1,
            error_handling_strategy=(
                config.OneLoggerErrorHandlingStrategy.DISABLE_QUIETLY_AND_REPORT_METRIC_ERROR
            ),
        )
        self.provider.with_base_config(config.OneLoggerConfig(**about))
        self.provider.with_export_config()
        self.provider.configure_provider()
        self.application = self.callbacks.on_app_start()
        self.open = []

    def begin(self, name, **about):
        attributes = self.Attributes(about) if about else None
        span = self.provider.recorder.start(name, span_attributes=attributes)
        if span is not None:
            self.open.append((name, span))

    def current(self, name):
        return next((span for known, span in reversed(self.open) if known == name), None)

    def finish(self, name):
        for index in reversed(range(len(self.open))):
            if self.open[index][0] == name:
                self.provider.recorder.stop(self.open.pop(index)[1])
                return

    def on_train_start(self, trainer, module):
        self.begin("speech.training")

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        if trainer.global_step % 4 == 0:
            about = {"scope": "rank", "global_step": trainer.global_step, "frames_per_second": 12.5}
            event = self.Event.create("speech.throughput", self.Attributes(about))
            self.provider.recorder.event(self.current("speech.training"), event)

    def on_validation_start(self, trainer, module):
        self.begin("speech.validation")

    def on_validation_end(self, trainer, module):
        self.finish("speech.validation")

    def on_save_checkpoint(self, trainer, module, checkpoint):
        self.begin("speech.checkpoint_save", global_step=trainer.global_step, asynchronous=False)
        event = self.Event.create("speech.saved", self.Attributes({"global_step": trainer.global_step}))
        self.provider.recorder.event(self.current("speech.checkpoint_save"), event)
        self.finish("speech.checkpoint_save")

    def on_train_end(self, trainer, module):
        self.finish("speech.training")

    def close(self):
        while self.open:
            self.provider.recorder.stop(self.open.pop()[1])
        self.callbacks.on_app_end()


tracing = Tracing()
trainer = Trainer(callbacks=[tracing, ModelCheckpoint(every_n_epochs=1)], **quiet)
trainer.fit(Line(), loader, loader)
tracing.close()
"""

SINGLETON = """
# One callback for the whole program, made from the ready-made one; training is configured by the trainer.
from stepwell.compat.one_logger.api.config import OneLoggerConfig
from stepwell.compat.one_logger.training_telemetry.api.callbacks import on_app_start
from stepwell.compat.one_logger.training_telemetry.api.config import TrainingTelemetryConfig
from stepwell.compat.one_logger.training_telemetry.api.training_telemetry_provider import (
    TrainingTelemetryProvider,
)
from stepwell.compat.one_logger.training_telemetry.integration.pytorch_lightning import (
    TimeEventCallback,
)


class Base(Callback):
    pass


class OneForAll(TimeEventCallback, Base):
    made = None

    def __new__(cls, *args, **kwargs):
        if cls.made is None:
            cls.made = super().__new__(cls)
        return cls.made

    def __init__(self):
        if getattr(self, "is_ready", False):
            return
        config = OneLoggerConfig(**{
            "application_name": "nemo", "session_tag_or_fn": "run", "world_size_or_fn": 1,
            "enable_for_current_rank": int(os.environ.get("RANK", 0)) == 0,
        })
        TrainingTelemetryProvider.instance().with_base_config(config).with_export_config(
        ).configure_provider()
        super().__init__(TrainingTelemetryProvider.instance(), call_on_app_start=False)
        on_app_start()
        self.is_ready = True

    def configure(self, trainer, batch_size):
        provider = TrainingTelemetryProvider.instance()
        if provider.config.telemetry_config is not None:
            return
        saves = any(isinstance(one, ModelCheckpoint) for one in trainer.callbacks)
        provider.set_training_telemetry_config(TrainingTelemetryConfig(
            perf_tag_or_fn=f"run_bf{batch_size}",
            global_batch_size_or_fn=batch_size,
            micro_batch_size_or_fn=batch_size,
            seq_length_or_fn=1,
            train_iterations_target_or_fn=trainer.max_steps,
            train_samples_target_or_fn=trainer.max_steps * batch_size,
            log_every_n_train_iterations=trainer.log_every_n_steps,
            is_validation_iterations_enabled_or_fn=trainer.val_check_interval > 0,
            is_save_checkpoint_enabled_or_fn=saves,
            save_checkpoint_strategy="sync",
        ))


callback = OneForAll()
assert OneForAll() is callback
trainer = Trainer(callbacks=[callback, ModelCheckpoint(every_n_epochs=1)], log_every_n_steps=5, **quiet)
assert trainer.max_steps == -1
callback.configure(trainer, 4)
callback.configure(trainer, 8)
callback.on_model_init_start()
model = Line()
callback.on_model_init_end()
callback.on_save_checkpoint_start(global_step=99)
callback.on_save_checkpoint_success(global_step=99)
callback.on_save_checkpoint_end(global_step=99)
trainer.fit(model, loader, loader)
callback.on_app_end()
"""

BY_KEYWORD = """
from stepwell.compat.one_logger import (
    OneLoggerConfig, OneLoggerPTLTrainer, TimeEventCallback, TrainingTelemetryConfig,
    TrainingTelemetryProvider, hook_trainer_cls,
)

provider = TrainingTelemetryProvider.instance()
provider.with_base_config(OneLoggerConfig(
    application_name="trainers", session_tag_or_fn="s", world_size_or_fn=1,
    telemetry_config=TrainingTelemetryConfig(perf_tag_or_fn="p", global_batch_size_or_fn=4),
))
provider.configure_provider()
trainer = OneLoggerPTLTrainer(
    trainer_config=dict(quiet, max_epochs=1), training_telemetry_provider=provider
)
trainer.fit(Line(), loader)
trainer.save_checkpoint("last.ckpt")
Hooked, callback = hook_trainer_cls(Trainer, training_telemetry_provider=provider)
assert isinstance(callback, TimeEventCallback)
hooked = Hooked(**dict(quiet, max_epochs=1))
assert hooked.nv_one_logger_callback is callback
hooked.fit(Line(), loader)
again = TimeEventCallback(training_telemetry_provider=provider, call_on_app_start=False)
callback.on_app_end()
"""


def _record(tmp_path: Path, program: str) -> tuple[Any, Counter[tuple[str, str | None]]]:
    """The run of a program that succeeded without a word, and its spans by name and parent's name."""
    done = run_script(FIT + program, cwd=tmp_path, modules=TRAINERS)
    assert done.returncode == 0, done.stderr
    assert "Training is not affected" not in done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    opened = stepwell.open_run(folder)
    spans = opened.spans().collect()
    names = dict(spans.select("id", "name").iter_rows())
    pairs = spans.select("name", "parent").iter_rows()
    return opened, Counter((name, names.get(parent)) for name, parent in pairs)


@pytest.mark.full
def test_a_callback_over_the_raw_recorder(tmp_path: Path) -> None:
    """Own spans nest as they were started and ended, with their attributes and events."""
    run, edges = _record(tmp_path, RAW_RECORDER)
    assert edges == {
        ("application", None): 1,
        ("speech.training", "application"): 1,
        ("speech.validation", "speech.training"): 2,
        ("speech.checkpoint_save", "speech.training"): 2,
    }
    events = run.events().collect()
    steps = [
        json.loads(text)["global_step"]
        for name, text in events.select("name", "attributes").iter_rows()
        if name == "speech.throughput"
    ]
    assert steps == [4, 8, 12]
    assert events["name"].to_list().count("speech.saved") == 2


def test_one_callback_for_a_whole_program(tmp_path: Path) -> None:
    """Configured in two steps with targets that are not known, it records the fit by itself."""
    run, edges = _record(tmp_path, SINGLETON)
    assert edges["training_single_iteration", "training_loop"] == 12
    assert edges["validation_loop", "training_loop"] == 2
    assert edges["model_initialization", "application"] == 1
    # One that the program reported itself, and one in each epoch.
    assert sum(n for (name, _), n in edges.items() if name == "checkpoint_save_sync") == 3
    events = run.events().collect()
    about = {
        name: json.loads(text)
        for name, text in events.select("name", "attributes").iter_rows()
        if name.startswith(("update_training", "training_metrics"))
    }
    assert "train_iterations_target" not in about["update_training_telemetry_config"]
    assert about["training_metrics_update"]["num_train_samples"] == 48


def test_trainers_by_keyword(tmp_path: Path) -> None:
    """The names of the original's arguments work, and one application has both fits."""
    _, edges = _record(tmp_path, BY_KEYWORD)
    assert edges["application", None] == 1
    assert edges["training_loop", "application"] == 2
    assert edges["training_single_iteration", "training_loop"] == 12
