"""Hugging Face's Trainer: a training job of it is recorded by one callback.

trainer = Trainer(model=model, args=args, train_dataset=data, callbacks=[StepwellCallback()])
trainer.train()

Imports training. Nothing of transformers is changed but the trainer that the callback is given to.
"""

from __future__ import annotations

from stepwell.integrations.transformers.callback import StepwellCallback

__all__ = ["StepwellCallback"]
