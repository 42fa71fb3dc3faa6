"""How tests start programs: scripts, commands and ranks, forked from a process that is warm already."""

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
