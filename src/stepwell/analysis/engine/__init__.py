"""Engines read a run for analysis in one pass, in this process or on a Dask cluster.

Each rank and attempt is a task. Its result is mainly a timeline, whose size depends on the number of steps,
not of spans. The results are combined into a ``Summary``, which the rules and the report use. Imports
timeline, ranks and reading; Dask only if it is chosen.
"""

from stepwell.analysis.engine.engines import (
    Engine,
    LocalEngine,
    Summary,
    choose_engine,
    summarise,
    summarise_with_grids,
)

__all__ = ["Engine", "LocalEngine", "Summary", "choose_engine", "summarise", "summarise_with_grids"]
