"""Comparison of runs: metrics, time, configuration, code and weights, and which run is better.

    from stepwell.analysis.compare import compare
    comparison = compare(["runs/a", "runs/b"], by="tokens")
    comparison.summary
    metric_table([a, b])      # a DataFrame, as are the other tables

Imports findings, goodput, plots, time and reading; torch only to compare weights.
"""

from stepwell.analysis.compare.comparison import (
    ComparedRun,
    Comparison,
    compare,
    curve_table,
    metric_table,
    time_table,
)
from stepwell.analysis.compare.differences import Difference, code_table, config_table
from stepwell.analysis.compare.metrics import MetricComparison, Standing
from stepwell.analysis.compare.pace import Cause, Pace, PaceComparison, PhaseTime
from stepwell.analysis.compare.variants import Spread, Variant, VariantComparison
from stepwell.analysis.compare.weights import LayerDistance, WeightComparison, weight_table

__all__ = [
    "Cause",
    "ComparedRun",
    "Comparison",
    "Difference",
    "LayerDistance",
    "MetricComparison",
    "Pace",
    "PaceComparison",
    "PhaseTime",
    "Spread",
    "Standing",
    "Variant",
    "VariantComparison",
    "WeightComparison",
    "code_table",
    "compare",
    "config_table",
    "curve_table",
    "metric_table",
    "time_table",
    "weight_table",
]
