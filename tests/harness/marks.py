"""Cases of the default suite, and those that only ``make test-full`` runs."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest


def others_in_full(cases: Iterable[Any], by_default: Container[Any]) -> list[Any]:
    """Mark all cases but these for ``make test-full``."""
    return [
        case if case in by_default else pytest.param(case, marks=pytest.mark.full) for case in cases
    ]
