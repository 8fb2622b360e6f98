"""Middle and spread over the seeds: of a mark, and of a curve; no matplotlib."""

from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lockstep.studies.aggregate import Mark
from lockstep.studies.stats import bootstrap_curves

Spread: TypeAlias = Literal["std", "interval"]
"""Mean ± standard deviation, or interquartile mean with its 95 % bootstrap interval."""

SMOOTHED_OF = 50
"""A curve is a running mean over one update in so many."""

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


def smoothed(curves: Numbers) -> Numbers:
    """Running means of `[seeds, updates]`: each value with those just before it.

    The width is a fiftieth of the updates; the first values have as many as there are, so a curve
    begins where it began.
    """
    updates = curves.shape[1]
    width = max(1, updates // SMOOTHED_OF)
    total = np.cumsum(np.pad(np.nan_to_num(curves), ((0, 0), (1, 0))), axis=1)
    count = np.cumsum(np.pad(~np.isnan(curves), ((0, 0), (1, 0))), axis=1)
    end = np.arange(1, updates + 1)
    start = np.maximum(0, end - width)
    held = count[:, end] - count[:, start]
    mean: Numbers = (total[:, end] - total[:, start]) / np.maximum(held, 1)
    return np.where(np.isnan(curves), np.nan, mean)


def in_words(spread: Spread, seeds: int) -> str:
    """What bands and bars of a figure are."""
    if seeds == 1:
        return "one seed"
    if spread == "interval":
        return f"interquartile mean and 95 % bootstrap interval, {seeds} seeds"
    return f"mean ± standard deviation, {seeds} seeds"
