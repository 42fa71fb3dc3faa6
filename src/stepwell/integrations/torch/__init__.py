"""Plain PyTorch: what a training loop does is recorded without touching the loop.

    stepwell.watch(model, optimizer, loader)

gives spans, iterations, throughput, loss and diagnostics; ``annotate`` the spans alone, on the nodes of the
``ai`` tree. docs/pytorch.md and docs/annotations.md say what is seen and what is not.
"""

from __future__ import annotations

from stepwell.integrations.torch.annotating import Annotations, annotate
from stepwell.integrations.torch.profiling import trace_handler
from stepwell.integrations.torch.trainer import TorchTrainer
from stepwell.integrations.torch.watching import Watch, watch

__all__ = ["Annotations", "TorchTrainer", "Watch", "annotate", "trace_handler", "watch"]
