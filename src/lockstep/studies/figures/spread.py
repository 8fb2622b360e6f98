"""Middle and spread over the seeds: of a mark, and of a curve; no matplotlib."""

from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lockstep.studies.aggregate import Mark
from lockstep.studies.stats import bootstrap_curves, smoothed

Spread: TypeAlias = Literal["std", "interval"]
"""Mean ± standard deviation, or interquartile mean with its 95 % bootstrap interval."""

Numbers: TypeAlias = NDArray[np.float64]


class Shown(NamedTuple):
    """A number, or one for each update, with the ends of its spread."""

    middle: Numbers
    low: Numbers
    high: Numbers


def of_mark(mark: Mark, spread: Spread) -> tuple[float, float, float]:
    """Middle, low and high of a mark; a single seed has no spread."""
    if spread == "interval":
        return mark.iqm, *mark.interval
    std = mark.std or 0.0
    return mark.mean, mark.mean - std, mark.mean + std


def of_curve(mark: Mark, spread: Spread) -> Shown:
    """Middle, low and high of a mark's curve at every update, each seed's curve smoothed."""
    curves = smoothed(mark.curves)
    if spread == "interval":
        return Shown(*bootstrap_curves(curves))
    middle = curves.mean(axis=0)
    std = curves.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros_like(middle)
    return Shown(middle, middle - std, middle + std)


def in_words(spread: Spread, seeds: int) -> str:
    """What bands and bars of a figure are."""
    if seeds == 1:
        return "one seed"
    if spread == "interval":
        return f"interquartile mean and 95 % bootstrap interval, {seeds} seeds"
    return f"mean ± standard deviation, {seeds} seeds"
