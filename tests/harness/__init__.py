"""Start scripts, commands and ranks by forking a process that has imported torch, Polars and stepwell."""

from tests.harness.environment import REPOSITORY, SOURCE, environment
from tests.harness.programs import (
    CLI,
    COLD_SIDECARS,
    SDKS,
    TRAINERS,
    Program,
    run_ranks,
    run_script,
    run_stepwell,
    start_rank,
    start_script,
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
    "run_ranks",
    "run_script",
    "run_stepwell",
    "start_rank",
    "start_script",
]
