"""What a study asks for: trials, the points they make, and the figures of these; no torch."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias, get_args, get_type_hints

from lockstep.errors import BadInput, known
from lockstep.run.config import TrainConfig
from lockstep.studies.trials import trial_id

Kind: TypeAlias = Literal["bars", "lines", "curves", "flights"]
Precision: TypeAlias = Literal["fp32", "tf32", "bf16"]
"""Arithmetic of networks, from the exact to the fast."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One member as it was asked for; where it is trained, and beside whom, is not part of it."""

    config: TrainConfig
    """Its settings, with one seed."""
    series: str
    """The series of a figure that it belongs to."""
    x: float | None = None
    """Where it stands on the figure's axis; None where that is time."""

    def __post_init__(self) -> None:
        if self.config.members != 1:
            raise ValueError(f"a trial must have one seed, got {self.config.members}")

    @property
    def seed(self) -> int:
        """Its seed."""
        return self.config.seeds[0]

    @cached_property
    def hash(self) -> str:
        """Its name in the store: a digest of settings and code version."""
        return trial_id(self.config)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One mark of a figure, or one curve: a mean over the seeds of its trials."""

    figure: str
    """Name of the sweep it was declared in; figures that show the same sweep share its points."""
    panel: str = ""
    """Part of the figure, where it has several."""
    series: str
    """The line or bar it belongs to."""
    x: float | None = None
    """Where it stands on the axis; None where that is time."""
    trials: tuple[Trial, ...]
    """One for each seed."""

    def __post_init__(self) -> None:
        if not self.trials:
            raise ValueError(f"a point of {self.figure} ({self.series}) must have a trial")

    @property
    def key(self) -> tuple[str, str, str, float | None]:
        """What tells it from the other points of a study."""
        return self.figure, self.panel, self.series, self.x


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A picture of points."""

    name: str
    """Its name, which names its files: fig6."""
    title: str
    """What it shows, in a line."""
    kind: Kind
    """Grouped bars, lines over x, curves over steps, or flights of trained policies."""
    x_label: str
    """Text of the x axis."""
    y_label: str
    """Text of the y axis."""
    metrics: tuple[str, ...]
    """What is measured: keys of metrics.jsonl, world/<name> or a mean of rewards or returns."""
    points: tuple[Point, ...]
    """What it is made of."""

    def __post_init__(self) -> None:
        if not self.name or any(mark in self.name for mark in "/\\. "):
            raise ValueError(f"a figure's name must be fit for a file, got '{self.name}'")
        if self.kind not in get_args(Kind):
            kinds = ", ".join(get_args(Kind))
            raise ValueError(
                f"the kind of figure {self.name} must be one of {kinds}, got '{self.kind}'"
            )
        if not self.metrics and self.kind != "flights":
            raise ValueError(f"figure {self.name} must measure something; name its metrics")
        if not self.points:
            raise ValueError(f"figure {self.name} must have points")
        _once((point.key for point in self.points), f"point of figure {self.name}")
        if self.kind == "curves":
            self._check_curves()
        elif self.kind != "flights" and any(point.x is None for point in self.points):
            raise ValueError(
                f"figure {self.name} of {self.kind} must have a value of x at every point; give "
                "its sweep an axis, or draw curves"
            )

    def _check_curves(self) -> None:
        """A curve is told from others by its series alone."""
        first: dict[tuple[str, str, str], Point] = {}
        for point in self.points:
            other = first.setdefault((point.figure, point.panel, point.series), point)
            if other is not point:
                raise ValueError(
                    f"figure {self.name} of curves must have one curve for each series, got "
                    f"{point.series} at x = {other.x} and {point.x}; make them series of their "
                    "own, or draw lines"
                )

    def trials(self) -> tuple[Trial, ...]:
        """Its trials in order."""
        return tuple(trial for point in self.points for trial in point.trials)


@dataclass(frozen=True, kw_only=True)
class Study:
    """Trials declared in code, with the figures made of them."""

    name: str
    """Its name."""
    figures: tuple[Figure, ...]
    """What it draws."""
    grid: str = ""
    """Which of its grids was asked for, where it has several."""
    smoke: bool = False
    """Whether it is the short version, which shows that everything works and no more."""
    precision: str = ""
    """Arithmetic that was asked for, where it is not as declared; see `at_precision`."""

    def __post_init__(self) -> None:
        if not self.figures:
            raise ValueError(f"study {self.name} must have a figure")
        _once((figure.name for figure in self.figures), f"figure of study {self.name}")
        shared: dict[tuple[str, str, str, float | None], Point] = {}
        for figure in self.figures:
            for point in figure.points:
                if shared.setdefault(point.key, point).trials != point.trials:
                    raise ValueError(
                        f"figures of study {self.name} that share the point {point.key} must "
                        "share its trials; name one of the sweeps otherwise"
                    )

    def figure(self, name: str) -> Figure:
        """The figure of that name; UnknownName suggests the nearest."""
        figures = {figure.name: figure for figure in self.figures}
        return figures[known(f"figure of {self.name}", name, figures)]

    def points(self) -> tuple[Point, ...]:
        """Every point in order; one that several figures show is there once."""
        found = {point.key: point for figure in self.figures for point in figure.points}
        return tuple(found.values())

    def trials(self) -> tuple[Trial, ...]:
        """Every trial asked for, in order; those of points that figures share are there once.

        Points of different sweeps may ask for the same trial: see `distinct`.
        """
        return tuple(trial for point in self.points() for trial in point.trials)

    def distinct(self) -> dict[str, Trial]:
        """The trials to be trained, by name: those that coincide are one."""
        found: dict[str, Trial] = {}
        for trial in self.trials():
            found.setdefault(trial.hash, trial)
        return found

    @cached_property
    def hash(self) -> str:
        """Digest of every trial's name: other settings, other code or other trials change it."""
        return hashlib.sha256("\n".join(sorted(self.distinct())).encode()).hexdigest()


