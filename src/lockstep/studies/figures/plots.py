"""Bars, lines and curves in one pair of axes."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from lockstep.studies import paper
from lockstep.studies.aggregate import Mark
from lockstep.studies.figures.looks import PAPER_COLOUR, PAPER_DASHES, Look
from lockstep.studies.figures.spread import Spread, of_curve, of_mark

_BAND = 0.16
_GROUP = 0.82
"""Share of the room between two ticks that a group of bars takes."""


def bars(
    axes: Axes,
    marks: Sequence[Mark],
    looks: Mapping[str, Look],
    spread: Spread,
    readings: paper.Marks,
) -> None:
    """Groups of bars over x, from zero, with the spread as error bars; readings as dashed ticks."""
    series = list(dict.fromkeys(mark.series for mark in marks))
    values = sorted({mark.x for mark in marks if mark.x is not None})
    width = _GROUP / len(series)
    for mark in marks:
        assert mark.x is not None
        offset = (series.index(mark.series) - (len(series) - 1) / 2) * width
        centre = values.index(mark.x) + offset
        middle, low, high = of_mark(mark, spread)
        axes.bar(centre, middle, 0.92 * width, color=looks[mark.series].colour)
        if len(mark.values) > 1:
            axes.errorbar(centre, middle, [[middle - low], [high - middle]], color="#222222",
                          lw=0.6, capsize=1.2, capthick=0.6)  # fmt: skip
        read = readings.get(mark.series, {}).get(mark.x)
        if read is not None:
            ends = centre - 0.56 * width, centre + 0.56 * width
            axes.plot(ends, (read, read), color=PAPER_COLOUR, lw=0.9, ls=(0, (2.0, 1.0)))
    axes.set_xticks(range(len(values)), [f"{x:g}" for x in values])
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")
    axes.set_ylim(bottom=min(0.0, *(of_mark(mark, spread)[1] for mark in marks)))


def lines(
    axes: Axes,
    marks: Sequence[Mark],
    looks: Mapping[str, Look],
    spread: Spread,
    readings: paper.Marks,
) -> None:
    """A line for each series over x, with the spread as a band; readings as dashed lines."""
    for name, look in looks.items():
        row = sorted((m for m in marks if m.series == name), key=lambda m: m.x or 0.0)
        if not row:
            continue
        x = [mark.x or 0.0 for mark in row]
        middle, low, high = zip(*(of_mark(mark, spread) for mark in row), strict=True)
        axes.fill_between(x, low, high, color=look.colour, alpha=_BAND, lw=0)
        axes.plot(x, middle, color=look.colour, ls=look.line, marker=look.marker,
                  mfc="white" if look.hollow else look.colour, mew=0.9)  # fmt: skip
        if name in readings:
            read = readings[name]
            axes.plot(list(read), list(read.values()), color=look.colour, lw=0.9,
                      ls=PAPER_DASHES, alpha=0.85)  # fmt: skip
    values = sorted({mark.x for mark in marks if mark.x is not None})
    axes.set_xticks(values, [f"{x:g}" for x in values])


def curves(
    axes: Axes,
    marks: Sequence[Mark],
    looks: Mapping[str, Look],
    spread: Spread,
    readings: paper.Marks,
) -> None:
    """A curve for each series over steps, with the spread as a band; readings as dashed lines."""
    for mark in marks:
        look, shown = looks[mark.series], of_curve(mark, spread)
        axes.fill_between(mark.steps, shown.low, shown.high, color=look.colour, alpha=_BAND, lw=0)
        axes.plot(mark.steps, shown.middle, color=look.colour, ls=look.line)
        read = readings.get(mark.series, {})
        axes.plot(list(read), list(read.values()), color=look.colour, lw=0.9, ls=PAPER_DASHES,
                  marker="o", ms=1.6, alpha=0.85)  # fmt: skip
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(FuncFormatter(_thousands))


def _thousands(value: float, _: int | None = None) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"
