"""A figure of flights: where UAVs and users went."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from lockstep.errors import BadInput
from lockstep.run.policy import Policy
from lockstep.studies import paper, uav_flights
from lockstep.studies.aggregate import Results, Unusable
from lockstep.studies.figures.page import PAGE_IN, files, footer, page, style
from lockstep.studies.flights import Flight, flights, trained_policy
from lockstep.studies.study import Figure, Point, Study

if TYPE_CHECKING:
    from lockstep.studies.figures import Request

log = logging.getLogger(__name__)

_UAVS = (
    "#0072b2", "#d55e00", "#009e73", "#9a5ba5", "#e69f00",
    "#56b4e9", "#b03060", "#5c4b3b", "#7f7f00", "#222222",
)  # fmt: skip
_USER, _USER_END = "#cfcfcf", "#9a9a9a"
_PANEL_IN = 3.5


def flights_picture(
    study: Study,
    figure: Figure,
    root: Path,
    results: Results | None,
    asked: "Request",
    formats: Sequence[str],
) -> dict[str, bytes] | None:
    """The figure's files by format; None if no policy is left to fly."""
    points = _scenes(study, figure, asked)
    pilots = _pilots(study, points, root, results, asked)
    flown: list[Flight] = []
    for place, point in enumerate(points):
        if point.key in pilots:
            pilot, trial = pilots[point.key], point.trials[0]
            flown += flights(trial, pilot, seed=asked.seed, first=2 * place)
    if not flown:
        return None
    with style():
        canvas = page(PAGE_IN, _PANEL_IN * (len(flown) // 2) + 0.35)
        grid = canvas.subplots(len(flown) // 2, 2, squeeze=False).flatten()
        for at, (axes, flight) in enumerate(zip(grid, flown, strict=True)):
            _panel(axes, flight, f"({chr(ord('a') + at)}) {flight.title}")
            axes.set_xlabel(figure.x_label if at >= len(flown) - 2 else "")
            axes.set_ylabel("" if at % 2 else figure.y_label)
        _legend(canvas)
        footer(canvas, study, _told(points, pilots, asked))
        return files(canvas, study, figure, formats)


def _scenes(study: Study, figure: Figure, asked: "Request") -> Sequence[Point]:
    """The areas that are flown in: the script needs no training, so it takes both of the paper."""
    if asked.mode == "heuristic" and study.name == paper.STUDY:
        return uav_flights.study().figure(figure.name).points
    return figure.points


def _pilots(
    study: Study, points: Sequence[Point], root: Path, results: Results | None, asked: "Request"
) -> dict[object, Policy | None]:
    """Who flies at each point: what its first trial has learned, or None for the script."""
    if asked.mode == "heuristic":
        return {point.key: None for point in points}
    assert results is not None
    found: dict[object, Policy | None] = {}
    problems = []
    for point in points:
        summary = results.statuses[point.trials[0].hash].summary
        if summary is None or not results.has(point):
            continue  # gather has told it
        try:
            found[point.key] = trained_policy(point.trials[0], summary, root)
        except BadInput as error:
            problems.append(f"{point.figure} {point.series}, seed {summary.seed}: {error}")
    if problems and not asked.allow_missing:
        raise Unusable(study, problems, of=len(points))
    for problem in problems:
        log.warning("%s", problem)
    return found


def _told(points: Sequence[Point], pilots: dict[object, Policy | None], asked: "Request") -> str:
    if asked.mode == "heuristic":
        return f"script: UAVs fly to the middle of their users; flight of seed {asked.seed}"
    flown = [point for point in points if point.key in pilots]
    lacking = len(points) - len(flown)
    trained = sorted({point.trials[0].seed for point in flown})
    who = f"policies trained with seed {', '.join(map(str, trained))}, most likely actions"
    more = f"; {lacking} of {len(points)} areas left out" if lacking else ""
    return f"{who}; flight of seed {asked.seed}{more}"


def _panel(axes: Axes, flight: Flight, title: str) -> None:
    """Tracks of users in grey and of UAVs in colours, from a triangle to a star."""
    size = flight.config.width_m, flight.config.height_m
    axes.add_patch(Rectangle((0, 0), *size, fill=False, ec="#bbbbbb", lw=0.6))
    for k in range(flight.mu_xy_m.shape[1]):
        x, y = flight.mu_xy_m[:, k].T.tolist()
        axes.plot(x, y, color=_USER, lw=0.6)
        axes.plot(x[-1:], y[-1:], color=_USER_END, marker="o", ms=1.6, ls="")
    for m in range(flight.uav_xy_m.shape[1]):
        x, y = flight.uav_xy_m[:, m].T.tolist()
        colour = _UAVS[m % len(_UAVS)]
        axes.plot(x, y, color=colour, lw=1.2, zorder=3)
        axes.plot(x[:1], y[:1], color=colour, marker="^", ms=4.5, mfc="white", mew=1.0, ls="",
                  zorder=4, clip_on=False)  # fmt: skip
        axes.plot(x[-1:], y[-1:], color=colour, marker="*", ms=7.0, mew=0.0, ls="", zorder=5,
                  clip_on=False)  # fmt: skip
    margin = 0.02 * max(size)
    axes.set_xlim(-margin, size[0] + margin)
    axes.set_ylim(-margin, size[1] + margin)
    axes.set_aspect("equal")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_title(title)


def _legend(canvas: Canvas) -> None:
    grey = "#555555"
    handles = [
        Line2D([], [], color=grey, lw=1.2, label="track of a UAV"),
        Line2D([], [], color=grey, marker="^", ms=4.5, mfc="white", ls="", label="its start"),
        Line2D([], [], color=grey, marker="*", ms=7.0, mew=0.0, ls="", label="its end"),
        Line2D([], [], color=_USER, lw=0.8, label="track of a user"),
        Line2D([], [], color=_USER_END, marker="o", ms=2.0, ls="", label="its end"),
    ]
    canvas.legend(handles=handles, loc="outside upper center", ncols=len(handles))
