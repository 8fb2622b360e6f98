"""The results of a study, point by point, from trials that may be used; imports no torch."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lockstep.errors import BadInput, known
from lockstep.run.jsonable import Json, finite
from lockstep.run.rundir import write_json
from lockstep.studies.stats import bootstrap, iqm
from lockstep.studies.status import State, TrialStatus, status
from lockstep.studies.store import Curve, check_study, read_curves
from lockstep.studies.study import Figure, Point, Study, Trial

FILE = "aggregate.json"
FORMAT = 1
"""Version of the layout of that file."""

USABLE: tuple[State, ...] = ("done", "duplicate")
"""States of a trial whose result may be used."""
LISTED = 100
"""Trials that an error names, at most."""


class Unusable(BadInput):
    """Trials that figures need have no result, or one that must not be used."""

    def __init__(self, study: Study, problems: Sequence[str], *, of: int) -> None:
        more = len(problems) - LISTED
        lines = [*problems[:LISTED], *([f"and {more} more"] if more > 0 else [])]
        super().__init__(
            f"{len(problems)} of {of} trials of {study.name} cannot be used, so nothing is made of "
            "them:\n" + "".join(f"  {line}\n" for line in lines) + "train them with `lockstep "
            "study run`, or leave them out with --allow-missing"
        )
        self.problems = list(problems)


@dataclass(frozen=True, kw_only=True, eq=False)
class Mark:
    """A point of a figure, measured by one metric: a number and a curve for each seed."""

    panel: str
    series: str
    x: float | None
    seeds: tuple[int, ...]
    trials: tuple[str, ...]
    """Their names, in the order of `seeds`."""
    values: tuple[float, ...]
    """Mean over the last updates, for each seed."""
    steps: NDArray[np.int64] = field(repr=False)
    """Environment steps after each update."""
    curves: NDArray[np.float64] = field(repr=False)
    """`[seeds, updates]`; NaN where an update had no number."""

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return float(np.mean(self.values))

    @property
    def std(self) -> float | None:
        """Standard deviation over the seeds (of a sample, n - 1); None of a single one."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None

    @property
    def iqm(self) -> float:
        """Interquartile mean over the seeds."""
        return iqm(self.values)

    @cached_property
    def interval(self) -> tuple[float, float]:
        """95 % bootstrap interval of the interquartile mean."""
        return bootstrap(self.values)

    @property
    def by_seed(self) -> dict[int, float]:
        """Value of each seed."""
        return dict(zip(self.seeds, self.values, strict=True))

    def to_json(self, *, curves: bool) -> Json:
        """Everything; curves where they are asked for."""
        low, high = self.interval
        told = {
            "panel": self.panel,
            "series": self.series,
            "x": self.x,
            "seeds": list(self.seeds),
            "values": list(self.values),
            "mean": self.mean,
            "std": self.std,
            "iqm": self.iqm,
            "low": low,
            "high": high,
            "trials": list(self.trials),
        }
        if curves:
            told |= {"steps": self.steps.tolist(), "curves": finite(self.curves.tolist())}
        return told


@dataclass(frozen=True, kw_only=True, eq=False)
class Results:
    """What the figures of a study show."""

    study: Study
    figures: dict[str, dict[str, tuple[Mark, ...]]]
    """Figure to metric to its marks; series in the order in which they are drawn."""
    statuses: dict[str, TrialStatus]
    """What has become of each trial that the figures need."""
    left_out: tuple[str, ...]
    """Trials without a result that may be used, and why."""

    def marks(self, figure: str, metric: str) -> tuple[Mark, ...]:
        """The marks of a figure, measured by one of its metrics."""
        return self.figures[figure][metric]

    def series(self, figure: str) -> list[str]:
        """The series of a figure in the order in which they are drawn."""
        return in_order(point.series for point in self.study.figure(figure).points)

    def lacking(self, figure: str) -> int:
        """How many points of a figure are left out."""
        points = self.study.figure(figure).points
        return sum(not self.has(point) for point in points)

    def has(self, point: Point) -> bool:
        """Whether every trial of a point has a result."""
        return all(self.statuses[trial.hash].state in USABLE for trial in point.trials)

    def to_json(self) -> Json:
        """The content of aggregate.json: equal results, equal content."""
        study = self.study
        return {
            "format": FORMAT,
            "study": study.name,
            "grid": study.grid,
            "smoke": study.smoke,
            "precision": study.precision,
            "hash": study.hash,
            "left_out": list(self.left_out),
            "figures": {
                name: _figure_json(study.figure(name), metrics)
                for name, metrics in self.figures.items()
            },
        }


def aggregate(study: Study, root: Path, *, allow_missing: bool = False) -> Path:
    """Writes the results of the whole study to `root`/aggregate.json and returns that path."""
    return write(gather(study, root, allow_missing=allow_missing), root)


def write(results: Results, root: Path) -> Path:
    """Writes results to `root`/aggregate.json and returns that path."""
    write_json(root / FILE, results.to_json())
    return root / FILE


