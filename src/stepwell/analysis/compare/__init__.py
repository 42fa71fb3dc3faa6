"""Comparison of runs: their metrics, configuration, code and weights, and which was better at what.

    from stepwell.analysis import compare
    compare.compare_runs([a, b]).summary
    compare.metric_table([a, b])      # a DataFrame, as are config_table, code_table and weight_table

Imports reading; torch only where snapshots of weights are compared.
"""

from stepwell.analysis.compare.comparison import Comparison, RunLine, compare_runs
from stepwell.analysis.compare.facts import Difference, code_table, config_table
from stepwell.analysis.compare.metrics import MetricComparison, Standing, metric_table
from stepwell.analysis.compare.weights import LayerDistance, WeightComparison, weight_table

__all__ = [
    "Comparison",
    "Difference",
    "LayerDistance",
    "MetricComparison",
    "RunLine",
    "Standing",
    "WeightComparison",
    "code_table",
    "compare_runs",
    "config_table",
    "metric_table",
    "weight_table",
]
