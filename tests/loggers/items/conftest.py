"""What tests of items share: a logger that logs every batch."""

from __future__ import annotations

import pytest

from stepwell import Run
from tests.loggers.logged import Own


@pytest.fixture
def logger(recorded: Run) -> Own:
    return Own(log_freq="batch").create_logger_context()
