"""Comparison of runs: metrics, time, configuration, code and weights, and which was better at what.

    from stepwell.analysis.compare import compare
    found = compare(["runs/a", "runs/b"], by="tokens")
    found.summary
    metric_table([a, b])      # a DataFrame, as are the other tables

Imports time, goodput and reading; torch only where snapshots of weights are compared.
"""

from stepwell.analysis.compare.comparison import Comparison, RunLine, compare
from stepwell.analysis.compare.facts import Difference, code_table, config_table
from stepwell.analysis.compare.metrics import MetricComparison, Standing
from stepwell.analysis.compare.pace import Cause, Pace, PaceComparison, PhaseTime
from stepwell.analysis.compare.tables import curve_table, metric_table, time_table
from stepwell.analysis.compare.variants import Spread, Variant, VariantComparison
from stepwell.analysis.compare.weights import LayerDistance, WeightComparison, weight_table

__all__ = [
    "Cause",
    "Comparison",
    "Difference",
    "LayerDistance",
    "MetricComparison",
    "Pace",
    "PaceComparison",
    "PhaseTime",
    "RunLine",
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
