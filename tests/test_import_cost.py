"""The cost of `import stepwell` for a program that may never record anything."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

LIMIT_MS = 60
HEAVY = {
    "json",
    "dataclasses",
    "inspect",
    "torch",
    "polars",
    "numpy",
    "msgspec",
    "zstandard",
    "asyncio",
    "rich",
    "typer",
}

PROBE = """
import sys, time
before = set(sys.modules)
start = time.process_time()
import stepwell
used = time.process_time() - start
print({"cpu_ms": used * 1000, "modules": sorted(set(sys.modules) - before)})
"""


@dataclass(frozen=True)
class Cost:
    """The measurements of one new interpreter."""

    cpu_ms: float
    modules: list[str]


def import_once() -> Cost:
    """Imports stepwell in a new interpreter."""
    # Without this the first interpreter's bytecode is thrown away, and every one compiles again.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, check=True
    )
    return Cost(**ast.literal_eval(done.stdout))


@pytest.fixture(scope="module")
def costs() -> list[Cost]:
    """Five fresh interpreters."""
    return [import_once() for _ in range(5)]


def test_import_pulls_in_nothing_heavy(costs: list[Cost]) -> None:
    """`import stepwell` loads neither a reader's libraries nor those that recording needs later."""
    assert "stepwell" in costs[0].modules
    assert HEAVY & {name.partition(".")[0] for name in costs[0].modules} == set()


def test_import_is_cheap(costs: list[Cost]) -> None:
    """`import stepwell` takes at most 60 ms of CPU time in the best of five fresh interpreters."""
    assert min(cost.cpu_ms for cost in costs) <= LIMIT_MS
