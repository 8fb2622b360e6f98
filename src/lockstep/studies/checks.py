"""Statements about the results of a study, each of which holds, fails, or is not separated."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lockstep.run.jsonable import Json
from lockstep.studies import paper
from lockstep.studies.aggregate import Mark, Results
from lockstep.studies.paper import Place
from lockstep.studies.stats import Paired, paired

Outcome: TypeAlias = Literal["holds", "not separated", "fails"]
BySeed: TypeAlias = Mapping[int, float]
"""A value for each seed."""

FLAT = 0.05
"""A series is flat where it stays within this share of its level."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One statement and what the seeds say about it."""

    what: str
    outcome: Outcome
    gap: Paired
    """The difference that decides it, seed by seed."""

    def to_json(self) -> Json:
        """Everything."""
        gap = self.gap
        error = None if math.isnan(gap.error) else gap.error
        told = {"difference": gap.mean, "error": error, "pairs": gap.pairs, "p": gap.p}
        return {"what": self.what, "outcome": self.outcome} | told


Checks: TypeAlias = list[Check | None]
"""Statements; None for one whose results are left out."""


class Measured:
    """The results of a study under the names that the paper's readings have."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self._marks = {
            (name, metric, mark.panel, mark.series, mark.x): mark
            for name, metrics in results.figures.items()
            for metric, marks in metrics.items()
            for mark in marks
        }
        self._declared: dict[tuple[str, str, str], set[float | None]] = {}
        for figure in results.study.figures:
            for point in figure.points:
                place = figure.name, point.panel, point.series
                self._declared.setdefault(place, set()).add(point.x)

    def has(self, place: Place, series: str) -> bool:
        """Whether the study asks for a series."""
        return (place[0], place[2], series) in self._declared

    def axis(self, place: Place, series: str) -> list[float]:
        """Values of x that both the study and the paper show, in order."""
        asked = self._declared.get((place[0], place[2], series), set())
        return sorted(x for x in paper.MARKS[place].get(series, {}) if x in asked)

    def mark(self, place: Place, series: str, x: float | None = None) -> Mark | None:
        """A mark; None if it is left out."""
        return self._marks.get((*place, series, x))

    def at(self, place: Place, series: str, x: float | None) -> BySeed | None:
        """Values of a mark by seed; None if it is left out."""
        mark = self.mark(place, series, x)
        return None if mark is None else mark.by_seed

    def landmark(self, place: Place, series: str, name: str) -> BySeed | None:
        """Values of a curve at a landmark by seed; None if it is left out or was not reached."""
        mark = self.mark(place, series)
        if mark is None or name == paper.TAIL:
            return None if mark is None else mark.by_seed
        if name == paper.FIRST:
            return by_seed(mark, lambda curve: float(curve[0]))
        low, high = paper.window(name)
        inside = (mark.steps > low) & (mark.steps <= high)
        if not inside.any() or mark.steps[-1] + mark.steps[0] <= high:  # an update short of it
            return None
        return by_seed(mark, lambda curve: float(curve[inside].mean()))


def by_seed(mark: Mark, number: Callable[[NDArray[np.float64]], float]) -> BySeed:
    """A number made of each seed's curve."""
    return {seed: number(curve) for seed, curve in zip(mark.seeds, mark.curves, strict=True)}


def below(what: str, low: BySeed | None, high: BySeed | None) -> Check | None:
    """That `low` is below `high`."""
    if low is None or high is None:
        return None
    gap = paired(high, low)
    outcome: Outcome = (
        "not separated" if not gap.separated else "holds" if gap.mean > 0 else "fails"
    )
    return Check(what=what, outcome=outcome, gap=gap)


def within(what: str, value: BySeed | None, low: float, high: float) -> Check | None:
    """That a value lies between two bounds; not separated if it might, by its seeds."""
    if value is None:
        return None
    mean = float(np.mean(list(value.values())))
    bound = min(max(mean, low), high)
    gap = paired(value, dict.fromkeys(value, bound))
    outcome: Outcome = "holds" if mean == bound else "fails" if gap.separated else "not separated"
    return Check(what=what, outcome=outcome, gap=gap)


