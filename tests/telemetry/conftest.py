"""Fixtures of the telemetry tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.telemetry.launching import Agent


@pytest.fixture
def start_agent(tmp_path: Path) -> Iterator[Callable[[], Agent]]:
    agents: list[Agent] = []

    def start() -> Agent:
        agents.append(Agent(tmp_path))
        return agents[-1]

    yield start
    for agent in agents:
        agent.process.communicate()
