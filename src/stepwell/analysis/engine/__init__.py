"""Reading a run for analysis: in one pass, process by process, here or on a cluster.

Each rank and attempt is a task of its own, which gives a summary as large as its steps, not as its spans.
What the tasks give is put together where the analysis is done. Imports time, ranks, goodput and reading; the
rules and the report know summaries alone. A cluster's client is imported where one is asked for.
"""

from stepwell.analysis.engine.engines import Engine, LocalEngine, choose_engine
from stepwell.analysis.engine.summary import Summary, summarise

__all__ = ["Engine", "LocalEngine", "Summary", "choose_engine", "summarise"]
