"""Plots: the metrics of runs as panels of curves, saved as a PNG or as one HTML file.

    from stepwell.analysis import plots
    plots.save(plots.panels([stepwell.open_run(path)]), "curves.html")

Panels are plain values that any renderer can draw. Imports reading; matplotlib only when a PNG is saved.
"""

from stepwell.analysis.plots.builder import Options, metric_names, panels
from stepwell.analysis.plots.curves import Curve, Mark, Panel
from stepwell.analysis.plots.export import save

__all__ = ["Curve", "Mark", "Options", "Panel", "metric_names", "panels", "save"]
