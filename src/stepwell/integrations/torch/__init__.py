"""Plain PyTorch: what a training loop does is recorded without touching the loop.

    from stepwell.integrations.torch import annotate

    annotate(model, optimizer, loader)

Everything lands on the nodes of the ``ai`` tree. docs/annotations.md says what is seen and what is not.
"""

from __future__ import annotations

from stepwell.integrations.torch.annotating import Annotations, annotate

__all__ = ["Annotations", "annotate"]
