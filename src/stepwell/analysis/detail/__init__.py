"""Level of detail: what a page shows of a run, bounded in time and size whatever the size of the run.

Timelines, series and rank grids for one screen. Sealed records are summed up once and cached in
the reader's cache folder; live records are read anew. Imports the other analyses and reading.
"""

from stepwell.analysis.detail.grid import grid_at
from stepwell.analysis.detail.series import (
    metric_list,
    series_at,
)
from stepwell.analysis.detail.span_search import (
    search_spans,
    span_detail,
)
from stepwell.analysis.detail.timeline import (
    LaneBoxes,
    TimelineWindow,
    timeline_at,
)

__all__ = [
    "LaneBoxes",
    "TimelineWindow",
    "grid_at",
    "metric_list",
    "search_spans",
    "series_at",
    "span_detail",
    "timeline_at",
]
