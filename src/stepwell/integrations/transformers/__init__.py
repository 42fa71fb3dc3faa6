"""Hugging Face Trainer: record a training job with one callback.

trainer = Trainer(model=model, args=args, train_dataset=data, callbacks=[StepwellCallback()])
trainer.train()

Imports training. Only the trainer with the callback is changed, nothing else of transformers.
"""

from __future__ import annotations

from stepwell.integrations.transformers.callback import StepwellCallback

__all__ = ["StepwellCallback"]
