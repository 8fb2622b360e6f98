"""Rates as slopes, and ratios of pairs that were taken one right after the other."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

_DROPPED = 0.1  # share of the time before the slope begins
_RESAMPLES = 10_000


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One slope: `calls` in `wall_s` of the clock and `cpu_s` of this process."""

    calls: int
    wall_s: float
    cpu_s: float


def slope(call: Callable[[], None], *, seconds: float, settle: Callable[[], None]) -> Measured:
    """Calls until `seconds` have passed, the first tenth of which does not count.

    `settle` waits for the device; it is called where the slope begins and ends.
    """
    start = time.perf_counter()
    call()
    while time.perf_counter() - start < _DROPPED * seconds:
        call()
    settle()
    begin, begin_cpu, calls = time.perf_counter(), time.process_time(), 0
    while calls == 0 or time.perf_counter() - start < seconds:
        call()
        calls += 1
    settle()
    return Measured(
        calls=calls,
        wall_s=time.perf_counter() - begin,
        cpu_s=time.process_time() - begin_cpu,
    )


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How many times as fast the first side of the pairs is."""

    median: float
    low: float
    high: float
    """Bounds of the bootstrap interval that holds 95 % of resampled medians."""
    pairs: int


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """The median ratio of paired rates, with its interval."""
    if len(ours) != len(theirs) or len(ours) < 2:
        raise ValueError(
            f"a ratio needs at least 2 pairs of rates, got {len(ours)} and {len(theirs)}"
        )
    each = np.array(ours) / np.array(theirs)
    chosen = np.random.default_rng(0).integers(len(each), size=(_RESAMPLES, len(each)))
    low, high = np.quantile(np.median(each[chosen], axis=1), (0.025, 0.975))
    return Ratio(median=statistics.median(each), low=float(low), high=float(high), pairs=len(each))