def flat(what: str, values: Sequence[BySeed | None]) -> Check | None:
    """That no value of a row differs from its first by more than `FLAT` of that."""
    held = [value for value in values if value is not None]
    if len(held) < len(values) or len(held) < 2:
        return None
    changes = [relative(value, held[0]) for value in held[1:]]
    worst = max(changes, key=lambda change: abs(np.mean(list(change.values()))))
    return within(what, worst, -FLAT, FLAT)


def trend(what: str, values: Sequence[BySeed | None], *, up: bool) -> Check | None:
    """That a row goes one way: its ends differ, and no step is separated the other way."""
    if len(values) < 2 or any(value is None for value in values):
        return None
    order = values if up else values[::-1]
    ends = below(what, order[0], order[-1])
    steps = [below(what, a, b) for a, b in pairwise(order)]
    wrong = next((step for step in steps if step is not None and step.outcome == "fails"), None)
    return ends if wrong is None else wrong


def relative(value: BySeed, base: BySeed) -> BySeed:
    """Change from `base` as a share of it, by common seeds."""
    return {seed: value[seed] / base[seed] - 1.0 for seed in value if seed in base}


def orders(
    measured: Measured, place: Place, *, only: Callable[[str, str], bool] = lambda *_: True
) -> Checks:
    """For each two series at each mark, or at the ends of curves, that they stand as there."""
    if place in paper.CURVES:
        tails = {name: row[paper.TAIL] for name, row in paper.CURVES[place].items()}
        return list(_curve_orders(measured, place, tails, only))
    return list(_mark_orders(measured, place, only))


def _curve_orders(
    measured: Measured, place: Place, tails: Mapping[str, float], only: Callable[[str, str], bool]
) -> Iterator[Check | None]:
    for one, other in combinations(tails, 2):
        tie = (*place, frozenset((one, other))) in paper.TIES
        if tie or not only(one, other) or not all(measured.has(place, n) for n in (one, other)):
            continue
        low, high = sorted((one, other), key=tails.__getitem__)
        ends = (measured.landmark(place, name, paper.TAIL) for name in (low, high))
        yield below(f"{low} < {high}", *ends)


def _mark_orders(
    measured: Measured, place: Place, only: Callable[[str, str], bool]
) -> Iterator[Check | None]:
    rows = paper.MARKS[place]
    for one, other in combinations(rows, 2):
        common = set(measured.axis(place, one)) & set(measured.axis(place, other))
        for x in sorted(common):
            if rows[one][x] == rows[other][x] or not only(one, other):
                continue
            low, high = sorted((one, other), key=lambda name: rows[name][x])
            what = f"{low} < {high} at {x:g}"
            yield below(what, measured.at(place, low, x), measured.at(place, high, x))


def trends(measured: Measured, place: Place) -> Checks:
    """For each series, that it goes the way that it goes in the paper."""
    if place in paper.CURVES:
        return list(_curve_trends(measured, place))
    return list(_mark_trends(measured, place))


def _curve_trends(measured: Measured, place: Place) -> Iterator[Check | None]:
    for name, row in paper.CURVES[place].items():
        if not measured.has(place, name):
            continue
        for start, end in pairwise(paper.TURNS[place[0]]):
            up = row[end] > row[start]
            what = f"{name} {'rises' if up else 'falls'} from {start} to {end}"
            ends = [measured.landmark(place, name, at) for at in (start, end)]
            yield trend(what, ends, up=up)


def _mark_trends(measured: Measured, place: Place) -> Iterator[Check | None]:
    stop = paper.FLAT_FROM.get(place, math.inf)
    for name, row in paper.MARKS[place].items():
        axis = measured.axis(place, name)
        moving = [x for x in axis if x <= stop]
        level = [x for x in axis if x >= stop]
        if len(moving) > 1:
            up = row[moving[-1]] > row[moving[0]]
            what = f"{name} {'rises' if up else 'falls'} from {moving[0]:g} to {moving[-1]:g}"
            yield trend(what, [measured.at(place, name, x) for x in moving], up=up)
        if len(level) > 1:
            what = f"{name} is flat from {level[0]:g} on"
            yield flat(what, [measured.at(place, name, x) for x in level])


def known(checks: Iterable[Check | None]) -> list[Check]:
    """Those whose results are there."""
    return [check for check in checks if check is not None]
