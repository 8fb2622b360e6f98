"""Statistics over few seeds: interquartile means, bootstrap intervals, pairs, rank correlation."""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Values: TypeAlias = Sequence[float] | NDArray[np.float64]
Statistic: TypeAlias = Callable[[NDArray[np.float64]], float]

RESAMPLES = 2000
"""Resamples behind an interval: its ends then move by about a tenth of its width by chance."""


def iqm(values: Values) -> float:
    """Interquartile mean: a quarter of the values, rounded down, is left out at either end.

    This is the trimmed mean of Agarwal et al. (2021); of fewer than four values it is the mean.
    """
    ordered = np.sort(_checked(values))
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


def bootstrap(
    values: Values,
    statistic: Statistic = iqm,
    seed: int = 0,
    *,
    strata: Sequence[Hashable] | None = None,
    confidence: float = 0.95,
) -> tuple[float, float]:
    """Percentile interval of `statistic`; equal arguments give an equal interval.

    With `strata`, one label for each value, resamples are drawn inside each stratum: so many runs
    of each task as there were. One value has no spread to be seen, and its interval no width.
    """
    x = _checked(values)
    labels: Sequence[Hashable] = [0] * len(x) if strata is None else strata
    if len(labels) != len(x):
        raise ValueError(f"strata must have one label for each of {len(x)} values: {len(labels)}")
    groups: dict[Hashable, list[int]] = {}
    for index, label in enumerate(labels):
        groups.setdefault(label, []).append(index)
    generator = np.random.default_rng(seed)
    chosen = np.concatenate(
        [
            np.asarray(group)[generator.integers(len(group), size=(RESAMPLES, len(group)))]
            for group in groups.values()
        ],
        axis=1,
    )  # [RESAMPLES, n]
    # Few seeds make few different resamples, and their order does not matter.
    rows, which = np.unique(np.sort(chosen, axis=1), axis=0, return_inverse=True)
    resampled = np.array([statistic(x[row]) for row in rows])[which.reshape(-1)]
    edge = (1.0 - confidence) / 2.0
    low, high = np.quantile(resampled, (edge, 1.0 - edge))
    return float(low), float(high)


@dataclass(frozen=True, kw_only=True)
class Paired:
    """Differences of two series over the seeds that both have."""

    mean: float
    error: float
    """Standard error of the mean; NaN of a single pair."""
    pairs: int

    @property
    def separated(self) -> bool:
        """Whether the difference exceeds its standard error; a single pair never does."""
        return abs(self.mean) > self.error

    def __str__(self) -> str:
        error = "one pair" if math.isnan(self.error) else f"± {self.error:.2g}"
        return f"{self.mean:+.3g} {error}"


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Paired:
    """`first` minus `second`, seed by seed; without a common seed their means are compared."""
    common = sorted(set(first) & set(second))
    if common:
        return _estimate([first[seed] - second[seed] for seed in common])
    one, other = (_estimate(list(values.values())) for values in (first, second))
    return Paired(mean=one.mean - other.mean, error=math.hypot(one.error, other.error), pairs=0)


def spearman(first: Values, second: Values) -> float:
    """Rank correlation, ties sharing their mean rank; NaN where one side is constant."""
    if len(first) != len(second):
        raise ValueError(f"both sides must be of one length, got {len(first)} and {len(second)}")
    a, b = _ranks(_checked(first)), _ranks(_checked(second))
    a, b = a - a.mean(), b - b.mean()
    scale = math.sqrt(float((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / scale if scale > 0 else math.nan


def _ranks(x: NDArray[np.float64]) -> NDArray[np.float64]:
    _, where, count = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    mean_rank: NDArray[np.float64] = (last - (count - 1) / 2.0)[where]
    return mean_rank


def _estimate(values: Sequence[float]) -> Paired:
    x = _checked(values)
    error = float(x.std(ddof=1)) / math.sqrt(len(x)) if len(x) > 1 else math.nan
    return Paired(mean=float(x.mean()), error=error, pairs=len(x))


def _checked(values: Values) -> NDArray[np.float64]:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or not len(x) or not np.isfinite(x).all():
        raise ValueError(f"values must be one or more finite numbers, got {values!r}")
    return x
