"""Draws with matplotlib, which is loaded only here and only when something is drawn, and returns clean SVG.

No plot tells series apart by colour alone: lines have dashes and markers, areas have hatches.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvist.core.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours: told apart in every common colour blindness, in an order whose greys differ too.
COLOURS = ("#0072B2", "#E69F00", "#000000", "#56B4E9", "#D55E00", "#009E73", "#CC79A7")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 2, 1, 2)), (0, (3, 1)), (0, (8, 2)), (0, (2, 3)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# Fills are lighter than lines, so that hatches show and print sparingly. No dotted hatch: its circles weigh 250 kB.
FILLS = ("#0072B2", "#F2BE5C", "#D6E6F0", "#E58A5B", "#7CC4AB", "#E3B8D0", "#BBBBBB")
HATCHES = ("", "////", "\\\\\\\\", "----", "xxxx", "||||", "++++")

WIDTH_INCHES = 7.2
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",  # text stays text: small, searchable, in the reader's font
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana"],  # of equal widths
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.linewidth": 0.7,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
}
_UNUSED = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<metadata>.*?</metadata>|<!--.*?-->", re.DOTALL)
_LEVEL = re.compile(r' transform="rotate\(-0 [^"]*"')
_TAG = re.compile(r"<[^>]+>")
_LONG_NUMBER = re.compile(r"(\d\.\d\d)\d+")
_ID = re.compile(r' id="([^"]+)"')


def series_style(index: int) -> dict[str, Any]:
    """Colour, dashes and marker of the series with this index."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": DASHES[index % len(DASHES)],
        "marker": MARKERS[index % len(MARKERS)],
    }


def fill_style(index: int) -> dict[str, Any]:
    """Colour and hatch of the bars or areas with this index."""
    return {
        "facecolor": FILLS[index % len(FILLS)],
        "hatch": HATCHES[index % len(HATCHES)],
        "edgecolor": "#444444",
        "linewidth": 0,
    }


def require_plots() -> None:
    """Raise ConfigError if nothing can be drawn. For commands that draw at the end of a long run."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"reports need matplotlib ({error}): pip install 'kvist[report]'") from error


def draw(paint: Callable[[Axes], None], *, title: str, height_inches: float = 2.9) -> str:
    """An <svg> element of what `paint` puts on empty axes. The same input gives the same text.

    title: what a screen reader says.
    """
    require_plots()
    import matplotlib as mpl
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {**_STYLE, "svg.hashsalt": title}
    with mpl.rc_context(settings):
        figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
        paint(figure.add_subplot())
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return _clean(text.getvalue(), title)


def _clean(svg: str, title: str) -> str:
    """Only the element, without what pages do not need, with ids that no other figure of the page has."""
    svg = _LEVEL.sub("", _UNUSED.sub("", svg).strip())
    svg = _TAG.sub(lambda tag: _LONG_NUMBER.sub(r"\1", tag.group(0)), svg)  # a hundredth of a point is enough
    used = set(re.findall(r'#([^")]+)[")]', svg))
    svg = _ID.sub(lambda match: match.group(0) if match.group(1) in used else "", svg)
    label = html.escape(title, quote=True)
    start = r'<svg\b[^>]*?viewBox="([^"]+)"[^>]*>'
    opening = rf'<svg xmlns:xlink="http://www.w3.org/1999/xlink" role="img" aria-label="{label}" viewBox="\1">'
    return re.sub(start, opening, svg, count=1)
