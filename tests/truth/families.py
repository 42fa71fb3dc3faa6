"""All cases, by family."""

from types import ModuleType

from tests.truth import ends, frameworks, learning, loops, ranks, spans, times
from tests.truth.case import Case

FAMILIES: dict[str, ModuleType] = {
    "loops": loops,
    "spans": spans,
    "learning": learning,
    "times": times,
    "ends": ends,
    "ranks": ranks,
    "frameworks": frameworks,
}


def cases_of(family: str) -> list[Case]:
    """Return the cases of a family, in the order in which they are written."""
    return [value for value in vars(FAMILIES[family]).values() if isinstance(value, Case)]
