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

SMOOTHED_OF = 50
"""A smoothed curve is a running mean over one update in so many."""

LEVEL = 0.05
"""Probability below which a difference counts as separated from nothing."""


def iqm(values: Values) -> float:
    """Interquartile mean: a quarter of the values, rounded down, is left out at either end.

    This is the trimmed mean of Agarwal et al. (2021); of fewer than four values it is the mean.
    """
    return float(_trimmed(_checked(values)))


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


def bootstrap_curves(
    curves: NDArray[np.float64], seed: int = 0, *, confidence: float = 0.95
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Interquartile mean over seeds of curves `[seeds, updates]`, with a percentile interval.

    Whole curves are resampled, so an update's interval is that of `bootstrap` but for the draw.
    An update in which a seed has no number has none either.
    """
    n = len(curves)
    generator = np.random.default_rng(seed)
    drawn = np.sort(generator.integers(n, size=(RESAMPLES, n)), axis=1)
    rows, count = np.unique(drawn, axis=0, return_counts=True)
    resampled = np.stack([_trimmed(curves[row]) for row in rows])  # [rows, updates]
    edge = (1.0 - confidence) / 2.0
    middle = _trimmed(curves)
    low, high = (
        np.where(np.isnan(middle), np.nan, _weighted_quantile(resampled, count, q))
        for q in (edge, 1.0 - edge)
    )
    return middle, low, high


@dataclass(frozen=True, kw_only=True)
class Paired:
    """Differences of two series over the seeds that both have."""

    mean: float
    error: float
    """Standard error of the mean; NaN of a single pair."""
    pairs: int
    freedom: int
    """Degrees of freedom of that error."""

    @property
    def p(self) -> float:
        """Two-sided probability of such a difference if there is none (Student's t); or 1."""
        if math.isnan(self.error) or not self.mean:
            return 1.0
        return student_p(self.mean / self.error, self.freedom) if self.error else 0.0

    @property
    def separated(self) -> bool:
        """Whether the difference is told from nothing at the 5 % level; one pair never is."""
        return self.p < LEVEL

    def __str__(self) -> str:
        error = "one pair" if math.isnan(self.error) else f"± {self.error:.2g}"
        return f"{self.mean:+.3g} {error}"


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Paired:
    """`first` minus `second`, seed by seed; without a common seed their means are compared."""
    common = sorted(set(first) & set(second))
    if common:
        return _estimate([first[seed] - second[seed] for seed in common])
    one, other = (_estimate(list(values.values())) for values in (first, second))
    return Paired(
        mean=one.mean - other.mean,
        error=math.hypot(one.error, other.error),
        pairs=0,
        freedom=min(one.freedom, other.freedom),
    )


def student_p(t: float, freedom: int) -> float:
    """Two-sided tail probability of Student's t, exact for a whole number of degrees of freedom.

    The series are those of Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    if freedom < 1:
        raise ValueError(f"freedom must be at least 1, got {freedom}")
    angle = math.atan(abs(t) / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine, cosine if freedom > 1 else 0.0) if odd else (1.0, 1.0)
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    inside = 2.0 / math.pi * (angle + sine * total) if odd else sine * total
    return max(0.0, 1.0 - inside)


def spearman(first: Values, second: Values) -> float:
    """Rank correlation, ties sharing their mean rank; NaN where one side is constant."""
    if len(first) != len(second):
        raise ValueError(f"both sides must be of one length, got {len(first)} and {len(second)}")
    a, b = _ranks(_checked(first)), _ranks(_checked(second))
    a, b = a - a.mean(), b - b.mean()
    scale = math.sqrt(float((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / scale if scale > 0 else math.nan


def smoothed(curves: NDArray[np.float64]) -> NDArray[np.float64]:
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
    mean: NDArray[np.float64] = (total[:, end] - total[:, start]) / np.maximum(held, 1)
    return np.where(np.isnan(curves), np.nan, mean)


def _ranks(x: NDArray[np.float64]) -> NDArray[np.float64]:
    _, where, count = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    mean_rank: NDArray[np.float64] = (last - (count - 1) / 2.0)[where]
    return mean_rank


def _estimate(values: Sequence[float]) -> Paired:
    x = _checked(values)
    error = float(x.std(ddof=1)) / math.sqrt(len(x)) if len(x) > 1 else math.nan
    return Paired(mean=float(x.mean()), error=error, pairs=len(x), freedom=max(1, len(x) - 1))


def _trimmed(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Interquartile mean over the first axis; NaN where there is one among the values."""
    ordered = np.sort(x, axis=0)  # NaN comes last
    cut = len(x) // 4
    mean: NDArray[np.float64] = ordered[cut : len(x) - cut].mean(axis=0)
    return np.where(np.isnan(ordered[-1]), np.nan, mean)


def _weighted_quantile(
    x: NDArray[np.float64], count: NDArray[np.int64], q: float
) -> NDArray[np.float64]:
    """The value at which a share `q` of the counted rows of `x` `[rows, updates]` is reached."""
    order = np.argsort(x, axis=0)
    reached = np.cumsum(count[order], axis=0) >= q * count.sum()
    first = np.take_along_axis(order, reached.argmax(axis=0)[None], axis=0)
    value: NDArray[np.float64] = np.take_along_axis(x, first, axis=0)[0]
    return value


def _checked(values: Values) -> NDArray[np.float64]:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or not len(x) or not np.isfinite(x).all():
        raise ValueError(f"values must be one or more finite numbers, got {values!r}")
    return x
