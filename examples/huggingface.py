"""The Hugging Face Trainer with a callback, then an Accelerate loop with a tracker.

Run it with ``python examples/huggingface.py``. It needs ``pip install stepwell[transformers]`` but no
network: a small model is created from a configuration and learns to count.
"""

from __future__ import annotations

import tempfile

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import stepwell
from stepwell.integrations.accelerate import StepwellTracker, prepare
from stepwell.integrations.transformers import StepwellCallback

TOKENS = 16


def make_data(samples: int) -> list[dict[str, torch.Tensor]]:
    """Return rows of consecutive numbers."""
    rows = (torch.arange(samples)[:, None] + torch.arange(8)) % TOKENS
    return [{"input_ids": row, "labels": row} for row in rows]


def make_model() -> GPT2LMHeadModel:
    torch.manual_seed(7)
    sizes = {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 8, "vocab_size": TOKENS}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


def train_with_trainer(folder: str) -> None:
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_train_epochs=3,
        learning_rate=0.01,
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_steps=4,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=make_model(),
        args=arguments,
        train_dataset=make_data(128),
        eval_dataset=make_data(16),
        callbacks=[StepwellCallback()],
    )
    trainer.train()


def train_with_accelerate() -> None:
    accelerator = Accelerator(cpu=True, log_with=StepwellTracker())
    accelerator.init_trackers("counting", config={"lr": 0.01})
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(make_data(128), batch_size=16)
    model, optimizer, loader = prepare(accelerator, model, optimizer, loader)
    for _ in range(3):
        for batch in loader:
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            accelerator.log({"perplexity": loss.exp().item()})
    accelerator.end_training()


if __name__ == "__main__":
    with stepwell.init("counting") as run:
        with tempfile.TemporaryDirectory() as folder:
            train_with_trainer(folder)
        train_with_accelerate()

    recorded = stepwell.open_run(run.path)
    print(f"The run is in {run.path}.")
    spans = recorded.spans().collect()
    for name in ("training_loop", "training_single_iteration", "validation_loop"):
        print(f"{name}: {spans['name'].to_list().count(name)}")
    metrics = recorded.metrics().collect()
    losses = metrics.filter(metrics["name"] == "loss")["value"].to_list()
    print(f"loss: {losses[0]:.2f} → {losses[23]:.2f}, {losses[24]:.2f} → {losses[-1]:.2f}")
