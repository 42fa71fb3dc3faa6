"""The kinds of items that can be logged."""

from __future__ import annotations

import difflib
from typing import Any

from stepwell._core.errors import StepwellError
from stepwell._core.values import shown, text_of

METRIC = "metric"

KINDS: dict[str, str] = {
    METRIC: "a number at a step",
    "param": "a hyperparameter, or a dict of them",
    "artifact": "a file, a folder, bytes, or any object",
    "torch": "anything that torch.save takes",
    "dict": "a dict, kept as JSON",
    "figure": "a figure of Matplotlib or Plotly",
    "image": "an image as an array, a tensor, a PIL image or a file",
    "text": "a text",
    "histogram": "an array, a tensor or a sequence of numbers, counted in bins",
    "table": "rows, a dict of columns or a DataFrame, kept as JSON",
    "model": "a model: its weights, and for MLflow the whole model",
    "best_model": "the best model so far, stored like a model",
    "dataset": "a dataset: described, not copied",
    "watch": "a model, whose gradient and weight norms become metrics",
    "flops_pb": "(model, batch): floating point operations of a batch",
    "flops_pe": "(model, data loader): floating point operations of an epoch",
    "system": "current use of CPU, memory, disk, network and GPUs; takes no item",
    "carbon": "energy used since the context was created, if it can be measured; takes no item",
    "execution_time": "a duration in seconds; without an item, the time since the context was created",
    "prov_documents": "write the provenance documents now; takes no item",
}
"""Every kind, with a description of its item."""

WITHOUT_ITEM = frozenset({"system", "carbon", "execution_time", "prov_documents"})
"""Kinds that need neither an item nor an identifier."""

MEASURES = ("system", "carbon", "execution_time", "flops_pb", "flops_pe")
"""Kinds whose values are numbers or dicts of numbers."""


def context_name(context: Any) -> str:
    """Return the ``context`` argument of ``log()`` as one lower-case word, such as ``"validation"``.

    A member of an enum counts by its name: yProv4ML's ``Context.TRAINING`` is ``"training"``.
    """
    text = text_of(context if isinstance(context, str) else getattr(context, "name", context))
    return text.strip().lower().rpartition("context.")[2]


def check_kind(kind: Any) -> str:
    """Return the kind. Raise StepwellError if it does not exist."""
    if isinstance(kind, str) and kind in KINDS:
        return kind
    word = kind.strip().lower().replace("-", "_") if isinstance(kind, str) else ""
    matches = difflib.get_close_matches(word, [*KINDS], 1, 0.5)
    hint = f"; did you mean {matches[0]!r}?" if matches else ""
    raise StepwellError(
        f"kind must be one of {', '.join(map(repr, KINDS))}, got {shown(kind)}{hint}"
    )
