"""Computing: clock estimates of the digital twin, real clocks, and delays."""

import torch
from torch import Tensor

MIN_CLOCK_HZ = 1e3
MIN_CLOCK_SHARE = 0.1  # of the estimate: a deviation never stalls a chip


def dvfs_hz(work_cycles: Tensor, *, slot_s: float, f_max_hz: Tensor) -> Tensor:
    """The slowest clock that finishes in the slot, or the fastest there is."""
    return torch.minimum(work_cycles / slot_s, f_max_hz)


def real_hz(estimate_hz: Tensor, deviation: Tensor, draw: Tensor) -> Tensor:
    """The clock that in fact runs: the estimate is off by `deviation` times a draw in (-1, 1).

    The paper writes the consequence as a delay correction -Y f^ / (f~ (f~ + f^)); it is Y / f.
    """
    return estimate_hz * (1.0 + deviation * draw).clamp(min=MIN_CLOCK_SHARE)


def compute_s(work_cycles: Tensor, clock_hz: Tensor) -> Tensor:
    """Time to work off the cycles; no work takes no time."""
    return work_cycles / clock_hz.clamp(min=MIN_CLOCK_HZ)