def gather(
    study: Study, root: Path, *, only: Sequence[str] = (), allow_missing: bool = False
) -> Results:
    """The results behind the figures `only`, or all of them, as they lie in `root`.

    Unusable lists every trial that has no result, or one that is stale or damaged: such a result
    is never shown. With `allow_missing` these trials are left out, and so are their points: a mean
    over fewer seeds than its neighbours' would not be comparable.
    """
    check_study(root, study)
    for name in only:
        known(f"figure of {study.name}", name, [figure.name for figure in study.figures])
    shown = [figure for figure in study.figures if not only or figure.name in only]
    needed, where = _needed(shown)
    statuses, curves = _checked(study, root, needed)
    broken = {id: one for id, one in statuses.items() if one.state not in USABLE}
    told = {id: f"{where[id]}: {one.state}, {one.detail}" for id, one in broken.items()}
    if broken and not allow_missing:
        raise Unusable(study, list(told.values()), of=len(needed))
    found = Results(study=study, figures={}, statuses=statuses, left_out=tuple(told.values()))
    for figure in shown:
        found.figures[figure.name] = _measured(figure, found, curves)
    return found


def are_left_out(trials: int) -> str:
    """That so many trials are left out."""
    return f"{trials} trial is left out" if trials == 1 else f"{trials} trials are left out"


def in_order(series: Iterable[str]) -> list[str]:
    """Series by their numbers where all are named like `K=60`; otherwise as they come."""
    names = list(dict.fromkeys(series))
    numbers = [re.search(r"=(-?\d+(?:\.\d+)?)", name) for name in names]
    if not all(numbers):
        return names
    value = {name: float(n[1]) for name, n in zip(names, numbers, strict=True) if n}
    return sorted(names, key=value.__getitem__)


def _needed(figures: Sequence[Figure]) -> tuple[dict[str, Trial], dict[str, str]]:
    """The trials of some figures by name, and where each stands in the first that has it."""
    trials: dict[str, Trial] = {}
    where: dict[str, str] = {}
    for figure in figures:
        for point in figure.points:
            at = "" if point.x is None else f" at {point.x:g}"
            place = " ".join(filter(None, (figure.name, point.panel, point.series))) + at
            for trial in point.trials:
                trials.setdefault(trial.hash, trial)
                where.setdefault(trial.hash, f"{place}, seed {trial.seed} ({trial.hash[:12]})")
    return trials, where


def _checked(
    study: Study, root: Path, needed: dict[str, Trial]
) -> tuple[dict[str, TrialStatus], dict[str, dict[str, Curve]]]:
    """The state of each trial, and the curves of those that can be used."""
    statuses = {one.trial.hash: one for one in status(study, root) if one.trial.hash in needed}
    curves: dict[str, dict[str, Curve]] = {}
    for id, one in statuses.items():
        if one.summary is None or one.state not in USABLE:
            continue
        curves[id] = read_curves(root, one.summary)
    return statuses, curves


def _measured(
    figure: Figure, found: Results, curves: dict[str, dict[str, Curve]]
) -> dict[str, tuple[Mark, ...]]:
    """Metric to the marks of a figure, those that lack a seed left out."""
    order = in_order(point.series for point in figure.points)
    points = sorted(figure.points, key=lambda point: order.index(point.series))
    return {
        metric: tuple(_mark(figure, p, metric, found, curves) for p in points if found.has(p))
        for metric in figure.metrics
    }


def _mark(
    figure: Figure, point: Point, metric: str, found: Results, curves: dict[str, dict[str, Curve]]
) -> Mark:
    ids = [trial.hash for trial in point.trials]
    values = []
    for id in ids:
        summary = found.statuses[id].summary
        assert summary is not None
        if metric not in summary.tail or metric not in curves[id]:
            raise BadInput(
                f"trial {id[:12]} has no {metric}, which figure {figure.name} shows; it has "
                f"{', '.join(summary.tail)}"
            )
        value = summary.tail[metric]
        if value is None:
            raise BadInput(
                f"trial {id[:12]} has no number of {metric} in its last updates, which figure "
                f"{figure.name} shows; train it for longer"
            )
        values.append(float(value))
    rows = [[np.nan if y is None else y for y in curves[id][metric]] for id in ids]
    per_update = point.trials[0].config.steps_per_update
    return Mark(
        panel=point.panel,
        series=point.series,
        x=point.x,
        seeds=tuple(trial.seed for trial in point.trials),
        trials=tuple(ids),
        values=tuple(values),
        steps=np.arange(1, len(rows[0]) + 1, dtype=np.int64) * per_update,
        curves=np.array(rows, dtype=np.float64),
    )


def _figure_json(figure: Figure, metrics: dict[str, tuple[Mark, ...]]) -> Json:
    return {
        "title": figure.title,
        "kind": figure.kind,
        "x_label": figure.x_label,
        "y_label": figure.y_label,
        "metrics": {
            metric: [mark.to_json(curves=figure.kind == "curves") for mark in marks]
            for metric, marks in metrics.items()
        },
    }
