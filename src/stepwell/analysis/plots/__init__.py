"""Curves of a run as panels: plain values first, then a PNG or one HTML file made of them.

    from stepwell.analysis import plots
    plots.save(plots.panels([stepwell.open_run(path)]), "curves.html")

Imports reading; matplotlib only inside of the function that needs it. Knows nothing of terminals.
"""

from stepwell.analysis.plots.curves import Curve, Mark, Panel
from stepwell.analysis.plots.making import Options, metric_names, panels
from stepwell.analysis.plots.saving import save

__all__ = ["Curve", "Mark", "Options", "Panel", "metric_names", "panels", "save"]
