"""Reports: one HTML file with text, tables and plots, that opens anywhere and prints well."""

from kvist.report.area_plots import stacked_area, step_composition
from kvist.report.bar_plots import bar_plot, waterfall
from kvist.report.heat_map import heat_map
from kvist.report.line_plots import cdf_plot, line_plot
from kvist.report.page import Report, page_facts
from kvist.report.plot import Plot
from kvist.report.svg_figure import require_plots
from kvist.report.timeline import Segment, TimelineRow, timeline

__all__ = [
    "Plot",
    "Report",
    "Segment",
    "TimelineRow",
    "bar_plot",
    "cdf_plot",
    "heat_map",
    "line_plot",
    "page_facts",
    "require_plots",
    "stacked_area",
    "step_composition",
    "timeline",
    "waterfall",
]
