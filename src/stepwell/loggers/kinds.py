"""The kinds of things that can be logged, and what is told to whoever misspells one."""

from __future__ import annotations

import difflib
from typing import Any

from stepwell.journal.errors import StepwellError
from stepwell.journal.values import shown, text_of

METRIC = "metric"

KINDS: dict[str, str] = {
    METRIC: "a number at a step",
    "param": "a hyper-parameter, or a dict of them",
    "artifact": "a file, a folder, bytes, or any object",
    "torch": "anything that torch.save takes",
    "dict": "a dict, kept as JSON",
    "figure": "a figure of Matplotlib or Plotly",
    "image": "a picture as an array, a tensor, a PIL image or a file",
    "text": "a text",
    "histogram": "an array, a tensor or a sequence of numbers, counted in bins",
    "table": "rows, a dict of columns or a DataFrame, kept as JSON",
    "model": "a model: its weights, and for MLflow the whole of it",
    "best_model": "the same, of the best model so far",
    "dataset": "what data was used: described, not copied",
    "watch": "a model, whose gradient and weight norms become metrics",
    "flops_pb": "(model, batch): floating point operations of a batch",
    "flops_pe": "(model, data loader): floating point operations of an epoch",
    "system": "processor, memory, disk, network and GPUs as they are now; takes no item",
    "carbon": "energy used since the context was created, where it is known; takes no item",
    "execution_time": "a duration in seconds; without an item, since the context was created",
    "prov_documents": "have the provenance documents written now; takes no item",
}
"""Every kind, with what its item is."""

WITHOUT_ITEM = frozenset({"system", "carbon", "execution_time", "prov_documents"})
"""Kinds that need neither an item nor an identifier."""


def context_name(context: Any) -> str:
    """Return what ``log(…, context=…)`` says as one word of lower case, such as ``"validation"``.

    A member of an enumeration counts by its name, so yProv4ML's ``Context.TRAINING`` is ``"training"``.
    """
    text = text_of(context if isinstance(context, str) else getattr(context, "name", context))
    return text.strip().lower().rpartition("context.")[2]


def check_kind(kind: Any) -> str:
    """The kind itself; StepwellError for one that there is not."""
    if isinstance(kind, str) and kind in KINDS:
        return kind
    raise StepwellError(f"there is no kind {shown(kind)}{_nearest(kind)}: write one of {_list()}")


def _nearest(kind: Any) -> str:
    word = str(kind).strip().lower().replace("-", "_") if isinstance(kind, str) else ""
    found = difflib.get_close_matches(word, [*KINDS], 1, 0.5)
    return f", did you mean {found[0]!r}?" if found else ""


def _list() -> str:
    return ", ".join(map(repr, KINDS))
