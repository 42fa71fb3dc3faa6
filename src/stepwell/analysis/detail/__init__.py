"""Level of detail: what a page shows of a run, bounded in time and size whatever the size of the run.

Timelines, series, rank grids and run lists for one screen. Sealed records are summed up once and cached in
the reader's cache folder; live records are read anew. Imports the other analyses and reading.
"""

from stepwell.analysis.detail.grid import GridWindow, grid_at
from stepwell.analysis.detail.series import (
    MetricInfo,
    MetricList,
    MetricSeries,
    OddValue,
    metric_list,
    series_at,
)
from stepwell.analysis.detail.span_search import (
    NameStats,
    SpanDetail,
    SpanEvent,
    SpanHit,
    SpanSearch,
    search_spans,
    span_detail,
)
from stepwell.analysis.detail.summaries import (
    LossSummary,
    RunEntry,
    bare_entry,
    compute_summary,
    list_summaries,
    status_text,
    summaries_of,
)
from stepwell.analysis.detail.timeline import (
    LaneBoxes,
    SpanName,
    StepMark,
    TimelineWindow,
    timeline_at,
)

__all__ = [
    "GridWindow",
    "LaneBoxes",
    "LossSummary",
    "MetricInfo",
    "MetricList",
    "MetricSeries",
    "NameStats",
    "OddValue",
    "RunEntry",
    "SpanDetail",
    "SpanEvent",
    "SpanHit",
    "SpanName",
    "SpanSearch",
    "StepMark",
    "TimelineWindow",
    "bare_entry",
    "compute_summary",
    "grid_at",
    "list_summaries",
    "metric_list",
    "search_spans",
    "series_at",
    "span_detail",
    "status_text",
    "summaries_of",
    "timeline_at",
]
