"""Start scripts, commands and ranks by forking a process that has imported torch, Polars and stepwell."""

from tests.harness.environment import REPOSITORY, SOURCE, environment, recording_environment
from tests.harness.made_once import made_once
from tests.harness.programs import (
    CLI,
    COLD_SIDECARS,
    SDKS,
    TRAINERS,
    Program,
    has_ended,
    run_ranks,
    run_script,
    run_stepwell,
    start_rank,
    start_script,
    wait_until,
)

__all__ = [
    "CLI",
    "COLD_SIDECARS",
    "REPOSITORY",
    "SDKS",
    "SOURCE",
    "TRAINERS",
    "Program",
    "environment",
    "has_ended",
    "made_once",
    "recording_environment",
    "run_ranks",
    "run_script",
    "run_stepwell",
    "start_rank",
    "start_script",
    "wait_until",
]
