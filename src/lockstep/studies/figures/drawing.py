"""A figure of measured points: its panels, legend and footer."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from lockstep.studies import paper
from lockstep.studies.aggregate import Mark, Results
from lockstep.studies.figures import plots
from lockstep.studies.figures.looks import PAPER_COLOUR, PAPER_DASHES, Look, looks
from lockstep.studies.figures.page import COLUMN_IN, PAGE_IN, files, footer, page, style
from lockstep.studies.figures.spread import in_words
from lockstep.studies.study import Figure

if TYPE_CHECKING:
    from lockstep.studies.figures import Request

_HEIGHT_IN = 2.75
_IN_A_ROW = {COLUMN_IN: 3, PAGE_IN: 6}
"""Entries of the legend in a row, by the width of the page."""


def picture(
    figure: Figure, results: Results, asked: "Request", formats: Sequence[str]
) -> dict[str, bytes] | None:
    """The figure's files by format; None if none of its points has a result."""
    with style():
        canvas = compose(figure, results, asked)
        return None if canvas is None else files(canvas, results.study, figure, formats)


def compose(figure: Figure, results: Results, asked: "Request") -> Canvas | None:
    """The figure as it stands on its page: panels for each metric and part, legend, footer."""
    panels = _panels(figure, results)
    if not panels:
        return None
    canvas = page(COLUMN_IN if len(panels) == 1 else PAGE_IN, _HEIGHT_IN)
    every = looks(results.study)
    own = {name: every[name] for name in results.series(figure.name)}
    draw = {"bars": plots.bars, "lines": plots.lines, "curves": plots.curves}[figure.kind]
    grid = canvas.subplots(1, len(panels), squeeze=False)[0]
    for axes, (metric, name, marks) in zip(grid, panels, strict=True):
        place = (figure.name, metric, name)
        readings = paper.readings(place) if asked.overlay_paper else {}
        draw(axes, marks, own, asked.spread, readings)
        axes.set_xlabel(figure.x_label)
        axes.set_ylabel(paper.LABELS.get(place[:2]) or _label(figure, metric))
        axes.set_title(name or (figure.title if len(panels) == 1 else ""))
    shown = {mark.series for _, _, marks in panels for mark in marks}
    _legend(canvas, figure, {n: own[n] for n in own if n in shown}, asked.overlay_paper)
    footer(canvas, results.study, _told(figure, results, panels[0][2], asked))
    return canvas


def _panels(figure: Figure, results: Results) -> list[tuple[str, str, list[Mark]]]:
    """Metric, part and marks of every panel that has a mark."""
    names = list(dict.fromkeys(point.panel for point in figure.points))
    panels = [
        (metric, name, [mark for mark in results.marks(figure.name, metric) if mark.panel == name])
        for metric in figure.metrics
        for name in names
    ]
    return [panel for panel in panels if panel[2]]


def _label(figure: Figure, metric: str) -> str:
    """Text of the y axis, which names the metric where there are several."""
    if len(figure.metrics) == 1:
        return figure.y_label
    return f"{metric.partition('/')[2].replace('_', ' ')}: {figure.y_label}"


def _told(figure: Figure, results: Results, marks: Sequence[Mark], asked: "Request") -> str:
    told = in_words(asked.spread, len(marks[0].seeds))
    lacking = results.lacking(figure.name)
    return f"{told}; {lacking} of {len(figure.points)} points left out" if lacking else told


def _legend(canvas: Canvas, figure: Figure, shown: dict[str, Look], overlay: bool) -> None:
    """Above the axes, if there is more than one thing to tell apart."""
    rows = sorted(shown, key=lambda name: shown[name].hollow)  # solid lines first, then dotted ones
    handles: list[Line2D | Patch] = [_handle(figure, name, shown[name]) for name in rows]
    if overlay:
        dashes = (0.0, (2.0, 1.0)) if figure.kind == "bars" else PAPER_DASHES
        handles.append(Line2D([], [], color=PAPER_COLOUR, lw=0.9, ls=dashes, label="paper"))
    if len(handles) > 1:
        columns = min(len(handles), _IN_A_ROW[canvas.get_figwidth()])
        by_row = [handle for start in range(columns) for handle in handles[start::columns]]
        canvas.legend(handles=by_row, loc="outside upper center", ncols=columns)


def _handle(figure: Figure, name: str, look: Look) -> Line2D | Patch:
    if figure.kind == "bars":
        return Patch(color=look.colour, label=name)
    marker = look.marker if figure.kind == "lines" else ""
    face = "white" if look.hollow else look.colour
    return Line2D([], [], color=look.colour, ls=look.line, marker=marker, mfc=face, mew=0.9,
                  label=name)  # fmt: skip