def at_precision(study: Study, precision: Precision) -> Study:
    """The same study in other arithmetic; a learner that does not know it takes its own fastest.

    Learners without networks stay what they are, and so do their trials.
    """
    made: dict[int, Point] = {}  # figures share points

    def changed(point: Point) -> Point:
        if id(point) not in made:
            trials = (
                replace(trial, config=_at_precision(trial.config, precision))
                for trial in point.trials
            )
            made[id(point)] = replace(point, trials=tuple(trials))
        return made[id(point)]

    figures = tuple(
        replace(figure, points=tuple(changed(point) for point in figure.points))
        for figure in study.figures
    )
    return replace(study, figures=figures, precision=precision)


def _at_precision(config: TrainConfig, precision: Precision) -> TrainConfig:
    slower = get_args(Precision)[: get_args(Precision).index(precision) + 1]
    fits = [one for one in slower if one in _precisions(type(config.learner))]
    other: dict[str, Any] = {"precision": fits[-1]} if fits else {}
    return replace(config, learner=replace(config.learner, **other))


def _precisions(learner: type) -> tuple[str, ...]:
    """What a learner's settings offer; nothing if it has no networks."""
    return get_args(get_type_hints(learner).get("precision"))


def wanted(
    study: Study, only: Sequence[str] = (), learners: Sequence[str] = ()
) -> dict[str, Trial]:
    """The distinct trials of a study, or of some of its figures and learners, by name."""
    trials = study.distinct()
    there = list(dict.fromkeys(_learner(trial) for trial in trials.values()))
    for name in learners:
        known(f"learner of {study.name}", name, there)
    if only:
        shown = [trial for name in only for trial in study.figure(name).trials()]
        trials = {trial.hash: trial for trial in shown}
    if learners:
        trials = {id: trial for id, trial in trials.items() if _learner(trial) in learners}
    if not trials:
        raise BadInput(f"no trial of {', '.join(only)} has the learner {' or '.join(learners)}")
    return trials


def _learner(trial: Trial) -> str:
    """What its learner is called: as it was asked for, or else by its kind."""
    return trial.config.algorithm or trial.config.learner.kind


def sweep(
    name: str,
    series: Mapping[str, TrainConfig],
    *,
    seeds: Sequence[int],
    axis: str = "",
    values: Sequence[int | float] = (),
    panel: str = "",
) -> tuple[Point, ...]:
    """A point for each series and each value of the setting `axis`, with a trial for each seed.

    `axis` is named as on the command line: world.bandwidth_mhz, learner.lr_actor. Without one there
    is a point for each series, to be shown as a curve over steps.
    """
    if bool(axis) != bool(values):
        raise ValueError(f"sweep {name} must have both axis and values, or neither")
    marks: Sequence[float | None] = [float(x) for x in values] or [None]
    return tuple(
        Point(
            figure=name,
            panel=panel,
            series=label,
            x=x,
            trials=tuple(
                Trial(config=replace(_at(config, axis, x), seeds=(seed,)), series=label, x=x)
                for seed in seeds
            ),
        )
        for label, config in series.items()
        for x in marks
    )


def setting(config: TrainConfig, place: str, value: int | float) -> TrainConfig:
    """`config` with another number at `place`, such as world.bandwidth_mhz."""
    of, _, name = place.partition(".")
    if of not in ("world", "learner"):
        raise ValueError(f"a setting must be named as world.<name> or learner.<name>, got {place}")
    holder = getattr(config, of)
    known(f"setting of the {of}", name, [field.name for field in fields(holder)])
    whole = type(getattr(holder, name)) is int and float(value).is_integer()
    changed = replace(holder, **{name: int(value) if whole else value})
    return replace(config, **{of: changed})


def _at(config: TrainConfig, axis: str, x: float | None) -> TrainConfig:
    return config if x is None else setting(config, axis, x)


def _once(names: Iterable[object], what: str) -> None:
    seen: set[object] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"each {what} must be there once, got {name} twice")
        seen.add(name)
