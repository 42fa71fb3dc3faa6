"""Plain PyTorch: record a training loop without changing it.

``stepwell.watch(model, optimizer, loader)`` records spans, iterations, throughput, loss and diagnostics.
``annotate`` records only the spans, on the nodes of the ``ai`` tree. See docs/pytorch.md and
docs/annotations.md.

Hooks and patches (``hooks.py``, ``loaders.py``, ``backward.py``, ``transfers.py``, ``collectives.py``)
write spans and call the ``observer``, which ``watcher/`` implements.
"""

from __future__ import annotations

from stepwell.integrations.torch.annotations import Annotations, annotate
from stepwell.integrations.torch.profiler import trace_handler
from stepwell.integrations.torch.trainer import TorchTrainer
from stepwell.integrations.torch.watcher.watch import Watch, watch

__all__ = ["Annotations", "TorchTrainer", "Watch", "annotate", "trace_handler", "watch"]
